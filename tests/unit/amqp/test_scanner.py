"""The scanner: compiled and interpreted, it gives what the complete decoder gives, whatever comes."""

import os
import random
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail import amqp as interpreted
from lightrail.amqp import compiled, events, reader, runs, tags
from lightrail.amqp.performatives import decode_performative
from lightrail.amqp.sections import decode_header, with_header
from lightrail.amqp.survey import survey
from lightrail.amqp.values import DecodeError
from lightrail.model import limits
from tests.unit.amqp.messages import HEAD, LISTS, Lists, application_message, lasting, transfer_frame
from tests.unit.amqp.peer import Peer, data, opened
from tests.unit.amqp.test_shapes import STEPS, conversation, state_of, told

SCANNERS = [pytest.param(compiled, id="as installed"), pytest.param(interpreted, id="interpreted")]
"""Where the modules of the scanner are attributes."""
NO_LIMIT = 1 << 40
SPAN = limits.EXPIRY_SPAN_MS
LAST = (1 << 63) - 1
"""The latest timestamp that there is."""


@pytest.fixture(params=SCANNERS)
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    read_with(request.param, monkeypatch)
    return request.param


def read_with(modules: Any, patch: pytest.MonkeyPatch) -> None:
    """The engine reads transfers with these modules."""
    patch.setattr(runs, "scanner", modules.scanner)
    patch.setattr(runs, "transfers", modules.transfers)
    patch.setattr(tags, "transfers", modules.transfers)


def pair(credit: int = 10_000, **fields: Any) -> tuple[Peer, Peer]:
    """Two peers in the same state, one with the scanner and one without; two incoming links each."""
    peers = (opened(scans=True, learn_shapes=False), opened(scans=False, learn_shapes=False))
    for peer in peers:
        peer.sender("a", 0, credit=credit, **fields)
        peer.sender("b", 300, credit=credit, **fields)
    return peers


