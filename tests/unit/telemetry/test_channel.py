"""The channel: whole objects whatever the pieces, and the other side's end."""

import socket

import pytest

from lightrail.telemetry.channel import LINE_BYTES_MAX, Channel, ChannelClosedError


@pytest.fixture
def ends() -> tuple[Channel, socket.socket]:
    one, other = socket.socketpair()
    return Channel(one), other


def test_pieces_and_several_lines(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    with channel.socket, other:
        channel.socket.setblocking(False)
        assert channel.receive() == []
        for byte in b'{"a": 1':
            other.send(bytes([byte]))
            assert channel.receive() == []
        other.send(b'}\n{"b": 2}\n{"c"')
        assert channel.receive() == [{"a": 1}, {"b": 2}]
        other.send(b": 3}\n")
        assert channel.receive() == [{"c": 3}]


def test_what_one_side_sends_the_other_receives(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    with channel.socket, other:
        channel.send({"text": "é\n"})
        assert Channel(other).receive() == [{"text": "é\n"}]


def test_the_end_of_the_other_side(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    with channel.socket:
        other.close()
        with pytest.raises(ChannelClosedError, match="closed"):
            channel.receive()
        with pytest.raises(ChannelClosedError):
            channel.send({})


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b"\xff\n", b"x" * (LINE_BYTES_MAX + 70_000)])
def test_what_no_supervisor_says(ends: tuple[Channel, socket.socket], line: bytes) -> None:
    channel, other = ends
    with channel.socket, other:
        channel.socket.setblocking(False)
        other.setblocking(False)
        rest = memoryview(line)
        with pytest.raises(ChannelClosedError):  # noqa: PT012
            while True:
                if rest:
                    rest = rest[other.send(rest[:65_536]) :]
                channel.receive()
