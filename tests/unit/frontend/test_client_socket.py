"""The pieces of a gathered write: the same bytes, and none of the large ones copied."""

import asyncio
import socket
from itertools import pairwise

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from lightrail.frontend.client_socket import gathered
from lightrail.model import limits

LARGE = limits.LARGE_PIECE_BYTES


def test_neighbours_that_are_small_are_joined_and_large_ones_stay_where_they_are() -> None:
    large, view = bytes(LARGE), memoryview(bytes(2 * LARGE))
    pieces = gathered([b"a", b"b", large, view, b"c"])
    assert pieces == [b"ab", large, view, b"c"]
    assert pieces[1] is large
    assert pieces[2] is view


@given(st.lists(st.sampled_from([0, 1, 30, LARGE - 1, LARGE, LARGE + 1])))
def test_no_byte_is_lost_and_no_two_small_pieces_are_neighbours(sizes: list[int]) -> None:
    output = [bytes((index & 0xFF,)) * size for index, size in enumerate(sizes)]
    pieces = gathered(output)
    assert b"".join(pieces) == b"".join(output)
    assert not any(len(one) < LARGE and len(other) < LARGE for one, other in pairwise(pieces))


def test_what_waits_for_the_socket_counts_in_pieces_as_it_does_in_one() -> None:
    """Rooms of connections (outflow.py) are bounds on get_write_buffer_size, whatever was written how."""

    class Writer(asyncio.Protocol):
        pauses = 0

        def pause_writing(self) -> None:
            self.pauses += 1

    async def write() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            transport, protocol = await asyncio.get_running_loop().create_connection(Writer, sock=ours)
            transport.set_write_buffer_limits(4 * LARGE, LARGE)
            frame = memoryview(bytes(range(256)) * 4_096)
            views = [frame[start : start + 4 * LARGE] for start in range(0, len(frame), 4 * LARGE)]
            pieces = gathered([piece for view in views for piece in (b"head", view)])
            assert len(pieces) == 2 * len(views)
            transport.writelines(pieces)
            size = sum(map(len, pieces))
            waiting = transport.get_write_buffer_size()
            assert 4 * LARGE < waiting < size
            assert protocol.pauses == 1
            read = bytearray()
            while len(read) < size - waiting:
                read += theirs.recv(size)
            assert len(read) == size - waiting
            assert b"".join(pieces).startswith(read)
            transport.abort()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write())
