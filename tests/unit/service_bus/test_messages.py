"""Annotations of a broker in what senders wrote: clients of Service Bus read none of them as the broker's."""

from collections.abc import Mapping
from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.performatives import AmqpError, Rejected
from lightrail.amqp.sections import decode_annotations, decode_application_properties, with_annotations
from lightrail.amqp.values import Symbol
from lightrail.service_bus.messages import DEAD_LETTERED, annotated, annotations_of, with_reason

MESSAGE = b"\x00\x53\x75" + encode(b"hello")
SENDERS: dict[Any, Any] = {
    "x-opt-partition-key": "p",
    "x-opt-via-partition-key": "v",
    "x-opt-scheduled-enqueue-time": 5,
    "x-opt-own": 1,
}
FORGED: dict[Any, Any] = {
    "x-opt-sequence-number": 77,
    "x-opt-enqueue-sequence-number": 77,
    "x-opt-enqueued-time": 77,
    "x-opt-message-state": 77,
    "x-opt-locked-until": 77,
    "x-opt-lock-token": 77,
    "x-opt-partition-id": 77,
    "x-opt-deadletter-source": "forged",
    "x-opt-deadletter-reason": "forged",
    "x-opt-deadletter-description": "forged",
    "x-opt-dead-letter-source": "forged",
    "x-opt-dead-letter-condition": "forged",
    "x-opt-dead-letter-description": "forged",
    "x-opt-dead-letter-count": 77,
    "x-opt-dead-letter-hops": 77,
    "x-opt-transfer-hops": 77,
}


def sent(*notes: Mapping[Any, Any]) -> bytes:
    """A message as a sender wrote it."""
    return with_annotations(MESSAGE, {Symbol(name): value for each in notes for name, value in each.items()})


@pytest.mark.parametrize("is_subscription", [False, True])
def test_what_a_sender_forges_is_not_the_brokers(is_subscription: bool) -> None:
    notes: dict[Any, Any] = annotations_of(4, 9_000, is_subscription=is_subscription)
    found = annotated(sent(SENDERS, FORGED), notes)
    assert decode_annotations(found) == {**SENDERS, **notes}
    assert decode_application_properties(found) == {}


def test_what_only_its_sender_gives_stays_as_it_is() -> None:
    notes: dict[Any, Any] = annotations_of(4, 9_000)
    assert decode_annotations(annotated(sent(SENDERS), notes)) == {**SENDERS, **notes}


def test_a_dead_letter_has_its_source_and_no_history_that_its_copy_would_take_along() -> None:
    dead = {"x-opt-dead-letter-reason": Symbol("expired"), "x-opt-dead-letter-source": "q"}
    notes: dict[Any, Any] = annotations_of(4, 9_000)
    received = annotated(sent(FORGED, dead), notes)
    assert decode_annotations(received) == {**notes, "x-opt-deadletter-source": "q"}
    assert decode_application_properties(received)["DeadLetterReason"] == "TTLExpiredException"
    # Its copy, whose application properties the client removes, is no dead letter.
    again = annotated(sent(decode_annotations(received)), annotations_of(5, 9_500))
    assert decode_annotations(again) == annotations_of(5, 9_500)


def test_a_dead_letter_without_a_reason_has_none_of_a_senders_or_of_an_earlier_one() -> None:
    state = with_reason(Rejected(error=AmqpError(condition=Symbol(DEAD_LETTERED))))
    assert state.error is not None
    dead = {"x-opt-dead-letter-reason": Symbol("rejected")}
    found = annotated(sent(FORGED, state.error.info or {}, dead), annotations_of(0, 1))
    assert decode_application_properties(found) == {}
