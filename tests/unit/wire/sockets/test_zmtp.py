"""The codec of ZMTP: its bytes, and what a peer may not send. Nothing here has a socket."""

import random
import tracemalloc
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightrail.wire.sockets import zmtp as codec
from lightrail.wire.sockets.zmtp import (
    APART_BYTES,
    COMMAND_BYTES_MAX,
    NAME_BYTES_MAX,
    PART_BYTES_MAX,
    ZmtpError,
    ZmtpReader,
    encode,
    ready,
)
from tests.support import zmtp
from tests.support.zmtp import AFTER_READY, BEFORE_READY

Messages = list[list[bytes]]
HANDSHAKE = zmtp.ready(b"DEALER", b"name")
SIZES = (0, 1, 2, 254, 255, 256, 257, 65_535, 65_536, 65_537)
LARGE_SIZES = (512 * 1024, 3 * 1024 * 1024 + 1)


def feed(reader: ZmtpReader, data: bytes, cuts: list[int]) -> Messages:
    """Passes the octets in pieces of these sizes, over and over; removes and returns what arrived."""
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        turn += 1
        room = reader.room()
        if room is None:
            reader.receive(data[at : at + size])
        else:
            size = min(size, len(room), len(data) - at)
            room[:size] = data[at : at + size]
            reader.filled(size)
        at += size
    found = reader.messages[:]
    reader.messages.clear()
    return found


def opened(*, copies: bool = True) -> ZmtpReader:
    reader = ZmtpReader(b"ROUTER", copies=copies)
    reader.receive(HANDSHAKE)
    return reader


def some_bytes(size: int) -> bytes:
    """Others for each size, and no octet like its neighbour: a part that slipped is a different one."""
    return random.Random(size).randbytes(size)


def as_bytes(messages: Messages) -> Messages:
    return [[bytes(part) for part in parts] for parts in messages]


# --- bytes ------------------------------------------------------------------------------------------------

GREETING = bytes.fromhex("ff0000000000000000 7f 0301 4e554c4c" + "00" * 16 + "00" + "00" * 31)


def test_an_end_begins_with_the_greeting_of_version_3_1() -> None:
    assert len(GREETING) == 64
    assert codec.GREETING == GREETING


def test_ready_has_the_type_of_the_socket_and_no_name() -> None:
    body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"
    assert ready(b"ROUTER") == GREETING + b"\x04\x29" + body


def test_ready_has_a_name() -> None:
    body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x03abc"
    assert ready(b"DEALER", b"abc") == GREETING + b"\x04\x2c" + body


def test_ready_with_a_long_name_is_a_long_command() -> None:
    body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\xff" + b"n" * 255
    assert ready(b"DEALER", b"n" * 255) == GREETING + b"\x06\x00\x00\x00\x00\x00\x00\x01\x28" + body


@pytest.mark.parametrize("name", [b"n" * (NAME_BYTES_MAX + 1), b"\0", b"\0n"])
def test_a_name_that_a_router_would_refuse_is_not_sent(name: bytes) -> None:
    with pytest.raises(ValueError, match="expected at most 255 octets, the first not 0"):
        ready(b"DEALER", name)


@pytest.mark.parametrize(
    ("parts", "octets"),
    [
        ([b""], b"\x00\x00"),
        ([b"a"], b"\x00\x01a"),
        ([b"", b""], b"\x01\x00\x00\x00"),
        ([b"a", b"bc", b"def"], b"\x01\x01a\x01\x02bc\x00\x03def"),
        ([b"x" * 255], b"\x00\xff" + b"x" * 255),
        ([b"x" * 256], b"\x02\x00\x00\x00\x00\x00\x00\x01\x00" + b"x" * 256),
        ([b"x" * 256, b"a"], b"\x03\x00\x00\x00\x00\x00\x00\x01\x00" + b"x" * 256 + b"\x00\x01a"),
        ([b"x" * 65_536], b"\x02\x00\x00\x00\x00\x00\x01\x00\x00" + b"x" * 65_536),
    ],
)
def test_frames_have_a_short_or_a_long_size_and_more_but_for_the_last(
    parts: list[bytes], octets: bytes
) -> None:
    assert b"".join(encode(parts)) == octets


def test_large_parts_are_sent_without_a_copy_and_small_ones_joined() -> None:
    large = bytes(APART_BYTES)
    # A view, as arrives if parts are not copied, is as good as bytes.
    view = cast(bytes, memoryview(bytearray(APART_BYTES)))
    chunks = encode([b"a", large, b"b", b"c", view, b"d"])
    assert [len(chunk) for chunk in chunks] == [3 + 9, APART_BYTES, 6 + 9, APART_BYTES, 3]
    assert chunks[1] is large
    assert chunks[3] is view
    assert len(encode([b"x" * (APART_BYTES - 1), b"y"])) == 1


# --- what was encoded is read -----------------------------------------------------------------------------


