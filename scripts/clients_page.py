"""Writes docs/use/clients.md, which client does what; a test checks that the tests behind it are there."""

import ast
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "use" / "clients.md"
INTEROP: Final = "tests/interop/"
CLIENT: Final = "tests/client/test_"
LAWS: Final = "tests/interop/jms/src/"
NOT_RUN: Final = "tests/interop/test_jms.py"
"""Its WAITING names the files of laws that do not run."""


class Proof(NamedTuple):
    """A test that a cell of the table stands for."""

    test: str
    """FILE::NAME; of Java, the name of the law."""
    word: str = "yes"


def _jms(file: str, law: str, word: str = "yes") -> Proof:
    return Proof(f"{LAWS}{file}.java::{law}", word)


def _proton(file: str, name: str, word: str = "yes") -> Proof:
    return Proof(f"{INTEROP}test_proton_{file}.py::test_{name}", word)


def _rhea(name: str, word: str = "yes") -> Proof:
    return Proof(f"{INTEROP}test_rhea.py::test_{name}", word)


def _azure(name: str, word: str = "yes") -> Proof:
    return Proof(f"{INTEROP}test_azure_servicebus.py::test_{name}", word)


def _azure_at(file: str, name: str, word: str = "yes") -> Proof:
    return Proof(f"{INTEROP}test_azure_{file}.py::test_{name}", word)


def _go(name: str, word: str = "yes") -> Proof:
    return Proof(f"{INTEROP}test_go_amqp.py::test_{name}", word)


def _ours(file: str, name: str, word: str = "yes") -> Proof:
    return Proof(f"{CLIENT}{file}.py::test_{name}", word)


