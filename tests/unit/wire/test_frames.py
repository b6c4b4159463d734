"""Frames of the wire: what is packed is read again, and the bytes are those that the page draws."""

import pathlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.wire.bodies import (
    ConsumerOpen,
    Hello,
    ProducerOpen,
    Refusal,
    SettleDetail,
    Targets,
    Welcome,
    encode_request,
)
from lightrail.wire.columns import decode_tags, encode_ranges, encode_suspended, encode_tags
from lightrail.wire.frames import (
    AFRESH,
    ASKED,
    CLOCK_BEHIND_MS,
    CLOSED,
    DELIVER_COLUMNS,
    DELIVER_ENDS,
    DRAIN,
    DURABILITY_SHIFT,
    DURABLE,
    ENQUEUE_COLUMNS,
    ENQUEUE_ENDS,
    EXACT,
    HEADER,
    HEADER_SIZE,
    HELD,
    KEPT,
    MORE,
    SEQUENCE,
    TIMED,
    UNCERTAIN,
    VERSION,
    Kind,
    OutcomeCode,
    WireError,
    deliver,
    delivered_at,
    enqueue,
    frame,
    is_stored,
)

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "wire" / "frames-v5.txt"

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def test_sizes_are_those_of_the_page() -> None:
    assert (HEADER_SIZE, ENQUEUE_ENDS, DELIVER_ENDS) == (24, 40, 64)


@given(st.sampled_from(list(Kind)), st.integers(0, 255), U32, U32, U32, U64, st.binary(max_size=40))
def test_any_frame_is_read_again(
    kind: Kind, flags: int, epoch: int, link: int, count: int, number: int, body: bytes
) -> None:
    made = frame(kind, flags=flags, epoch=epoch, link=link, count=count, number=number, body=body)
    assert HEADER.unpack_from(made) == (kind, flags, 0, epoch, link, count, number)
    assert made[HEADER_SIZE:] == body
    assert made[0] == kind


@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=20),
    st.booleans(),
    st.booleans(),
    st.integers(0, 255),
    I64,
    U32,
)
def test_a_batch_is_read_again(
    messages: list[bytes], durable: bool, afresh: bool, priority: int, expires: int, message_format: int
) -> None:
    ends = array("I")
    for message in messages:
        ends.append((ends[-1] if ends else 0) + len(message))
    made = enqueue(
        5,
        6,
        7,
        ends.tobytes(),
        messages,
        durable=durable,
        afresh=afresh,
        priority=priority,
        expires_at_ms=expires,
        message_format=message_format,
        size=ends[-1],
    )
    flags = (DURABLE if durable else 0) | (AFRESH if afresh else 0)
    assert HEADER.unpack_from(made) == (Kind.ENQUEUE, flags, priority, 6, 5, len(messages), 7)
    assert ENQUEUE_COLUMNS.unpack_from(made, HEADER_SIZE) == (expires, message_format, ends[-1])
    base = ENQUEUE_ENDS + 4 * len(messages)
    column = memoryview(made)[ENQUEUE_ENDS:base].cast("I")
    starts = [0, *column[:-1]]
    assert [made[base + a : base + b] for a, b in zip(starts, column, strict=True)] == messages


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.data())
def test_a_slice_of_a_batch_is_read_again(messages: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(messages) - 1))
    last = data.draw(st.integers(first + 1, len(messages)))
    ends = array("I")
    for message in messages:
        ends.append((ends[-1] if ends else 0) + len(message))
    base = ends[first - 1] if first else 0
    blob = b"".join(messages)
    made = deliver(
        1,
        2,
        3,
        last - first,
        0x1_0009,
        4,
        5,
        6,
        7,
        8,
        base,
        ends[first:last],
        memoryview(blob)[base : ends[last - 1]],
        stored := data.draw(st.booleans()),
    )
    assert is_stored(made) == stored
    assert HEADER.unpack_from(made) == (Kind.DELIVER, TIMED | stored << 1, 9, 2, 1, last - first, 3)
    size = ends[last - 1] - base
    assert DELIVER_COLUMNS.unpack_from(made, HEADER_SIZE) == (4, 6, 7, 5, 8, base, size)
    at = DELIVER_ENDS + 4 * (last - first)
    column = memoryview(made)[DELIVER_ENDS:at].cast("I")
    starts = [base, *column[:-1]]
    assert [
        made[at + start - base : at + end - base] for start, end in zip(starts, column, strict=True)
    ] == messages[first:last]


