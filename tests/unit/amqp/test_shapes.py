"""Learned shapes: reading by comparison gives what the complete decoder gives, whatever comes."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp import events, shapes
from lightrail.amqp.performatives import Transfer, encode_performative
from lightrail.amqp.receiver import SHAPES_PER_LINK_MAX
from lightrail.amqp.survey import survey
from lightrail.amqp.values import DecodeError
from tests.unit.amqp.messages import expiries
from tests.unit.amqp.peer import Peer, amqp, data, opened, transfer, unsettled_of

HEAD = b"\x00Sp\xc0\x02\x01A"
ANNOTATIONS = b"\x00Sr\xc1\x07\x02\xa3\x03x-a\x41"
PROPERTIES = b"\x00Ss\xc0\x05\x01\xa1\x02id"
EXPIRING = b"\x00Ss\xc0\x12\x09\x40\x40\x40\x40\x40\x40\x40\x40\x83" + (99).to_bytes(8, "big")
CREATED = b"\x00Ss\xc0\x15\x0a\xa1\x01i\x40\x40\x40\x40\x40\x40\x40\x40\x83" + (77).to_bytes(8, "big")
"""Properties with message-id and creation-time, no absolute-expiry-time."""


BY_SHAPES: Any = {"learn_shapes": True, "scans": False}


def told(found: list[Any]) -> list[Any]:
    """Events with the deliveries one by one, each with its own absolute-expiry-time."""
    result: list[Any] = []
    for event in found:
        if isinstance(event, events.Transfers):
            for index, (payload, expiry) in enumerate(zip(event.payloads, expiries(event), strict=True)):
                result.append(
                    (
                        event.link.name,
                        event.first_delivery_id + index,
                        payload,
                        event.settled,
                        event.message_format,
                        event.head,
                        expiry,
                    )
                )
        elif isinstance(event, events.Detached | events.Ended | events.Closed):
            result.append((type(event).__name__, str(event.error and event.error.condition)))
        else:
            result.append(type(event).__name__)
    return result


def pair(credit: int = 10_000, **fields: Any) -> tuple[Peer, Peer]:
    """Two peers in the same state, with and without learning; two incoming links each."""
    peers = (opened(**BY_SHAPES), opened(learn_shapes=False, scans=False))
    for peer in peers:
        peer.sender("a", 0, credit=credit, **fields)
        peer.sender("b", 300, credit=credit, **fields)
    return peers


def state_of(peer: Peer) -> list[Any]:
    session = peer.engine.sessions.get(0)
    if session is None:
        return []
    return [
        session.next_incoming_id,
        session.incoming_left,
        session.next_incoming_delivery,
        unsettled_of(session),
        [
            (link.name, link.state, link.credit, link.delivery_count, link.allowed)  # type: ignore[attr-defined]
            for link in session.links
        ],
    ]


# --- what is learned ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sections", [b"", HEAD, HEAD + ANNOTATIONS, PROPERTIES, CREATED, HEAD + ANNOTATIONS + PROPERTIES]
)
@pytest.mark.parametrize("first", [0, 100, 250, 300, 2**32 - 10])
def test_the_common_forms_are_learned(sections: bytes, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = opened(**BY_SHAPES)
    link = peer.sender()
    count = {"complete": 0}
    on_transfer = type(link).on_transfer

    def counted(*arguments: Any) -> None:
        count["complete"] += 1
        on_transfer(*arguments)

    monkeypatch.setattr(type(link), "on_transfer", counted)
    chunk = b"".join(amqp(transfer(first + number), sections + data(bytes(number))) for number in range(40))
    (event,) = peer.feed(chunk)
    assert len(event.payloads) == 40
    assert event.head == (HEAD if sections.startswith(HEAD) else b"")
    # Once, and again when ids outgrow their short form or wrap; the id 0 has a form of its own.
    assert count["complete"] <= 5


def test_headers_that_take_turns_are_learned_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = opened(**BY_SHAPES)
    link = peer.sender(credit=1_000)
    count = {"complete": 0}
    on_transfer = type(link).on_transfer

    def counted(*arguments: Any) -> None:
        count["complete"] += 1
        on_transfer(*arguments)

    monkeypatch.setattr(type(link), "on_transfer", counted)
    heads = [
        b"",
        HEAD,
        b"\x00Sp\x45",
        *(b"\x00Sp\xc0\x04\x02\x41\x50" + bytes([level]) for level in range(10)),
    ]
    chunk = b"".join(amqp(transfer(number), heads[number % 13] + data(b"x")) for number in range(1, 131))
    found = [event for event in peer.feed(chunk) if isinstance(event, events.Transfers)]
    assert [event.head for event in found] == [heads[number % 13] for number in range(1, 131)]
    assert count["complete"] == 13


def test_a_link_knows_no_more_headers_than_are_allowed() -> None:
    peer = opened(**BY_SHAPES)
    link = peer.sender()
    for number in range(100):
        peer.feed(amqp(transfer(number), b"\x00Sp\xc0\x04\x02\x41\x50" + bytes([number]) + data(b"x")))
    assert len(link.shapes) == SHAPES_PER_LINK_MAX


def test_messages_that_may_expire_are_never_read_by_comparison() -> None:
    fast, complete = pair()
    chunk = b"".join(
        amqp(transfer(number), (EXPIRING if number % 3 else PROPERTIES) + data(b"x"))
        for number in range(1, 30)
    )
    found = fast.feed(chunk)
    assert told(found) == told(complete.feed(chunk))
    assert {event.absolute_expiry_ms for event in found} == {None, 99}


def test_runs_of_one_size_agree_with_the_complete_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "UNIFORM_AFTER", 20)
    runs = {"matched": 0}
    take_runs = shapes._take_runs

    def counted(shape: Any, stream: bytes, position: int, *rest: Any) -> int:
        after = take_runs(shape, stream, position, *rest)
        runs["matched"] += after > position
        return after

    monkeypatch.setattr(shapes, "_take_runs", counted)
    fast, complete = pair()
    number = 900
    for turn in range(12):
        pieces = []
        for index in range(100):
            prefix = HEAD if turn % 4 else HEAD + PROPERTIES
            body = b"y" * (50 if (index % 37) or turn % 2 else 51)
            fields = {"settled": True} if turn == 5 and index == 50 else {}
            if turn == 7 and index == 60:
                number += 5
            pieces.append(amqp(transfer(number, **fields), prefix + data(body)))
            number += 1
        chunk = b"".join(pieces)
        assert told(fast.feed(chunk)) == told(complete.feed(chunk))
        assert state_of(fast) == state_of(complete)
    assert runs["matched"] >= 3


@pytest.mark.parametrize("credit", [30, 64, 65])
def test_runs_stop_where_credit_does(credit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "UNIFORM_AFTER", 10)
    fast, complete = pair(credit=20_000)
    for peer in (fast, complete):
        peer.feed(b"".join(amqp(transfer(number), data(b"x" * 9)) for number in range(300, 360)))
        for link in peer.engine.sessions[0].links:
            link.allowed = credit  # type: ignore[attr-defined]
    chunk = b"".join(amqp(transfer(number), data(b"x" * 9)) for number in range(360, 460))
    assert told(fast.feed(chunk)) == told(complete.feed(chunk))
    assert fast.hear() == complete.hear()


def test_runs_with_ids_of_one_byte_and_across_the_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "UNIFORM_AFTER", 10)
    for first in (1, 2**32 - 200):
        fast, complete = pair()
        for start in range(first, first + 400, 80):
            chunk = b"".join(amqp(transfer(number), data(b"x" * 9)) for number in range(start, start + 80))
            assert told(fast.feed(chunk)) == told(complete.feed(chunk))
            assert state_of(fast) == state_of(complete)


def test_properties_that_grow_past_eight_leave_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "UNIFORM_AFTER", 10)
    padding = b"\x00Ss\xc0\x12\x01\xa0\x0f" + b"i" * 15
    assert len(padding) == len(EXPIRING)
    fast, complete = pair()
    chunk = b"".join(
        amqp(transfer(number), (EXPIRING if number == 440 else padding) + data(b"x"))
        for number in range(300, 500)
    )
    for _ in range(2):
        assert told(fast.feed(chunk)) == told(complete.feed(chunk))


# --- the law --------------------------------------------------------------------------------------------

MESSAGES = st.builds(
    lambda head, middle, body: head + middle + body,
    st.sampled_from([b"", HEAD, b"\x00Sp\x45", b"\x00Sp\xc0\x04\x02\x41\x50\x09", b"\x00Sp\xc0\x04"]),
    st.sampled_from([b"", b"", ANNOTATIONS, PROPERTIES, EXPIRING, CREATED, ANNOTATIONS + PROPERTIES]),
    st.sampled_from([data(b"x" * 20), data(b"x" * 20), data(b"y" * 21), b"\x00Sw\x40", b"", b"garbage"]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 0, 300]),
        MESSAGES,
        st.sampled_from(
            [{}, {}, {}, {}, {"settled": True}, {"batchable": True}, {"more": True}, {"message_format": 1}]
        ),
        st.sampled_from([0, 0, 0, 0, 0, 0, 1, 200, -1]),
        st.sampled_from([None, None, None, b"", b"longer tag"]),
        st.integers(1, 8),
    ),
    max_size=40,
)


def conversation(steps: list[Any], first: int) -> bytes:
    """Transfer frames for the steps; mostly lawful."""
    pieces = []
    number = first
    partial: dict[int, bool] = {}
    for handle, message, fields, gap, tag, repeat in steps:
        for _ in range(repeat):
            if partial.get(handle):
                pieces.append(amqp(Transfer(handle=handle), b"rest"))
                partial[handle] = False
                continue
            number += gap
            body = transfer(number, handle, **fields)
            if tag is not None:
                body.delivery_tag = tag
            pieces.append(amqp(body, message))
            partial[handle] = bool(fields.get("more"))
            number += 1
    return b"".join(pieces)


@settings(max_examples=150, deadline=None)
@given(
    STEPS,
    st.sampled_from([0, 1, 240, 1000, 2**32 - 20]),
    st.lists(st.integers(1, 400), max_size=20),
    st.sampled_from([{}, {"rcv_settle_mode": 1}, {"snd_settle_mode": 0}]),
    st.sampled_from([10_000, 25]),
)
def test_with_and_without_shapes_the_same_is_told_wherever_the_input_is_cut(
    steps: list[Any], first: int, cuts: list[int], fields: dict[str, Any], credit: int
) -> None:
    stream = conversation(steps, first)
    fast, complete = pair(credit, **fields)
    expected = told(complete.feed(stream))
    found = []
    position = 0
    for cut in [*cuts, len(stream)]:
        found += told(fast.feed(stream[position : position + cut]))
        position += cut
    found += told(fast.feed(stream[position:]))
    assert found == expected
    assert state_of(fast) == state_of(complete)
    faults = [body for body in fast.hear() if getattr(body, "error", None)]
    assert faults == [body for body in complete.hear() if getattr(body, "error", None)]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_one_octet_changed_is_read_alike(draw: st.DataObject) -> None:
    stream = bytearray(conversation([(0, HEAD + data(b"x" * 20), {}, 0, None, 30)], 500))
    offset = draw.draw(st.integers(0, len(stream) - 1))
    stream[offset] = draw.draw(st.integers(0, 255))
    fast, complete = pair()
    assert told(fast.feed(bytes(stream))) == told(complete.feed(bytes(stream)))
    assert fast.hear_bytes() == complete.hear_bytes()


@pytest.mark.parametrize(
    "encode",
    [
        lambda body: b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x14" + body[3:],
        lambda body: b"\x00\xa3\x12amqp:transfer:list" + body[3:],
        lambda body: (
            body[:3] + b"\xd0" + (body[4] + 3).to_bytes(4, "big") + body[5].to_bytes(4, "big") + body[6:]
        ),
    ],
)
def test_other_encodings_of_a_transfer_mean_the_same(encode: Any) -> None:
    from lightrail.amqp import frames

    peer = opened(**BY_SHAPES)
    link = peer.sender()
    stream = b"".join(
        frames.frame(0, encode(encode_performative(transfer(number))) + data(b"x")) for number in range(1, 9)
    )
    assert peer.feed(stream) == [events.Transfers(link, 1, [data(b"x")] * 8, False)]


# --- the survey of a message ----------------------------------------------------------------------------


def test_the_survey_finds_head_prefix_and_properties() -> None:
    message = HEAD + ANNOTATIONS + PROPERTIES + data(b"x")
    found = survey(message)
    assert message[: found.head_end] == HEAD
    assert message[: found.prefix_end] == HEAD + ANNOTATIONS + b"\x00Ss\xc0"
    assert found.properties > 0
    assert not found.may_expire
    assert survey(EXPIRING).may_expire
    assert survey(b"").head_end == 0
    assert survey(HEAD).head_end == len(HEAD)


def test_the_survey_reads_long_descriptors() -> None:
    long = (
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70\xc0\x02\x01A"
        + b"\x00\xa3\x11amqp:data:binary "
        + b"\xa0\x00"
    )
    with pytest.raises(DecodeError):
        survey(long)
    named = b"\x00\xa3\x10amqp:header:list\x45" + b"\x00\xa3\x10amqp:data:binary\xa0\x00"
    found = survey(named)
    assert (found.head_end, found.prefix_end) == (20, 0)


@given(st.binary(max_size=40))
def test_the_survey_never_raises_anything_else(message: bytes) -> None:
    for start in (b"", HEAD, b"\x00Ss\xc0", b"\x00Sr\xd1"):
        with contextlib.suppress(DecodeError):
            survey(start + message)
