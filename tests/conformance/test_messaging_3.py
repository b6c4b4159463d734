"""Messaging (part 3): delivery states 3.4, sources and targets 3.5, what a redelivered header says 3.2.1."""

from typing import Any

import pytest

from lightrail.amqp.decoder import decode
from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Detach,
    Disposition,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    TransactionalState,
)
from lightrail.amqp.sections import decode_header, encode_header, scan
from lightrail.amqp.values import Described, Symbol, ULong
from tests.support.amqp.frame_peer import Peer, frame, receiver, transfers, value

FAILED = Modified(delivery_failed=True)


def fetched(peer: Peer, queue: str, count: int = 1, **fields: Any) -> None:
    """The messages value(0), value(1) ... are in the queue and delivered, unsettled, on handle 0."""
    peer.put(queue, *(value(number) for number in range(count)))
    peer.attach_receiver(queue, **fields)
    peer.flow(count)
    for number in range(count):
        assert peer.delivery()[1] == value(number)


def settle(peer: Peer, state: Any, first: int = 0, last: int | None = None) -> None:
    peer.write(Disposition(role=True, first=first, last=last, settled=True, state=state))


def rest(peer: Peer, queue: str, handle: int = 5, **fields: Any) -> list[tuple[int, bytes]]:
    """What the queue holds: delivery-count and the message without its header."""
    peer.attach_receiver(queue, handle=handle, name=f"rest {handle}", **fields)
    peer.flow(100, handle=handle, drain=True)
    found: list[tuple[int, bytes]] = []
    while True:
        arrived = peer.read()
        if type(arrived.body) is Flow:
            return found
        header = scan(arrived.payload).header
        body = arrived.payload[header[1] :] if header else arrived.payload
        found.append((decode_header(arrived.payload).delivery_count or 0, body))


def notes(message: bytes) -> dict[str, object]:
    area = scan(message).message_annotations
    assert area is not None
    section, _ = decode(message, *area)
    assert isinstance(section, Described)
    return {str(key): each for key, each in section.value.items()}


# --- 3.4 delivery states ---------------------------------------------------------------------------------


def test_3_4_1_received_is_not_an_outcome(begun: Peer, queue: str) -> None:
    """The receiver says how far it has come; the delivery goes on as if it had not."""
    fetched(begun, queue)
    begun.write(
        Disposition(role=True, first=0, settled=False, state=Received(section_number=0, section_offset=0))
    )
    begun.nothing_before_echo()
    assert rest(begun, queue) == []
    settle(begun, Accepted())
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    assert rest(begun, queue, 6) == []


def test_3_4_an_unsettled_disposition_without_a_state_changes_nothing(begun: Peer, queue: str) -> None:
    fetched(begun, queue)
    begun.write(Disposition(role=True, first=0, settled=False))
    begun.nothing_before_echo()
    assert rest(begun, queue) == []
    settle(begun, Released())
    begun.flow(1, 1)
    assert begun.delivery()[1] == value(0)


@pytest.mark.parametrize("settled", [True, False])
def test_3_4_2_accepted_removes(begun: Peer, queue: str, settled: bool) -> None:
    """Not settled by the receiver, it is settled by the broker (2.6.12)."""
    fetched(begun, queue, 2)
    begun.write(Disposition(role=True, first=0, last=1, settled=settled, state=Accepted()))
    if not settled:
        answer = begun.expect(Disposition)
        assert (answer.role, answer.first, answer.last, answer.settled) == (False, 0, 1, True)
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    assert rest(begun, queue) == []


def test_3_4_3_rejected_goes_to_the_dead_letter_queue(begun: Peer, queue: str) -> None:
    fetched(begun, queue, 2)
    error = AmqpError(condition=Symbol("example:why"), description="because", info={Symbol("k"): 1})
    settle(begun, Rejected(error=error), 0)
    settle(begun, Rejected(), 1)
    begun.attach_receiver(f"{queue}/$dlq", handle=1)
    begun.flow(2, handle=1)
    first, second = begun.delivery()[1], begun.delivery()[1]
    assert first.endswith(value(0))
    assert second.endswith(value(1))
    said = notes(first)
    assert said["x-opt-dead-letter-reason"] == "rejected"
    assert said["x-opt-dead-letter-condition"] == "example:why"
    assert said["x-opt-dead-letter-description"] == "because"
    assert "x-opt-dead-letter-condition" not in notes(second)
    assert rest(begun, queue) == []


def test_3_4_4_released_comes_back_to_its_position(begun: Peer, queue: str) -> None:
    fetched(begun, queue, 3)
    settle(begun, Released(), 1)
    settle(begun, Released(), 0)
    assert rest(begun, queue) == [(0, value(0)), (0, value(1))]


def test_3_4_5_modified_counts_when_the_delivery_failed(begun: Peer, queue: str) -> None:
    fetched(begun, queue, 3)
    settle(begun, Modified(delivery_failed=True), 0)
    settle(begun, Modified(delivery_failed=False), 1)
    settle(begun, Modified(), 2)
    assert rest(begun, queue) == [(1, value(0)), (0, value(1)), (0, value(2))]