@given(
    sizes=st.lists(st.lists(st.sampled_from(SIZES), min_size=1, max_size=5), max_size=6),
    cuts=st.lists(st.sampled_from((1, 2, 3, 9, 64, 255, 4_096, 65_536, 262_144)), min_size=2, max_size=5),
    copies=st.booleans(),
)
@example(sizes=[[size] for size in LARGE_SIZES], cuts=[262_144], copies=False)
@example(sizes=[list(LARGE_SIZES)], cuts=[1_000_000, 1], copies=True)
def test_any_messages_are_read_as_they_were_encoded_however_they_are_cut(
    sizes: list[list[int]], cuts: list[int], copies: bool
) -> None:
    messages = [[some_bytes(size) for size in parts] for parts in sizes]
    data = HANDSHAKE + b"".join(chunk for parts in messages for chunk in encode(parts))
    # Octet by octet, half a megabyte takes its time.
    slow = [cut if len(data) < 10_000 else max(cut, 4_096) for cut in cuts]
    reader = ZmtpReader(b"ROUTER", copies=copies)
    assert as_bytes(feed(reader, data, slow)) == messages
    assert reader.name == b"name"


def test_a_small_conversation_is_read_wherever_it_is_cut() -> None:
    messages = [[b""], [b"a", b"", b"bc"], [b"x" * 255, b"y" * 256], [b"z"]]
    data = HANDSHAKE + b"".join(chunk for parts in messages for chunk in encode(parts)) + zmtp.ping(b"c")
    for first in range(len(data) + 1):
        reader = ZmtpReader(b"ROUTER")
        for piece in filter(None, (data[:first], data[first:])):
            reader.receive(piece)
        assert reader.messages == messages
        assert reader.answers == [zmtp.pong(b"c")]


@pytest.mark.parametrize("size", [APART_BYTES, APART_BYTES + 1])
def test_a_large_part_is_read_wherever_it_is_cut_about_its_ends(size: int) -> None:
    part = some_bytes(size)
    data = b"".join(encode([b"a", part, b"b"])) + b"".join(encode([b"next"]))
    near = [*range(1, 30), *range(size, len(data) + 1)]
    for first in near:
        for copies in (True, False):
            found = feed(opened(copies=copies), data, [first, len(data)])
            assert as_bytes(found) == [[b"a", part, b"b"], [b"next"]]


@pytest.mark.parametrize("copies", [True, False])
def test_a_large_part_is_copied_only_if_it_was_asked_for(copies: bool) -> None:
    reader = opened(copies=copies)
    part = some_bytes(APART_BYTES)
    data = b"".join(encode([part]))
    reader.receive(data[:100])
    room = reader.room()
    assert room is not None
    room[:] = data[100:]
    reader.filled(len(room))
    found: Any = reader.messages[0][0]
    assert found == part
    assert type(found) is (bytes if copies else memoryview)
    if not copies:
        # The memory that was received into is that of the part.
        assert memoryview(found).obj is room.obj


def test_the_room_of_a_large_part_is_what_has_not_arrived_of_it() -> None:
    reader = opened()
    reader.receive(zmtp.announced(APART_BYTES) + b"abc")
    for left in (APART_BYTES - 3, APART_BYTES - 4, APART_BYTES - 1_004):
        room = reader.room()
        assert room is not None
        assert len(room) == left
        reader.filled(1 if left == APART_BYTES - 3 else 1_000)
    assert not reader.messages


def test_a_short_part_may_have_a_long_size() -> None:
    reader = opened()
    reader.receive(zmtp.announced(3, flags=1) + b"abc" + zmtp.announced(0))
    assert reader.messages == [[b"abc", b""]]


# --- commands ---------------------------------------------------------------------------------------------


def test_a_ping_is_answered_with_its_context() -> None:
    reader = opened()
    reader.receive(zmtp.ping(b"", 0) + zmtp.ping(b"context", 300))
    assert reader.answers == [zmtp.pong(), zmtp.pong(b"context")]
    assert not reader.messages


@pytest.mark.parametrize("size", [16, 17, 250, 251, 1_000])
def test_a_ping_with_a_long_context_is_answered_with_its_first_16_octets(size: int) -> None:
    reader = opened()
    reader.receive(zmtp.ping(bytes(range(100, 116)) + b"x" * (size - 16)) + zmtp.message([b"next"]))
    assert reader.answers == [zmtp.pong(bytes(range(100, 116)))]
    assert reader.messages == [[b"next"]]


def test_a_command_between_the_parts_of_a_message_is_no_part_of_it() -> None:
    """libzmq's heartbeats are there, though RFC 37 has them between messages only."""
    reader = opened()
    reader.receive(zmtp.part(b"a", True) + zmtp.ping(b"c") + zmtp.part(b"b", False))
    assert reader.messages == [[b"a", b"b"]]
    assert reader.answers == [zmtp.pong(b"c")]


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\x04PONG", b"\x09SUBSCRIBEa", b"\xffshort", zmtp.ready_body(b"DEALER", b"other")]
)
def test_a_command_that_is_not_known_or_a_second_ready_changes_nothing(body: bytes) -> None:
    reader = opened()
    reader.receive(zmtp.command(body) + zmtp.message([b"next"]))
    assert (reader.name, reader.messages, reader.answers) == (b"name", [[b"next"]], [])