@pytest.mark.parametrize(
    "body",
    [
        Hello(VERSION, "frontend-0", 2**32 - 1, 3),
        Welcome(VERSION, 1, 2, 3),
        ProducerOpen("ordérs/🚲"),
        ConsumerOpen("q", 5, True, True, True, -3, 1, False),
        SettleDetail("amqp:not-allowed", 'a "reason"', True, True, "c1"),
        Refusal("amqp:internal-error", ""),
    ],
)
def test_bodies_are_read_again(body: Hello) -> None:
    kind = type(body)
    assert kind.decode(body.encode()) == body
    assert kind.decode(memoryview(b"head" + body.encode())[4:]) == body


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"null", b'{"other":1}', b'"queue"', b"\xff"])
def test_a_body_of_another_layout_is_said_to_be_one(data: bytes) -> None:
    with pytest.raises(WireError, match="expected the JSON body of ProducerOpen"):
        ProducerOpen.decode(data)


def examples() -> dict[str, bytes]:
    """One frame of every kind."""
    ends = array("I", [3, 3, 5]).tobytes()
    detail = SettleDetail("amqp:not-allowed", "why", False, False, "")
    return {
        "HELLO": frame(Kind.HELLO, body=Hello(VERSION, "frontend-0", 7, 2).encode()),
        "PRODUCER_OPEN": frame(Kind.PRODUCER_OPEN, link=5, epoch=1, body=ProducerOpen("q").encode()),
        "PRODUCER_OPEN_DURABLE": frame(
            Kind.PRODUCER_OPEN,
            link=5,
            body=ProducerOpen("q", client_link="1" * 32, suspended_ms=60_000, durability=2).encode(),
        ),
        "PRODUCER_OPEN_USER": frame(
            Kind.PRODUCER_OPEN,
            link=5,
            body=ProducerOpen("q", client_link="1" * 32, suspended_ms=60_000, user="ann").encode(),
        ),
        "PRODUCER_CLOSE": frame(Kind.PRODUCER_CLOSE, link=5),
        "PRODUCER_ABANDON": frame(Kind.PRODUCER_ABANDON, link=5),
        "COUNT": frame(Kind.COUNT, number=77),
        "ENQUEUE": enqueue(
            5,
            1,
            9,
            ends,
            [b"abc", b"", b"de"],
            durable=True,
            afresh=True,
            priority=4,
            expires_at_ms=0x0102030405,
            message_format=6,
            size=5,
        ),
        "CONSUMER_OPEN": frame(Kind.CONSUMER_OPEN, link=6, epoch=1, body=ConsumerOpen("q", 2).encode()),
        "CONSUMER_OPEN_USER": frame(Kind.CONSUMER_OPEN, link=6, body=ConsumerOpen("q", user="ann").encode()),
        "CONSUMER_CLOSE": frame(Kind.CONSUMER_CLOSE, link=6),
        "CREDIT": frame(Kind.CREDIT, flags=DRAIN, link=6, epoch=1, number=100),
        "SETTLE": frame(Kind.SETTLE, flags=OutcomeCode.ACCEPTED, link=6, epoch=1, count=3, number=7),
        "SETTLE rejected": frame(
            Kind.SETTLE, flags=OutcomeCode.REJECTED, link=6, epoch=1, count=1, number=7, body=detail.encode()
        ),
        "PING": frame(Kind.PING),
        "GOODBYE": frame(Kind.GOODBYE),
        "WELCOME": frame(Kind.WELCOME, body=Welcome(VERSION, 0, 0xCAFE, 2).encode()),
        "PRODUCER_READY": frame(Kind.PRODUCER_READY, link=5),
        "ACCEPTED": frame(Kind.ACCEPTED, link=5, count=2, number=9),
        "REFUSED": frame(Kind.REFUSED, link=5, number=9, body=Refusal("amqp:internal-error", "why").encode()),
        "CONSUMER_READY": frame(Kind.CONSUMER_READY, link=6),
        "DELIVER": deliver(6, 1, 7, 2, 0x1_0C0D, 0x0A0B, 1, 0x0102, 0x0304, 6, 3, array("I", [3, 5]), b"de"),
        "DRAINED": frame(Kind.DRAINED, link=6, number=9),
        "GONE": frame(Kind.GONE, link=6, body=Refusal("amqp:resource-locked").encode()),
        "PONG": frame(Kind.PONG, number=0xCAFE),
        "ABSENT": frame(Kind.ABSENT),
        "REQUEST": frame(Kind.REQUEST, number=3, body=encode_request({"op": "purge", "queue": "q"})),
        "TARGETS": frame(Kind.TARGETS, link=5, number=2, body=Targets(["a", "b"]).encode()),
        "ROUTE": enqueue(
            5,
            2,
            9,
            array("I", [1, 3]).tobytes(),
            [b"a", b"bc"],
            durable=True,
            afresh=False,
            priority=4,
            expires_at_ms=0,
            message_format=0,
            size=3,
            kind=Kind.ROUTE,
        ),
        "RESPONSE": frame(Kind.RESPONSE, number=3, body=encode_request({"count": 1}, b"blob")),
        "STORED": frame(Kind.STORED, link=5, count=1, number=9, body=SEQUENCE.pack(77)),
        "GRANT": frame(Kind.GRANT, link=5, number=100),
        "MOVED": frame(Kind.MOVED, link=6, epoch=3),
        "BOUNCED": frame(
            Kind.BOUNCED,
            link=6,
            epoch=3,
            body=encode_request(
                {"queue": "q", "epoch": 3},
                frame(
                    Kind.SETTLE, flags=OutcomeCode.ACCEPTED, link=6, epoch=3, count=3, number=7, asked=ASKED
                ),
            ),
        ),
        "SETTLED": frame(Kind.SETTLED, flags=UNCERTAIN, link=6, count=3, number=7),
        "CREDIT_EXACT": frame(Kind.CREDIT, flags=EXACT, link=6, epoch=3, count=128, number=200),
        "CREDIT_MORE": frame(Kind.CREDIT, flags=EXACT | MORE, link=6, epoch=3, count=128, number=200),
        "LARGER": frame(Kind.LARGER, link=6, count=8_192, number=7),
        "ACCEPTED_HELD": frame(Kind.ACCEPTED, flags=HELD, link=5, count=2, number=9),
        "FREED": frame(Kind.FREED, link=5, count=256),
        "TAGS": frame(Kind.TAGS, link=5, count=2, number=9, body=encode_tags([b"a", b"bc"])),
        "FORGET": frame(Kind.FORGET, flags=CLOSED, link=5, count=1, body=encode_tags([b""])),
        "UNSETTLED": frame(Kind.UNSETTLED, flags=KEPT, link=5, count=1, body=encode_tags([b"abc"])),
        "UNSETTLED_DURABLE": frame(Kind.UNSETTLED, flags=KEPT | 2 << DURABILITY_SHIFT, link=5),
        "UNSETTLED_DELIVERIES": frame(
            Kind.UNSETTLED, link=6, body=encode_suspended(0x1_0000_0002, 9, [(3, 2), (7, 1)])
        ),
        "RESEND": frame(Kind.RESEND, link=6, epoch=3, body=encode_ranges([(3, 2), (7, 1)])),
        "RESENT": frame(Kind.RESENT, link=6, number=8),
        "SESSION": frame(Kind.SESSION, link=6, number=60_000, body=b"Anna"),
        "YIELD": frame(Kind.YIELD, link=6),
        "YIELDED": frame(Kind.YIELDED, link=6),
        "OUTCOME": frame(Kind.OUTCOME, flags=OutcomeCode.RELEASED, link=5, epoch=1, count=2, number=9),
    }