def count_complete(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many transfers the complete decoder has read since."""
    count = [0]
    decode = decode_performative

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        return decode(*arguments)

    monkeypatch.setattr(reader, "decode_performative", counted)
    return lambda: count[0]


def test_the_scanner_is_compiled_unless_the_environment_says_otherwise() -> None:
    assert compiled.COMPILED is not bool(os.environ.get("LIGHTRAIL_INTERPRETED"))
    for name in compiled.NAMES:
        assert (vars(compiled)[name] is vars(interpreted)[name]) is not compiled.COMPILED


@pytest.mark.parametrize("lists", LISTS)
def test_application_messages_are_one_run_in_each_encoding(
    scanner: Any, lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = opened(scans=True, learn_shapes=False)
    link = peer.sender()
    messages = [application_message(number, lists) for number in range(60)]
    frames = [transfer_frame(500 + number, message, lists) for number, message in enumerate(messages)]
    peer.feed(frames[0])
    complete = count_complete(monkeypatch)
    found = peer.feed(b"".join(frames[1:]))
    assert found == [
        events.Transfers(link, 501, messages[1:], False, 0, messages[0][: len(lists(b"\x41")) + 3])
    ]
    assert complete() == 0


@pytest.mark.parametrize("lists", LISTS)
def test_a_run_ends_where_settled_header_or_expiry_differ(scanner: Any, lists: Lists) -> None:
    messages = [
        application_message(0, lists),
        application_message(1, lists, priority=9),
        application_message(2, lists, priority=9, expiry=5),
        application_message(3, lists, priority=9, expiry=-7),
        application_message(4, lists, priority=9, expiry=-7),
    ]
    fast, complete = pair()
    stream = b"".join(transfer_frame(90 + each, messages[each], lists, each == 4) for each in range(5))
    found = fast.feed(stream)
    assert told(found) == told(complete.feed(stream))
    assert [event.absolute_expiry_ms for event in found] == [None, None, 5, -7, -7]
    assert state_of(fast) == state_of(complete)


HEADERS = [
    b"",
    *(b"\x00Sp" + lists(*fields) for lists in LISTS for fields in (
        (b"\x41",),
        (b"\x56\x01", b"\x50\x09"),
        (b"\x41", b"\x40", b"\x40", b"\x41", b"\x52\x03"),
        (b"\x41", b"\x50\x00", b"\x70\x00\x00\x03\xe8", b"\x42", b"\x43"),
        (b"\x41", b"\x50\x07", b"\x70\x00\x00\x03\xe8"),
        (b"\x42", b"\x50\x05", b"\x40"),
        (b"\x40",),
        (),
    )),
    b"\x00Sp\x45",
]  # fmt: skip
"""Header sections of every common form, and a few that differ in durable or ttl."""
TTLS = [b"\x43", b"\x52\x05", b"\x52\x0b", b"\x52\xf4", b"\x52\xfa", b"\x70\x00\x00\x01\x03"]
SHORT_LIVED = [b"\x00Sp" + lists(b"\x41", b"\x40", ttl) for lists in LISTS for ttl in TTLS]
"""The same with a ttl of 0, 5, 11, 244, 250 and 259 ms."""


def lasting_of(found: list[Any]) -> list[Any]:
    """Deliveries one by one, with durable and ttl instead of the header that says so."""
    result = []
    for event in found:
        each = told([event])
        if isinstance(event, events.Transfers):
            each = [(*one[:5], *two, one[6]) for one, two in zip(each, lasting(event), strict=True)]
        result += each
    return result


@pytest.mark.parametrize("lists", LISTS)
def test_a_link_that_mixes_headers_gets_one_run_where_only_priorities_differ(
    scanner: Any, lists: Lists
) -> None:
    peer = opened(scans=True, learn_shapes=False)
    link = peer.sender()
    link.mix_headers()
    messages = [application_message(each, lists, priority=each % 10) for each in range(40)]
    frames = [transfer_frame(each, messages[each], lists) for each in range(40)]
    peer.feed(frames[0])
    (found,) = peer.feed(b"".join(frames[1:]))
    assert found == events.Transfers(link, 1, messages[1:], False, 0, found.head, mixed=True)
    assert messages[1].startswith(found.head)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*HEADERS, *SHORT_LIVED, *SHORT_LIVED]), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 800), st.integers(0, 255)), max_size=3),
    st.sampled_from([compiled, interpreted]),
)
def test_mixed_headers_agree_in_durable_and_nearly_in_ttl_whatever_octets_they_have(
    headers: list[bytes], changes: list[tuple[int, int]], scanner: Any
) -> None:
    stream = bytearray(b"".join(transfer_frame(at, head + data(b"x")) for at, head in enumerate(headers)))
    for offset, octet in changes:
        stream[offset % len(stream)] = octet
    heard: list[Any] = []
    for mixes in True, False:
        with pytest.MonkeyPatch.context() as patch:
            read_with(scanner, patch)
            peer = opened(scans=mixes, learn_shapes=False)
            link = peer.sender("a", 0)
            if mixes:
                link.mix_headers()
            heard.append((lasting_of(peer.feed(bytes(stream))), peer.hear_bytes(), state_of(peer)))
    assert heard[0] == heard[1]


@pytest.mark.parametrize("lists", LISTS)
def test_messages_that_expire_within_a_span_are_one_run_and_expire_with_the_last(
    scanner: Any, lists: Lists
) -> None:
    peer = opened(scans=True, learn_shapes=False)
    peer.sender()
    first = 0
    cases: list[tuple[list[int | None], list[tuple[int, int | None, int | None]]]] = [
        ([70, 73, 71, 80], [(4, 70, 80)]),
        ([9, 9 + SPAN], [(2, 9, 9 + SPAN)]),
        ([-9, SPAN - 8], [(1, -9, -9), (1, SPAN - 8, SPAN - 8)]),
        ([70, 64, 74, 60, 75, None, None], [(3, 64, 74), (1, 60, 60), (1, 75, 75), (2, None, None)]),
        (
            [-LAST - 1, LAST, LAST - 10, LAST - 11],
            [(1, -LAST - 1, -LAST - 1), (2, LAST - 10, LAST), (1, LAST - 11, LAST - 11)],
        ),
    ]
    for times, expected in cases:
        frames = [
            transfer_frame(first + each, application_message(each, lists, expiry=time), lists)
            for each, time in enumerate(times)
        ]
        first += len(frames)
        found = peer.feed(b"".join(frames))
        spans = [(len(each.payloads), each.earliest_expiry_ms, each.absolute_expiry_ms) for each in found]
        assert spans == expected
        assert [each[6] for each in told(found)] == times


@pytest.mark.parametrize("lists", LISTS)
def test_headers_whose_ttl_is_within_a_span_are_one_run_with_the_longest(scanner: Any, lists: Lists) -> None:
    peer = opened(scans=True, learn_shapes=False)
    link = peer.sender()
    link.mix_headers()
    times = [500, 505, 496, 506, 507, 0, 10, 11]
    heads = [b"\x00Sp" + lists(b"\x41", b"\x40", b"\x70" + time.to_bytes(4, "big")) for time in times]
    heads += [b"\x00Sp" + lists(b"\x41", b"\x40", b"\x40")]
    # The complete decoder reads the first of a session.
    peer.feed(transfer_frame(9, data(b"x")))
    found = peer.feed(
        b"".join(transfer_frame(each, head + data(b"x"), lists) for each, head in enumerate(heads, 10))
    )
    assert [(len(each.payloads), each.head, each.mixed) for each in found] == [
        (4, heads[3], True),
        (1, heads[4], False),
        (2, heads[6], True),
        (1, heads[7], False),
        (1, heads[8], False),
    ]


def test_runs_count_as_work_of_a_turn(scanner: Any) -> None:
    peer = opened(scans=True, learn_shapes=False)
    count = limits.FRAMES_OF_A_TURN + 10
    peer.sender(credit=count)
    frames = [
        transfer_frame(each, application_message(each, expiry=each * 100), settled=False)
        for each in range(count)
    ]
    found = peer.feed(b"".join(frames))
    assert len(found) == limits.FRAMES_OF_A_TURN
    assert peer.engine.has_more
    assert len(found + peer.feed(b"")) == count
    assert not peer.engine.has_more


def test_delivery_tags_are_kept_where_the_link_keeps_them(scanner: Any) -> None:
    peer = opened(scans=True, learn_shapes=False)
    link = peer.sender()
    link.keep_tags()
    stream = b"".join(transfer_frame(each, data(b"x"), tag=b"t%d" % each) for each in range(40))
    (event,) = peer.feed(stream)
    assert event.tags == [b"t%d" % each for each in range(40)]


@pytest.mark.parametrize("credit", [1, 30, 64])
def test_a_run_stops_where_credit_does(scanner: Any, credit: int) -> None:
    fast, complete = pair(credit)
    stream = b"".join(transfer_frame(each, data(b"x" * 9)) for each in range(100))
    assert told(fast.feed(stream)) == told(complete.feed(stream))
    assert fast.hear() == complete.hear()


def test_a_message_larger_than_allowed_is_refused_by_the_complete_decoder(scanner: Any) -> None:
    fast, complete = (
        opened(scans=scans, learn_shapes=False, max_message_size=100) for scans in (True, False)
    )
    for peer in (fast, complete):
        peer.sender()
    stream = b"".join(transfer_frame(each, data(b"x" * size)) for each, size in enumerate((10, 95, 96, 10)))
    assert told(fast.feed(stream)) == told(complete.feed(stream))
    assert fast.hear() == complete.hear()


@settings(max_examples=150, deadline=None)
@given(
    STEPS,
    st.sampled_from([0, 1, 240, 1000, 2**32 - 20]),
    st.lists(st.integers(1, 400), max_size=20),
    st.sampled_from([{}, {"rcv_settle_mode": 1}, {"snd_settle_mode": 0}, {"snd_settle_mode": 1}]),
    st.sampled_from([10_000, 25]),
    st.sampled_from([compiled, interpreted]),
)
def test_with_and_without_the_scanner_the_same_is_read_wherever_the_input_is_cut(
    steps: list[Any], first: int, cuts: list[int], fields: dict[str, Any], credit: int, scanner: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        read_with(scanner, patch)
        stream = conversation(steps, first)
        fast, complete = pair(credit, **fields)
        expected = told(complete.feed(stream))
        found = []
        position = 0
        for cut in [*cuts, len(stream)]:
            found += told(fast.feed(stream[position : position + cut]))
            position += cut
        assert found == expected
        assert state_of(fast) == state_of(complete)
        faults = [body for body in fast.hear() if getattr(body, "error", None)]
        assert faults == [body for body in complete.hear() if getattr(body, "error", None)]


def lawful(seed: int) -> list[bytes]:
    """Frames of a random conversation, in all encodings, with everything that a sender may vary."""
    chance = random.Random(seed)
    frames = []
    for number in range(12):
        lists = chance.choice(LISTS)
        message = chance.choice(
            [
                application_message(number, lists),
                application_message(number, lists, priority=chance.randrange(10)),
                application_message(
                    number, lists, expiry=chance.choice([0, 7, 1 << 40, -1, LAST, -LAST - 1])
                ),
                chance.choice([HEAD, *HEADERS]) + data(bytes(chance.randrange(40))),
                b"",
            ]
        )
        frames.append(transfer_frame(number, message, lists, chance.choice([None, False, True])))
    return frames


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), max_size=4))
def test_octets_changed_anywhere_are_read_alike(seed: int, changes: list[tuple[int, int]]) -> None:
    stream = bytearray(b"".join(lawful(seed)))
    for offset, octet in changes:
        stream[offset % len(stream)] = octet
    heard: list[Any] = []
    for scanner in (compiled, interpreted, None):
        with pytest.MonkeyPatch.context() as patch:
            read_with(scanner or compiled, patch)
            peer = opened(scans=scanner is not None, learn_shapes=False)
            peer.sender("a", 0)
            heard.append((told(peer.feed(bytes(stream))), peer.hear_bytes(), state_of(peer)))
    assert heard[0] == heard[2]
    assert heard[1] == heard[2]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 5_000), st.binary(max_size=12), st.integers(0, 5_000))
def test_compiled_and_interpreted_give_the_same_for_any_octets(
    seed: int, offset: int, octets: bytes, cut: int
) -> None:
    stream = b"".join(lawful(seed))
    offset %= len(stream)
    stream = (stream[:offset] + octets + stream[offset + len(octets) :])[: cut % len(stream) + 1]
    for position in {0, offset, cut % len(stream)}:
        lanes = {each.transfers.lane(stream, position, len(stream)) for each in (compiled, interpreted)}
        assert len(lanes) == 1
        found = []
        for each in (compiled, interpreted):
            kept: list[bytes] = []
            lane = max(0, *lanes)
            for mixes in False, True:
                run = each.scanner.take(
                    stream, position, len(stream), lane, 0, 100, NO_LIMIT, NO_LIMIT, -1, kept, mixes
                )
                found.append((run, list(kept)))
        assert found[:2] == found[2:]


def test_an_end_beyond_the_buffer_reads_nothing() -> None:
    stream = b"".join(lawful(1))
    for each in (compiled, interpreted):
        assert each.transfers.lane(stream, 0, len(stream) + 1) == each.transfers.NO_LANE
        assert each.scanner.take(stream, 0, len(stream) + 1, 0, 0, 100, NO_LIMIT, NO_LIMIT, -1, None) is None
        assert each.transfers.lane(b"", 0, 0) == each.transfers.NO_LANE


# --- the ttl of messages that are handed out ---------------------------------------------------------------


def ends_of(messages: list[bytes], base: int) -> Any:
    return memoryview(array("I", accumulate(map(len, messages), initial=base))[1:])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*HEADERS, *SHORT_LIVED]), max_size=8),
    st.sampled_from([0, 3, 200, 999, 1_000, 70_000, 2**32 - 1]),
    st.sampled_from([0, 77]),
)
def test_a_ttl_becomes_what_is_left_and_all_else_stays(heads: list[bytes], left_ms: int, base: int) -> None:
    messages = [head + data(b"%d" % at) for at, head in enumerate(heads)]
    for each in (compiled, interpreted):
        blob = bytearray(b"".join(messages))
        assert each.redelivery.shorten_ttl(blob, ends_of(messages, base), base, left_ms)
        start = 0
        for before in messages:
            after = bytes(blob[start : start + len(before)])
            start += len(before)
            wanted = decode_header(before)
            if wanted.ttl is not None:
                wanted.ttl = min(wanted.ttl, left_ms)
            assert decode_header(after) == wanted
            assert after[survey(before).head_end :] == before[survey(before).head_end :]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*HEADERS, *SHORT_LIVED]), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), max_size=4),
    st.integers(0, 60),
)
def test_whatever_octets_a_message_has_its_ttl_is_made_shorter_alike(
    heads: list[bytes], changes: list[tuple[int, int]], cut: int
) -> None:
    messages = [head + data(b"x") for head in heads]
    start = bytearray(b"".join(messages))
    for offset, octet in changes:
        start[offset % len(start)] = octet
    ends = [max(0, end - cut) for end in ends_of(messages, 0)]
    found = []
    for each in (compiled, interpreted):
        blob = bytearray(start)
        found.append((each.redelivery.shorten_ttl(blob, ends, 0, 5), blob))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "message",
    [
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70\xc0\x04\x03\x41\x40\x43",
        b"\x00\xa3\x10amqp:header:list\xc0\x04\x03\x41\x40\x43",
        b"\x00Sp\xc0\x04\x03\x41\x40\x60",
        b"\x00Sp\xc0\x08\x03\x41\x40\x70\x00\x00\x00",
        b"\x00Sp",
    ],
)
def test_an_uncommon_or_cut_header_is_left_to_the_complete_decoder(message: bytes) -> None:
    for each in (compiled, interpreted):
        assert not each.redelivery.shorten_ttl(bytearray(message), [len(message)], 0, 5)


# --- headers of messages that are handed out again ---------------------------------------------------------

BOOLEANS = [b"\x40", b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"]
UINTS = [
    b"\x40",
    b"\x43",
    b"\x52\x00",
    b"\x52\x09",
    b"\x52\xff",
    b"\x70\x00\x00\x00\x07",
    b"\x70\x00\x01\x02\x03",
]
UBYTES = [b"\x40", b"\x50\x00", b"\x50\x04", b"\x50\xff"]
FIELDS = st.tuples(
    *map(st.sampled_from, (BOOLEANS, UBYTES, UINTS, BOOLEANS, [*UINTS, b"\x70\xff\xff\xff\xff"]))
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A header section of any common encoding and with any fields, or none."""
    forms: list[Lists | bytes] = [*LISTS, *LISTS, *LISTS, b"", b"\x00Sp\x45"]
    form = draw(st.sampled_from(forms))
    if isinstance(form, bytes):
        return form
    return b"\x00Sp" + form(*draw(FIELDS)[: draw(st.integers(0, 5))])


def again(message: bytes, attempts: int, left_ms: int) -> bytes:
    """The message as it is handed out after failed deliveries, by the complete decoder."""
    header = decode_header(message)
    header.delivery_count = min(header.delivery_count + attempts, 2**32 - 1)
    header.first_acquirer = False
    if header.ttl is not None and left_ms >= 0:
        header.ttl = min(header.ttl, left_ms)
    return with_header(message, header)


def redelivered(scanner: Any, messages: list[bytes], attempts: int, left_ms: int, base: int = 0) -> Any:
    """What the scanner makes of each message; None where it leaves them to the complete decoder."""
    found = scanner.redelivery.redeliver(
        b"before" + b"".join(messages), len(b"before"), ends_of(messages, base), base, attempts, left_ms
    )
    if found is None:
        return None
    blob, ends = found
    assert ends[-1:] == [len(blob)][: len(ends)]
    return [blob[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(heads(), max_size=6),
    st.sampled_from([1, 2, 7, 255, 256, 2**32 - 1]),
    st.sampled_from([-1, 0, 3, 200, 999, 70_000, 2**32 - 1, 2**40]),
    st.sampled_from([0, 77]),
)
def test_a_header_says_again_what_the_complete_decoder_makes_of_it(
    heads: list[bytes], attempts: int, left_ms: int, base: int
) -> None:
    messages = [head + data(b"%d" % at) for at, head in enumerate(heads)]
    messages += [b"", application_message(3, priority=2), b"\x00Sw\x40"]
    wanted = [again(message, attempts, left_ms) for message in messages]
    for each in (compiled, interpreted):
        assert redelivered(each, messages, attempts, left_ms, base) == wanted


@settings(max_examples=500, deadline=None)
@given(
    st.lists(heads(), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 255)), max_size=4),
    st.integers(0, 60),
)
def test_whatever_octets_a_message_has_its_header_is_made_anew_alike(
    heads: list[bytes], changes: list[tuple[int, int]], cut: int
) -> None:
    messages = [head + data(b"x") for head in heads]
    blob = bytearray(b"".join(messages))
    for offset, octet in changes:
        blob[offset % len(blob)] = octet
    ends = [max(0, end - cut) for end in ends_of(messages, 0)]
    found = [each.redelivery.redeliver(bytes(blob), 0, ends, 0, 2, 5) for each in (compiled, interpreted)]
    assert found[0] == found[1]
    if found[0] is not None:
        start = 0
        for end, one, other in zip(ends, [0, *found[0][1]], found[0][1], strict=False):
            message, start = bytes(blob[start:end]), end
            try:
                wanted = again(message, 2, 5)
            except DecodeError:
                # No header, and then something that is none of the sections: it is not looked at.
                assert message[2] > 0x70
                continue
            assert found[0][0][one:other] == wanted