JMS, PROTON, RHEA, GO, AZURE, OURS = (
    "Qpid JMS 2.10",
    "Qpid Proton (Python)",
    "rhea",
    "go-amqp",
    "azure-servicebus (Python)",
    "lightrail.client",
)
CLIENTS: Final = (JMS, PROTON, RHEA, GO, AZURE, OURS)
TABLE: Final[Mapping[str, Mapping[str, Proof]]] = {
    "send and receive in order": {
        JMS: _jms("Messages", "messages_of_a_producer_keep_their_order"),
        PROTON: _proton("blocking", "order_is_kept"),
        RHEA: _rhea("order_over_thousands_of_messages"),
        GO: _go("order_over_thousands_of_messages"),
        AZURE: _azure("a_message_that_is_sent_is_stored_once"),
        OURS: _ours("sending_and_receiving", "what_is_sent_arrives_in_order_and_as_it_was"),
    },
    "every type of value": {
        JMS: _jms("Messages", "bodies_of_all_kinds_arrive"),
        PROTON: _proton("reactor", "every_type_arrives_as_it_was_sent"),
        RHEA: _rhea("every_type_arrives_as_it_was_sent"),
        GO: _go("every_type_arrives_as_it_was_sent"),
        OURS: _ours("sending_and_receiving", "what_is_sent_arrives_in_order_and_as_it_was"),
    },
    "large messages": {
        JMS: _jms("Listening", "large_messages_arrive_whole"),
        PROTON: _proton("blocking", "large_messages_both_ways"),
        RHEA: _rhea("a_large_message"),
        GO: _go("a_large_message"),
        OURS: _ours("sending_and_receiving", "large_messages_go_in_several_frames"),
    },
    "sends that are confirmed later": {
        JMS: _jms("Listening", "sends_complete_in_order_although_their_producer_is_closed"),
        PROTON: _proton("reactor", "order_over_thousands_of_messages"),
        RHEA: _rhea("order_over_thousands_of_messages"),
        GO: _go("order_over_thousands_of_messages"),
        OURS: _ours("sending_and_receiving", "many_at_once_are_confirmed_each"),
    },
    "settled when sent": {
        JMS: _jms("Listening", "messages_without_persistence_arrive_in_order", "not persistent"),
        PROTON: _proton("blocking", "presettled_both_ways"),
        RHEA: _rhea("presettled_both_ways"),
        GO: _go("presettled_both_ways"),
        AZURE: _azure_at("locks", "what_is_received_and_deleted_has_no_lock", "receive and delete"),
        OURS: _ours("sending_and_receiving", "presettled_messages_need_no_answer_and_no_outcome"),
    },
    "receiver settles second": {
        PROTON: _proton("reactor", "receiver_settle_mode_second"),
        RHEA: _rhea("receiver_settle_mode_second"),
        GO: _go("receiver_settle_mode_second"),
    },
    "redelivery and its count": {
        JMS: _jms("Acknowledging", "what_was_not_acknowledged_comes_again_and_says_so"),
        PROTON: _proton("blocking", "modified_delivery_failed_counts"),
        RHEA: _rhea("outcomes_and_redelivery"),
        GO: _go("outcomes_and_redelivery"),
        AZURE: _azure("what_is_completed_is_gone_and_what_is_abandoned_comes_again"),
        OURS: _ours("sending_and_receiving", "each_outcome_is_what_the_broker_makes_of_it"),
    },
    "acknowledging one by one": {
        JMS: _jms("Acknowledging", "acknowledging_individually_acknowledges_one_message"),
        PROTON: _proton("reactor", "outcomes_of_the_handler"),
        RHEA: _rhea("outcomes_and_redelivery"),
        GO: _go("outcomes_and_redelivery"),
        AZURE: _azure("what_is_completed_is_gone_and_what_is_abandoned_comes_again"),
        OURS: _ours("selecting", "a_handler_may_settle_by_itself"),
    },
    "dead letters": {
        JMS: _jms("Acknowledging", "what_comes_back_too_often_is_a_dead_letter"),
        PROTON: _proton("blocking", "rejected_goes_to_the_dead_letter_queue"),
        GO: _go("outcomes_and_redelivery"),
        AZURE: _azure_at("locks", "a_dead_letter_has_its_reason_its_description_and_its_source"),
        OURS: _ours("scheduling", "a_dead_letter_keeps_its_reason"),
    },
    "locks that are renewed": {
        AZURE: _azure_at("locks", "a_lock_is_renewed_and_a_lost_one_is_not"),
        OURS: _ours("locks", "locks_are_renewed_beside_the_handler_and_those_in_the_buffer_as_well"),
    },
    "browsing": {
        JMS: _jms("Consuming", "a_browser_sees_everything_and_removes_nothing"),
        PROTON: _proton("blocking", "browsing_leaves_messages_and_keeps_order"),
        RHEA: _rhea("browsers_see_all_in_order_and_take_nothing"),
        GO: _go("browsers_see_all_in_order_and_take_nothing"),
        AZURE: _azure_at("locks", "peeked_messages_stay_and_are_not_locked"),
        OURS: _ours("sending_and_receiving", "a_browser_leaves_everything_where_it_is"),
    },
    "selectors and filters": {
        JMS: _jms("Consuming", "selectors_see_headers_and_properties"),
        PROTON: _proton("names", "a_selector_chooses_messages"),
        GO: _go("a_selector_chooses_messages"),
        OURS: _ours("selecting", "a_filter_lets_through_what_it_names_and_leaves_the_rest"),
    },
    "priorities": {JMS: _jms("Messages", "a_queue_with_priorities_delivers_the_highest_first", "by policy")},
    "groups": {
        JMS: _jms("Listening", "messages_of_a_group_go_to_one_consumer_at_a_time_in_order", "by policy"),
        OURS: _ours("selecting", "members_of_a_group_go_to_one_receiver_at_a_time_in_order", "by policy"),
    },
    "time to live": {
        JMS: _jms("Messages", "what_has_expired_does_not_come"),
        PROTON: _proton("blocking", "ttl_ends_in_the_dead_letter_queue"),
        AZURE: _azure_at("deferred", "an_expired_one_becomes_a_dead_letter"),
    },
    "a delay at a queue": {
        JMS: _jms("Messages", "a_delay_needs_no_policy"),
        AZURE: _azure_at("locks", "a_scheduled_message_is_delivered_at_its_time", "by policy"),
        OURS: _ours("scheduling", "a_scheduled_message_comes_at_its_time", "by policy"),
    },
    "a delay at a topic": {JMS: _jms("Messages", "a_delay_is_refused_where_a_topic_receives", "refused")},
    "topics and routers": {
        JMS: _jms("Subscriptions", "a_selector_filters_what_a_subscriber_gets"),
        PROTON: _proton("routers", "a_receiver_gets_what_is_sent_after_its_attach"),
        AZURE: _azure("a_batch_for_a_topic_reaches_each_subscription"),
        OURS: _ours("subscriptions", "every_receiver_of_a_router_gets_a_copy_of_what_its_filter_names"),
    },
    "durable subscriptions": {
        JMS: _jms("Subscriptions", "a_durable_subscription_keeps_what_is_sent_meanwhile"),
        PROTON: _proton("routers", "a_durable_subscription_survives_its_client"),
        OURS: _ours(
            "subscriptions", "a_durable_subscription_collects_while_nobody_receives_until_it_is_ended"
        ),
    },
    "shared subscriptions": {
        JMS: _jms("Subscriptions", "shared_durable_consumers_divide_the_messages"),
        PROTON: _proton("routers", "a_durable_shared_subscription_of_all_containers"),
        OURS: _ours("subscriptions", "receivers_of_several_connections_share_a_subscription"),
    },
    "no messages of the same connection (no-local)": {
        JMS: _jms(
            "Subscriptions",
            "a_subscriber_without_local_messages_gets_those_of_others",
        )
    },
    "temporary queues and requests": {
        JMS: _jms("Temporary", "a_request_is_answered_over_a_temporary_queue"),
        PROTON: _proton("dynamic", "request_and_response_over_a_reply_queue"),
        GO: _go("request_and_response_over_a_dynamic_queue"),
        OURS: _ours("requests", "each_question_gets_its_own_answer"),
    },
    "temporary topics": {JMS: _jms("Temporary", "a_temporary_topic_reaches_every_consumer")},
    "sending without a target": {
        JMS: _jms("Messages", "a_producer_without_a_destination_delays_what_it_sends_to_queues"),
        PROTON: _proton("anonymous", "each_message_goes_where_it_says"),
    },
    "transactions at one shard": {
        JMS: _jms("Transactions", "what_was_sent_and_rolled_back_never_comes"),
    },
    "a broker that is killed": {
        JMS: _jms("Failover", "nothing_is_lost_when_the_broker_is_killed_and_started_again", "`failover:`"),
        PROTON: _proton("restart", "many_accepted_messages_survive_kill_in_the_middle"),
        AZURE: _azure_at("sdks", "sends_and_receives_go_on_over_a_kill_of_the_broker"),
        OURS: _ours(
            "recovery",
            "over_kills_of_the_broker_everything_accepted_arrives_without_a_line_of_application_code",
        ),
    },
    "links that are resumed": {
        OURS: _ours("resumed_links", "over_many_cuts_each_message_is_stored_and_received_once_in_order"),
    },
    "users and TLS": {
        PROTON: _proton("security", "tls_with_a_password"),
        RHEA: _rhea("users_and_tls"),
        GO: _go("users_and_tls"),
        AZURE: _azure_at("keys", "a_connection_string_sends_and_receives", "keys"),
        OURS: _ours("tokens", "links_stay_open_beyond_the_life_of_a_token", "tokens"),
    },
    "WebSocket": {
        RHEA: Proof(f"{INTEROP}test_websocket.py::test_users_enter_over_tls"),
        AZURE: Proof(f"{INTEROP}test_websocket.py::test_azure_servicebus_sends_and_receives"),
    },
    "management": {
        PROTON: _proton("management", "a_queue_is_made_used_and_deleted"),
        RHEA: _rhea("management_answers_over_a_pair_of_links"),
        OURS: _ours("requests", "a_queue_is_made_changed_looked_into_and_deleted"),
    },
}
AZURES: Final = (
    "azure-servicebus 7.15 (Python)",
    "@azure/service-bus 7.9 (JavaScript)",
    "azservicebus 1.11 (Go)",
    "azure-messaging-servicebus 7.17 (Java)",
    "Azure.Messaging.ServiceBus 7.21 (.NET)",
)
SHARED, NET = AZURES[:4], AZURES[4]
"""Clients whose programs have the same scenarios, and the one that has programs of its own."""