def golden() -> dict[str, bytes]:
    lines = [line.split("\t") for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    return {name: bytes.fromhex(data) for name, data in lines}


@given(at_ms=st.integers(0x1_0000, 1 << 48), late_ms=st.integers(-CLOCK_BEHIND_MS, 60_000))
def test_when_messages_were_handed_out_is_known_a_minute_later_and_by_a_clock_that_is_behind(
    at_ms: int, late_ms: int
) -> None:
    part = deliver(1, 2, 3, 1, at_ms, 4, 5, 6, 7, 8, 0, array("I", [1]), b"a")
    assert delivered_at(part, at_ms + late_ms) == at_ms


@given(at_ms=st.integers(1 << 24, 1 << 48), behind_ms=st.integers(CLOCK_BEHIND_MS, 1 << 20))
def test_by_a_clock_that_is_far_behind_a_lock_ends_too_soon_and_never_too_late(
    at_ms: int, behind_ms: int
) -> None:
    part = deliver(1, 2, 3, 1, at_ms, 4, 5, 6, 7, 8, 0, array("I", [1]), b"a")
    assert delivered_at(part, at_ms - behind_ms) <= at_ms


def test_a_delivery_of_a_former_version_counts_from_when_it_is_read() -> None:
    assert delivered_at(frame(Kind.DELIVER, link=1, count=1), 1_234_567) == 1_234_567


def test_the_bytes_of_every_kind_are_what_they_were() -> None:
    """A change here is a change of the wire: VERSION and docs/formats/wire.md go with it."""
    assert examples() == golden()
    assert {Kind(data[0]) for data in golden().values()} == set(Kind)


def test_the_page_names_every_kind_with_its_number() -> None:
    page = (GOLDEN.parents[3] / "docs" / "formats" / "wire.md").read_text()
    for kind in Kind:
        assert f"| {kind.value} | {kind.name} |" in page


@given(st.lists(st.binary(max_size=32)))
def test_tags_are_what_they_were(tags: list[bytes]) -> None:
    assert decode_tags(encode_tags(tags)) == tags


def test_tags_that_end_too_early_are_no_tags() -> None:
    with pytest.raises(WireError, match="expected a tag of 3 bytes, found 2"):
        decode_tags(b"\x01a\x03bc")
