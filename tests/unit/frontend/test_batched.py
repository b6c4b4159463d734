"""Batched messages (format 0x80013700): each becomes many, and the transfer has one outcome."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.composite import write_composite
from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.amqp.performatives import Modified, Rejected
from lightrail.amqp.sections import Header, Properties, encode_header
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.batched import (
    BATCHED,
    BATCHED_EXPIRY_SPAN_MS,
    BATCHED_MESSAGES_MAX,
    messages,
    runs,
    unpacked,
)
from lightrail.model import conditions
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import ENQUEUE_ENDS, HEADER, WHOLE, Kind
from tests.support.amqp.frontend_fakes import Said
from tests.unit.amqp.peer import data
from tests.unit.frontend.test_transfers import NOW_MS, Rig


def batch(*contents: bytes, before: bytes = b"") -> bytes:
    return before + b"".join(map(data, contents))


def send(rig: Rig, *payloads: bytes, settled: bool = False) -> int:
    first = rig.next_id
    rig.next_id += len(payloads)
    rig.link.credit -= len(payloads)
    event = Transfers(rig.link, first, list(payloads), settled, BATCHED)  # type: ignore[arg-type]
    rig.producer.transfers(event, NOW_MS)
    return first


def stored(said: Said) -> list[bytes]:
    """The messages of an ENQUEUE."""
    count = HEADER.unpack_from(said.part)[5]
    ends = memoryview(said.part)[ENQUEUE_ENDS : ENQUEUE_ENDS + 4 * count].cast("I")
    blob = said.part[ENQUEUE_ENDS + 4 * count :]
    return [blob[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def expiring(ms: int) -> bytes:
    return write_composite(Properties(absolute_expiry_time=NOW_MS + ms)) + data(b"x")


def ends(rig: Rig) -> list[list[bytes]]:
    return [stored(said) for said in rig.shard.take(Kind.ENQUEUE)]


def test_each_data_section_is_a_message_and_what_describes_the_batch_is_dropped() -> None:
    rig = Rig()
    first, second = data(b"one"), encode_header(Header(durable=False)) + data(b"two")
    send(rig, batch(first, second, before=write_composite(Properties(message_id="of the batch"))))
    (said,) = rig.shard.take(Kind.ENQUEUE)
    assert stored(said) == [first, second]
    assert said.flags & WHOLE


def test_a_transfer_has_one_outcome() -> None:
    rig = Rig()
    id = send(rig, batch(*[data(b"x")] * 5), batch(data(b"y")))
    rig.producer.answered(1, 2)
    assert rig.link.settled == [(id, id + 1, ACCEPTED)]
    full = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "full")
    id = send(rig, batch(*[data(b"x")] * 5))
    rig.producer.refused(3, full)
    (ids, state) = rig.link.settled[-1][:2], rig.link.settled[-1][2]
    assert ids == (id, id)
    assert isinstance(state, Rejected)


def test_messages_of_different_expiry_are_several_frames_and_the_last_has_the_outcome() -> None:
    rig = Rig()
    near = BATCHED_EXPIRY_SPAN_MS
    id = send(rig, batch(expiring(0), expiring(near), expiring(near + 1), expiring(near + 2)))
    assert [len(each) for each in ends(rig)] == [2, 2]
    rig.producer.answered(1, 1)
    assert rig.link.settled == []
    rig.producer.answered(2, 1)
    assert rig.link.settled == [(id, id, ACCEPTED)]


def test_a_transfer_of_several_frames_is_never_released() -> None:
    """One of the frames before may be stored."""
    rig = Rig()
    id = send(rig, batch(data(b"x"), encode_header(Header(durable=True)) + data(b"y")))
    rig.producer.timed_out()
    (first, last, state) = rig.link.settled[-1]
    assert (first, last) == (id, id)
    assert isinstance(state, Modified)


def test_a_run_expires_with_its_last_message() -> None:
    payload = batch(expiring(300), expiring(700), expiring(500))
    (run,) = runs(Transfers(None, 0, [], False), 0, payload, NOW_MS, by_priority=False)  # type: ignore[arg-type]
    assert run.event.absolute_expiry_ms == NOW_MS + 700


@pytest.mark.parametrize(
    ("payload", "condition", "description"),
    [
        (b"", conditions.DECODE_ERROR, "at least one message"),
        (write_composite(Properties(message_id="m")), conditions.DECODE_ERROR, "at least one message"),
        (b"\x00\x53\x75\x40", conditions.DECODE_ERROR, "a binary in a data section"),
        (b"\x00\x53\x75\xa0\x09abc", conditions.DECODE_ERROR, "can't be read"),
        (b"\x00\x53\x24\x45", conditions.DECODE_ERROR, "a section of a batch at offset 0"),
        (b"hello", conditions.DECODE_ERROR, "a section of a batch at offset 0"),
        (batch(b"no message"), conditions.DECODE_ERROR, "message 0 of the batch"),
        (
            batch(*[data(b"")] * (BATCHED_MESSAGES_MAX + 1)),
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"at most {BATCHED_MESSAGES_MAX} messages",
        ),
    ],
    ids=["empty", "no data", "null", "cut", "no section", "text", "inside", "too many"],
)
def test_what_is_no_batch_is_refused_whole(payload: bytes, condition: str, description: str) -> None:
    rig = Rig()
    id = send(rig, payload)
    (first, last, state) = rig.link.settled[-1]
    assert (first, last, str(state.error.condition)) == (id, id, condition)
    assert description in str(state.error.description)
    assert not rig.shard.take(Kind.ENQUEUE)


def test_the_longest_batch_is_stored() -> None:
    rig = Rig()
    send(rig, batch(*[data(b"")] * BATCHED_MESSAGES_MAX))
    assert list(map(len, ends(rig))) == [BATCHED_MESSAGES_MAX]


def test_a_settled_transfer_that_is_no_batch_ends_its_link() -> None:
    rig = Rig()
    send(rig, b"hello", settled=True)
    assert rig.connection.lost[-1][0] == conditions.DECODE_ERROR


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_are_refused(payload: bytes) -> None:
    found: list[bytes] = []
    with suppress(ConditionError):
        found += messages(payload)
    assert sum(map(len, found)) <= len(payload)


def test_what_is_sent_in_a_transaction_is_taken_apart_too() -> None:
    payloads = [batch(data(b"one"), data(b"two")), b"hello"]
    event = Transfers(None, 0, payloads, False, BATCHED)  # type: ignore[arg-type]
    (error, run), (refusal, _) = unpacked(event, NOW_MS)
    assert error is None
    assert (run.payloads, run.message_format) == ([data(b"one"), data(b"two")], 0)
    assert refusal is not None
    assert refusal.condition == conditions.DECODE_ERROR