def _azures(sdks: str, net: str | None = None) -> Mapping[str, Proof]:
    """A row whose test runs with each of the first clients, and another one with the last."""
    return dict.fromkeys(SHARED, _azure_at("sdks", sdks)) | ({NET: _net(net)} if net else {})


def _net(name: str) -> Proof:
    """Of the programs that run at once, or else those that have a test each."""
    return _azure_at("dotnet_parts" if name in NET_PARTS else "dotnet", name)


NET_RECEIVERS: Final = "receivers_peek_cancel_defer_and_settle"
NET_SESSIONS: Final = "receivers_of_sessions_have_their_locks_and_states"
NET_SENDERS: Final = "senders_have_signatures_batches_and_schedules"
NET_BODIES: Final = "messages_arrive_with_every_type_and_kind_of_body"
NET_PROCESSORS: Final = "processors_settle_renew_and_stop"
NET_TRANSACTIONS: Final = "transactions_of_the_client_for_dotnet_commit_and_roll_back"
NET_WOLVERINE: Final = "wolverine_listens_to_batches_single_messages_and_sessions"
NET_PARTS: Final = frozenset(
    (
        NET_RECEIVERS,
        NET_SESSIONS,
        NET_SENDERS,
        NET_BODIES,
        NET_PROCESSORS,
        NET_TRANSACTIONS,
        NET_WOLVERINE,
    )
)
NET_COUNTS: Final = "messages_are_counted_timed_and_placed_as_in_service_bus"
PAIRS: Final = "what_one_language_sends_another_one_settles"