def test_3_4_5_modified_undeliverable_here_bars_this_link_alone(begun: Peer, queue: str) -> None:
    fetched(begun, queue)
    settle(begun, Modified(undeliverable_here=True))
    begun.flow(1, 1, drain=True)
    assert begun.expect(Flow).link_credit == 0
    assert rest(begun, queue) == [(0, value(0))]


def test_3_4_5_modified_annotations_are_merged_and_the_rest_is_kept(begun: Peer, queue: str) -> None:
    annotated = b"\x00\x53\x72\xc1\x0f\x04\xa3\x03x-a\x54\x01\xa3\x03x-b\x54\x02" + value("body")
    begun.put(queue, annotated)
    begun.attach_receiver(queue)
    begun.flow(1)
    assert begun.delivery()[1] == annotated
    settle(begun, Modified(message_annotations={Symbol("x-b"): 3, Symbol("x-c"): "new"}))
    begun.flow(1, 1)
    _, again = begun.delivery()
    assert notes(again) == {"x-a": 1, "x-b": 3, "x-c": "new"}
    assert again.endswith(value("body"))


def test_3_2_1_a_redelivered_header_keeps_what_it_said(begun: Peer, queue: str) -> None:
    header = decode_header(b"\x00\x53\x70\xc0\x0a\x04\x41\x50\x07\x70\x00\x01\x00\x00\x41")
    begun.put(queue, encode_header(header) + value("x"))
    begun.attach_receiver(queue)
    begun.flow(1)
    begun.delivery()
    settle(begun, FAILED)
    begun.flow(1, 1)
    again = decode_header(begun.delivery()[1])
    assert (again.durable, again.priority, again.delivery_count) == (True, 7, 1)
    assert again.first_acquirer is False
    assert again.ttl is not None
    assert 0 < again.ttl <= 65_536


def test_4_an_outcome_in_an_unknown_transaction_detaches(begun: Peer, queue: str) -> None:
    """What was meant to be provisional must not happen."""
    fetched(begun, queue)
    settle(begun, TransactionalState(txn_id=b"none", outcome=Accepted()))
    begun.error_of(Detach, "amqp:transaction:unknown-id")
    begun.write(Detach(handle=0, closed=True))
    assert rest(begun, queue) == [(1, value(0))]


# --- 3.5.3 default-outcome -------------------------------------------------------------------------------

DEFAULTS = {
    "none": (None, [(1, value(0))], 0),
    "released": (Released(), [(0, value(0))], 0),
    "modified": (Modified(), [(0, value(0))], 0),
    "modified-failed": (FAILED, [(1, value(0))], 0),
    "accepted": (Accepted(), [], 0),
    "rejected": (Rejected(), [], 1),
}


DECIDED = ("accepted", "rejected")
"""Defaults by which the client has decided what becomes of its deliveries at the end of the link."""


@pytest.mark.parametrize("how", ["settled", "detached", "disconnected"])
@pytest.mark.parametrize("name", DEFAULTS)
def test_3_5_3_default_outcome(begun: Peer, queue: str, name: str, how: str) -> None:
    """What becomes of a delivery that is settled without a state, or whose link ends (ADR 5)."""
    outcome, left, dead = DEFAULTS[name]
    if how == "disconnected" or (how == "detached" and name not in DECIDED):
        left, dead = [(int(how == "disconnected"), value(0))], 0
    address = "{}:{}".format(*begun.socket.getpeername())
    with Peer(address) as other:
        other.open()
        other.begin()
        fetched(other, queue, source=Source(address=queue, default_outcome=outcome))
        if how == "settled":
            settle(other, None)
        if how == "disconnected":
            other.socket.close()
        else:
            other.write(Detach(handle=0, closed=True))
            other.expect(Detach)
        if left:
            begun.attach_receiver(queue)
            begun.flow(1)
            message = begun.delivery()[1]
            assert message.endswith(left[0][1])
            assert (decode_header(message).delivery_count or 0) == left[0][0]
        elif dead:
            begun.attach_receiver(f"{queue}/$dlq")
            begun.flow(1)
            assert begun.delivery()[1].endswith(value(0))
        else:
            assert rest(begun, queue) == []


def test_3_5_3_an_unknown_outcome_counts_as_none(begun: Peer, queue: str) -> None:
    fetched(begun, queue, source=Source(address=queue, default_outcome=Released()))
    fields = b"\x41\x43\x40\x41\x00\x80\x00\x00\x12\x34\x00\x00\x00\x01\x45"
    begun.send(frame(b"\x00\x53\x15\xc0" + bytes([len(fields) + 1]) + b"\x05" + fields))
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    assert rest(begun, queue) == [(0, value(0))]


# --- 3.5 sources and targets -----------------------------------------------------------------------------


