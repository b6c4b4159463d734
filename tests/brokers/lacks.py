"""What brokers lack of what the suite of the client asks for, by law, and kind of body where that matters."""

from typing import Final

LACKS: Final[dict[str, dict[str, str]]] = {
    "LightRail": {},
    "Artemis": {
        "annotations_that_a_receiver_adds_arrive": "keeps no annotations that a receiver adds",
        "an_address_that_there_is_nothing_for_is_an_error_that_names_it": (
            "makes a queue of every name that is used"
        ),
    },
    "RabbitMQ": {
        "what_is_sent_arrives_equal:list": "ends the connection at a list as the body",
        "a_failed_delivery_is_counted": "counts no failed deliveries",
        "a_selector_chooses": "delivers everything, though it says that it filters",
        "annotations_that_a_receiver_adds_arrive": "keeps no annotations that a receiver adds",
        "what_a_receiver_passes_over_is_for_others": "drops what a receiver passes over: `select` is refused",
        "that_a_queue_was_deleted_is_an_error_of_its_receivers": (
            "breaks the connection when a queue with receivers is deleted"
        ),
        "browsing_leaves_messages": "has no browsing: messages are delivered as to any receiver",
        "a_question_is_answered": "makes no dynamic nodes for the answers",
    },
}


def of(broker: str, law: str, case: str | None = None) -> str | None:
    """Why a law does not hold for a broker; None where it does."""
    found = LACKS[broker]
    return found.get(law) or found.get(f"{law}:{case}")


def table() -> str:
    """As docs/use/other-brokers.md has it."""
    lines = ["| broker | what differs |", "|---|---|"]
    for broker, found in LACKS.items():
        lines.append(f"| {broker} | {'; '.join(found.values()) or 'nothing'} |")
    return "\n".join(lines) + "\n"