SESSION: Final = "a_session_is_accepted_by_its_id_and_as_the_next_one_and_has_a_state"
"""The test of sessions for each client."""
ON_AZURE: Final[Mapping[str, Mapping[str, Proof]]] = {
    "messages with all fields": _azures("a_message_arrives_with_all_that_was_set", NET_BODIES),
    "lists and batches": _azures("a_batch_becomes_messages_that_are_received_and_deleted", NET_SENDERS),
    "complete, abandon": _azures(
        "messages_are_completed_abandoned_and_dead_lettered_with_a_reason", NET_RECEIVERS
    ),
    "dead letters with a reason": _azures(
        "messages_are_completed_abandoned_and_dead_lettered_with_a_reason", NET_RECEIVERS
    ),
    "locks that are renewed": _azures("a_lock_is_renewed_and_a_lost_one_is_not", NET_PROCESSORS),
    "peeking": _azures("peeked_messages_stay", NET_RECEIVERS),
    "scheduling and cancelling": _azures("messages_are_scheduled_and_cancelled", NET_SENDERS),
    "scheduling in a topic": dict.fromkeys(
        AZURES[:2], _azure_at("sdks", "messages_are_scheduled_in_a_topic_and_cancelled")
    ),
    "deferred messages": _azures("a_deferred_message_is_received_by_its_number_and_once", NET_RECEIVERS),
    "duplicate detection": _azures("of_messages_with_one_id_the_first_is_stored", NET_COUNTS),
    "sessions by their id": _azures(SESSION, NET_SESSIONS),
    "the next available session": _azures(SESSION, NET_WOLVERINE),
    "locks of sessions that are renewed": _azures(SESSION, NET_SESSIONS),
    "states of sessions": _azures(SESSION, NET_SESSIONS),
    "lists of sessions": {
        AZURES[0]: _azure_at("sessions", "sessions_are_listed"),
        AZURES[2]: _azure_at("sdks", SESSION),
    },
    "topics and subscriptions": _azures(
        "a_subscription_gets_what_a_topic_is_sent_and_has_dead_letters", NET_WOLVERINE
    ),
    "keys and rights": _azures("who_may_not_send_is_refused", NET_SENDERS),
    "WebSocket": _azures("messages_pass_over_a_websocket"),
    "a broker that is killed": _azures("sends_and_receives_go_on_over_a_kill_of_the_broker"),
    "messages of the clients for the other languages": dict.fromkeys(AZURES, _azure_at("sdks", PAIRS)),
    "transactions at one shard": {
        AZURES[3]: _azure_at("sdks", "what_is_done_in_a_transaction_takes_effect_with_its_commit"),
        NET: _net(NET_TRANSACTIONS),
    },
    "deferring in a transaction": {
        AZURES[3]: _azure_at("sdks", "a_message_is_deferred_by_the_commit_of_a_transaction")
    },
    "deferred messages in a transaction": {
        AZURES[3]: _azure_at(
            "sdks", "messages_received_by_their_numbers_are_settled_by_the_commit_of_a_transaction"
        ),
        NET: _net(NET_TRANSACTIONS),
    },
    "sessions in a transaction": {
        AZURES[3]: _azure_at("sdks", "a_session_is_settled_and_sent_to_in_a_transaction"),
        NET: _net(NET_TRANSACTIONS),
    },
    "handlers that a client calls": {
        **dict.fromkeys((AZURES[1], AZURES[3]), _azure_at("sdks", "a_processor_completes_and_abandons")),
        NET: _net(NET_PROCESSORS),
    },
}
FRAMEWORKS: Final = ("Spring JMS 7", "Apache Camel 4")
ON_JMS: Final[Mapping[str, Mapping[str, Proof]]] = {
    "send, receive, browse": {
        FRAMEWORKS[0]: _jms("Frameworks", "a_template_of_spring_sends_receives_browses_and_selects"),
        FRAMEWORKS[1]: _jms("Frameworks", "a_route_of_camel_takes_messages_from_queue_to_queue"),
    },
    "containers with several consumers": {
        FRAMEWORKS[0]: _jms(
            "Frameworks", "containers_of_spring_receive_everything_once_and_again_what_fails"
        ),
        FRAMEWORKS[1]: _jms("Frameworks", "a_route_of_camel_takes_messages_from_queue_to_queue"),
    },
    "requests and answers": {
        FRAMEWORKS[0]: _jms("Frameworks", "a_request_through_spring_is_answered_by_a_container"),
        FRAMEWORKS[1]: _jms(
            "Frameworks", "a_route_of_camel_answers_requests_over_temporary_and_named_queues"
        ),
    },
    "durable and shared subscriptions": {
        FRAMEWORKS[0]: _jms("Frameworks", "containers_of_spring_subscribe_durably_and_share"),
        FRAMEWORKS[1]: _jms("Frameworks", "a_topic_of_camel_reaches_every_route"),
    },
    "transactions at one shard": {
        FRAMEWORKS[0]: _jms("Transactions", "a_transaction_of_spring_commits_and_rolls_back")
    },
    "delays and time to live": {FRAMEWORKS[0]: _jms("Frameworks", "a_template_of_spring_delays_and_expires")},
}
HEAD = """# Which client does what

Each word in these tables stands for a test that runs with every change of the broker; the number in a
cell is the number of the test in the list below. *refused* means that the broker or the client refuses it
with an error that names it. An empty cell means that the feature is not tested, not that it does not work.
*by policy* means that the queue needs a [policy](../operate/policies.md) for it.

fe2o3-amqp for Rust takes minutes to compile and is among the long tests of `make soak`,
`tests/interop/test_fe2o3_amqp.py`: order, types, large messages, outcomes, credit, transactions,
messages that are acquired in one, a link that is resumed, users.

The AMQP client of Vert.x 4.5, by which programs of Quarkus and SmallRye connect, is tried with their
default options in `tests/interop/test_vertx.py`: prefetching receivers that close, outcomes, requests.
"""