@pytest.mark.parametrize(
    "message",
    [
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70\xc0\x04\x03\x41\x40\x43",
        b"\x00\xa3\x10amqp:header:list\xc0\x04\x03\x41\x40\x43",
        b"\x00Sp\xc0\x04\x03\x41\x40\x60",
        b"\x00Sp\xc0\x03\x02\x41\x50",
        b"\x00Sp\xc0\x08\x03\x41\x40\x70\x00\x00\x00",
        b"\x00Sp\xd0\x00\x00\x00\x03\x00\x00\x00\x00",
        b"\x00Sp\xc0\x09\x02\x41\x40",
        b"\x00Sp\xc0\x07\x06\x40\x40\x40\x40\x40\x40",
        b"\x00Sz\x45",
        b"\x00Sp",
        b"text",
    ],
)
def test_an_uncommon_or_cut_header_is_made_anew_by_the_complete_decoder(message: bytes) -> None:
    for each in (compiled, interpreted):
        assert redelivered(each, [data(b"x"), message], 1, -1) is None


def test_a_slice_that_says_too_much_of_itself_is_not_read() -> None:
    message = data(b"x")
    for each in (compiled, interpreted):
        assert each.redelivery.redeliver(message, 0, [len(message) + 1], 0, 1, -1) is None
        assert each.redelivery.redeliver(message, 0, [len(message), 2], 0, 1, -1) is None
        assert each.redelivery.redeliver(message, 0, [1], 2, 1, -1) is None
        assert each.redelivery.redeliver(message, 0, [len(message)], 0, 0, -1) is None