def test_names_of_properties_have_no_case_and_others_are_ignored() -> None:
    body = b"\x05READY\x08IDENTITY\0\0\0\1n\x03X-a\0\0\0\1b\x0bsocket-type\0\0\0\x06DEALER"
    reader = ZmtpReader(b"ROUTER")
    reader.receive(zmtp.GREETING + zmtp.command(body))
    assert (reader.is_ready, reader.name) == (True, b"n")


@pytest.mark.parametrize(("kind", "other"), [(b"ROUTER", b"DEALER"), (b"DEALER", b"ROUTER")])
def test_only_a_router_and_a_dealer_are_a_pair(kind: bytes, other: bytes) -> None:
    reader = ZmtpReader(kind)
    reader.receive(zmtp.ready(other))
    assert reader.is_ready
    for wrong in {kind, b"REQ", b"REP", b"router", b""}:
        with pytest.raises(ZmtpError, match=f"expected a {other.decode()} at the other end"):
            ZmtpReader(kind).receive(zmtp.ready(wrong))


# --- violations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BEFORE_READY)
@pytest.mark.parametrize("cut", [1, 7, 100_000])
def test_a_violation_of_the_handshake_ends_it(name: str, cut: int) -> None:
    data, text = BEFORE_READY[name]
    reader = ZmtpReader(b"ROUTER")
    with pytest.raises(ZmtpError, match=text):
        feed(reader, data, [cut])
    assert not reader.is_ready
    assert not reader.messages


@pytest.mark.parametrize("name", AFTER_READY)
@pytest.mark.parametrize("cut", [1, 7, 100_000])
def test_a_violation_ends_a_connection_and_whole_messages_before_it_arrive(name: str, cut: int) -> None:
    data, text = AFTER_READY[name]
    reader = opened()
    before = zmtp.message([b"whole", b"message"]) + zmtp.part(b"half", True)
    with pytest.raises(ZmtpError, match=text):
        feed(reader, before + data, [cut])
    assert reader.messages == [[b"whole", b"message"]]


@pytest.mark.parametrize("size", range(1, 11))
def test_a_wrong_signature_is_found_before_the_greeting_is_whole(size: int) -> None:
    """An end of another version sends nothing more before it has read the greeting of this one."""
    reader = ZmtpReader(b"ROUTER")
    with pytest.raises(ZmtpError, match="signature"):
        reader.receive(b"\x01" * size)


def test_an_old_version_is_found_before_the_greeting_is_whole() -> None:
    with pytest.raises(ZmtpError, match="version 3 of ZMTP, found 1"):
        ZmtpReader(b"ROUTER").receive(b"\xff" + bytes(8) + b"\x7f\x01")


def test_a_part_that_is_too_large_takes_no_memory() -> None:
    reader = opened()
    tracemalloc.start()
    try:
        with pytest.raises(ZmtpError, match="parts of at most"):
            reader.receive(zmtp.announced(PART_BYTES_MAX + 1))
        assert tracemalloc.get_traced_memory()[1] < APART_BYTES
    finally:
        tracemalloc.stop()


def test_a_part_may_have_as_many_octets_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PART_BYTES_MAX", APART_BYTES)
    reader = opened()
    part = some_bytes(APART_BYTES)
    assert feed(reader, b"".join(encode([part])), [1_000]) == [[part]]
    with pytest.raises(ZmtpError, match="parts of at most 65536 octets, found 65537"):
        reader.receive(zmtp.part(part + b"x", False))


def test_a_part_that_memory_has_no_room_for_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PART_BYTES_MAX", 1 << 62)
    reader = opened()
    with pytest.raises(ZmtpError, match="memory"):
        reader.receive(zmtp.message([b"whole"]) + zmtp.announced(1 << 61))
    assert reader.messages == [[b"whole"]]


def test_a_command_may_have_as_many_octets_as_is_said() -> None:
    reader = opened()
    for size in (COMMAND_BYTES_MAX, COMMAND_BYTES_MAX + 1):
        command = b"\x06" + size.to_bytes(8, "big") + b"\x07UNKNOWN".ljust(size, b"x")
        if size == COMMAND_BYTES_MAX:
            reader.receive(command)
        else:
            with pytest.raises(ZmtpError, match=f"at most {COMMAND_BYTES_MAX} octets, found {size}"):
                reader.receive(command)


def test_the_longest_name_is_read() -> None:
    reader = ZmtpReader(b"ROUTER")
    reader.receive(zmtp.ready(b"DEALER", b"n" * NAME_BYTES_MAX))
    assert reader.name == b"n" * NAME_BYTES_MAX