def _table(
    title: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, Proof]], seen: dict[str, int]
) -> str:
    text = f"| {title} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
    for feature, proofs in rows.items():
        unknown = proofs.keys() - set(columns)
        if unknown:
            raise ValueError(f"{feature}: expected columns of {columns}, found {sorted(unknown)}")
        cells = []
        for column in columns:
            proof = proofs.get(column)
            number = 0 if proof is None else seen.setdefault(proof.test, len(seen) + 1)
            cells.append("" if proof is None else f"{proof.word} ({number})")
        text += f"| {feature} | {' | '.join(cells)} |\n"
    return text


def page() -> str:
    """The whole page."""
    seen: dict[str, int] = {}
    text = HEAD + "\n## Clients\n\n" + _table("", CLIENTS, TABLE, seen)
    text += "\n## Clients of Azure Service Bus\n\n" + _table("", AZURES, ON_AZURE, seen)
    text += "\n## On top of Qpid JMS\n\n" + _table("", FRAMEWORKS, ON_JMS, seen)
    text += "\n## Tests\n\n" + "".join(f"{number}. `{test}`\n" for test, number in seen.items())
    return text


def proofs() -> Iterable[Proof]:
    """Every cell."""
    for rows in (TABLE, ON_AZURE, ON_JMS):
        for cells in rows.values():
            yield from cells.values()


def problem_of(proof: Proof) -> str:
    """Why a cell is not true: its test is missing, or does not run; empty where it is."""
    file, _, name = proof.test.partition("::")
    path = ROOT / file
    if not path.is_file():
        return f"{proof.test}: there is no such file"
    source = path.read_text()
    if path.suffix == ".java":
        waiting = re.search(r"^WAITING = frozenset\(\{(.*?)\}\)", (ROOT / NOT_RUN).read_text(), re.M | re.S)
        if waiting is not None and f'"{path.name}"' in waiting[1]:
            return f"{proof.test}: {NOT_RUN} does not run the laws of this file"
        return "" if re.search(rf"@Law\s+void {name}\(", source) else f"{proof.test}: there is no such law"
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            marks = [ast.unparse(each) for each in node.decorator_list]
            skipped = [mark for mark in marks if re.match(r"pytest\.mark\.(skip|xfail)", mark)]
            return f"{proof.test}: it has the mark {skipped[0]}" if skipped else ""
    return f"{proof.test}: there is no such test"


if __name__ == "__main__":
    wrong = [problem for problem in map(problem_of, proofs()) if problem]
    if wrong:
        sys.exit("\n".join(wrong))
    PAGE.write_text(page())
