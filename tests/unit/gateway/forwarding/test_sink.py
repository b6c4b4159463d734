"""Letters: what stays of a message that is moved, and what a dead letter forgets that is redriven."""

from typing import Any

from lightrail.amqp.sections import decode_annotations, decode_header
from lightrail.gateway.forwarding.sink import dead_letter_source, due, moved, redriven
from lightrail.shard_client.receiving.queue_consumer import Delivery
from tests.support.amqp.letters import dead_letter, message


def delivery(data: bytes, **other: int) -> Delivery:
    fields: dict[str, Any] = {"attempts": 3, "expires_at_ms": 0, "enqueued_at_ms": 5, "message_format": 0}
    fields |= other
    return Delivery(1, 0, 9, message=data, **fields)


def test_a_moved_message_keeps_every_byte_and_what_its_sender_said_of_keeping_it() -> None:
    data = message(b"x", durable=True, priority=7, ttl=50)
    letter = moved(delivery(data, expires_at_ms=777))
    assert letter == (data, True, 7, 777, 0)
    assert moved(delivery(message(b"x", durable=False))).durable is False


def test_a_message_that_can_not_be_read_is_kept_as_well_as_anything() -> None:
    for data, message_format in ((b"\x00\x53", 0), (b"\x00\x53\x70\xc0", 0), (b"no sections", 5)):
        broken = delivery(data, message_format=message_format)
        assert moved(broken) == (data, True, 4, 0, message_format)
        assert redriven(broken, 1_000) == (data, True, 4, 0, message_format)
        assert dead_letter_source(broken) is None


def test_what_its_queue_has_on_disk_goes_on_as_a_durable_message() -> None:
    data = message(b"x", durable=False)
    for is_stored in (False, True):
        found = delivery(data, is_stored=is_stored)
        assert moved(found).durable == due(found, 0).durable == redriven(found, 0).durable == is_stored
    assert moved(delivery(message(b"x", durable=True))).durable


def test_a_redriven_message_keeps_its_history_and_begins_anew() -> None:
    data = dead_letter(b"x", "q", delivery_count=4, ttl=50, priority=2)
    assert dead_letter_source(delivery(data)) == "q"
    letter = redriven(delivery(data), 1_000)
    assert (letter.durable, letter.priority, letter.expires_at_ms) == (True, 2, 1_050)
    assert decode_header(letter.message).delivery_count == 0
    assert decode_annotations(letter.message) == {
        "x-opt-dead-letter-condition": "app:bad",
        "x-opt-dead-letter-description": "the first error",
        "x-opt-dead-letter-count": 2,
        "x-own": 5,
    }
    assert letter.message.endswith(message(b"x")[-4:])


def test_a_message_without_annotations_of_its_own_has_none_after_a_redrive() -> None:
    plain = message(b"x")
    annotated = message(b"x", annotations={"x-opt-dead-letter-source": "q", "x-opt-dead-letter-time": 5})
    assert redriven(delivery(annotated), 0).message == redriven(delivery(plain), 0).message