def test_3_5_3_filters_that_are_not_applied_are_left_out(begun: Peer, queue: str) -> None:
    begun.put(queue, value(1))
    unknown = Described(Symbol("example:no-such-filter"), "colour = 'red'")
    source = Source(address=queue, filter={Symbol("unknown"): unknown, Symbol("none"): None})
    answer = begun.attach_receiver(queue, source=source)
    assert isinstance(answer.source, Source)
    assert answer.source.filter is None
    begun.flow(1)
    assert begun.delivery()[1] == value(1)


def test_3_5_3_filters_that_are_applied_are_in_the_answer(begun: Peer, queue: str) -> None:
    selector = Described(ULong(0x0000468C00000004), "colour = 'red'")
    unknown = Described(Symbol("example:no-such-filter"), "colour = 'red'")
    source = Source(address=queue, filter={Symbol("selector"): selector, Symbol("unknown"): unknown})
    answer = begun.attach_receiver(queue, source=source)
    assert isinstance(answer.source, Source)
    assert answer.source.filter == {Symbol("selector"): selector}


def test_3_5_3_a_filter_with_an_error_refuses_the_link(begun: Peer, queue: str) -> None:
    selector = Described(ULong(0x0000468C00000004), "colour = ")
    begun.write(receiver(queue, source=Source(address=queue, filter={Symbol("selector"): selector})))
    begun.expect_refusal("amqp:invalid-field")


def test_3_5_3_distribution_mode_copy_leaves_messages(begun: Peer, queue: str) -> None:
    begun.put(queue, *(value(number) for number in range(3)))
    source = Source(address=queue, distribution_mode=Symbol("copy"))
    answer = begun.attach_receiver(queue, source=source)
    assert isinstance(answer.source, Source)
    assert answer.source.distribution_mode == "copy"
    begun.flow(10)
    assert [begun.delivery()[1] for _ in range(3)] == [value(number) for number in range(3)]
    for state in (Accepted(), Rejected(), FAILED):
        settle(begun, state, 0, 2)
    assert rest(begun, queue) == [(0, value(number)) for number in range(3)]
    assert rest(begun, f"{queue}/$dlq", 6) == []


def test_3_5_3_a_browser_sees_what_comes(begun: Peer, queue: str) -> None:
    source = Source(address=queue, distribution_mode=Symbol("copy"))
    begun.attach_receiver(queue, source=source)
    begun.flow(10)
    for number in range(3):
        begun.put(queue, value(number))
        assert begun.delivery()[1] == value(number)


def test_3_5_3_what_is_asked_for_is_echoed(begun: Peer, queue: str) -> None:
    outcomes = [Symbol("amqp:accepted:list"), Symbol("amqp:released:list")]
    source = Source(address=queue, outcomes=outcomes, default_outcome=Released())
    answer = begun.attach_receiver(queue, source=source)
    assert isinstance(answer.source, Source)
    assert answer.source.outcomes == outcomes
    assert answer.source.default_outcome == Released()


@pytest.mark.parametrize(
    "form", ["{}", "/{}", "amqp://example.com/{}", "amqps://example.com:5671/{}", "amqp:///{}"]
)
def test_3_5_addresses_of_one_queue(begun: Peer, queue: str, form: str) -> None:
    begun.attach_sender(form.format(queue.replace("q", "%71")))
    begun.send(transfers(0, [value(1)], settled=True))
    begun.attach_receiver(queue, handle=1)
    begun.flow(1, handle=1)
    assert begun.delivery()[1] == value(1)


def test_3_5_the_address_is_echoed_as_it_was_asked_for(begun: Peer, queue: str) -> None:
    address = f"amqp://example.com/{queue}"
    answer = begun.attach_receiver(address)
    assert isinstance(answer.source, Source)
    assert answer.source.address == address


def test_3_5_4_queues_are_apart(begun: Peer, queue: str) -> None:
    begun.put(f"{queue}/a", value("a"))
    begun.put(f"{queue}/b", value("b"))
    assert rest(begun, f"{queue}/b", 1) == [(0, value("b"))]
    assert rest(begun, f"{queue}/a", 2) == [(0, value("a"))]
    assert rest(begun, f"{queue}/A", 3) == []


def test_3_5_a_null_terminus_of_the_other_side_is_fine(begun: Peer, queue: str) -> None:
    """A receiver may leave its target away, a sender its source."""
    begun.attach_receiver(queue, handle=0, target=None)
    begun.attach_sender(queue, handle=1, source=None)
    begun.send(transfers(1, [value(1)]))
    assert begun.expect(Disposition).settled is True


def test_3_5_links_of_one_queue_share_its_messages(begun: Peer, queue: str) -> None:
    for handle in range(4):
        begun.attach_receiver(queue, handle=handle)
        begun.flow(5, handle=handle)
    begun.put(queue, *(value(number) for number in range(20)))
    by_handle: dict[int, int] = {}
    seen = []
    for _ in range(20):
        transfer, message = begun.delivery()
        by_handle[transfer.handle] = by_handle.get(transfer.handle, 0) + 1
        seen.append(message)
    assert set(by_handle.values()) == {5}
    assert sorted(seen) == sorted(value(number) for number in range(20))
