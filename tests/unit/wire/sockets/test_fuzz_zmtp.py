"""Lawful conversations of ZMTP, mutated by a seed, through the reader.

CI goes through twenty thousand seeds, the same in every run; `make soak` and `make fuzz` go on from a fresh
one for LIGHTRAIL_SOAK_SECONDS. The failing seed is in the assertion, and `conversation(seed)` repeats it.
"""

import random
from pathlib import Path
from unittest.mock import patch

import pytest

from lightrail.wire.sockets import zmtp as codec
from lightrail.wire.sockets.zmtp import ZmtpError, ZmtpReader, encode, ready
from tests.support import zmtp
from tests.unit.amqp.seeds import soak_seeds
from tests.unit.amqp.test_fuzz_feed import mutate

CONVERSATIONS = 5_000
KINDS = ("octet", "octet", "octet", "cut", "repeat", "insert", "swap", "drop")
SIZES = (0, 0, 1, 2, 3, 9, 254, 255, 256, 300, 65_535, 65_536, 65_600)
ROOM = 1 << 20
"""Octets of a part at most: mutated sizes are to take no gigabytes."""


class Heard:
    """What a reader made of a conversation."""

    def __init__(self, data: bytes, chance: random.Random, *, copies: bool) -> None:
        reader = ZmtpReader(b"ROUTER", copies=copies)
        self.error = ""
        largest = chance.choice((1, 9, 300, 70_000, 300_000))
        # Octet by octet only where it matters: in heads, which are at the beginning.
        slow = data[: 400 if largest < 300 else 0]
        at = 0
        try:
            while at < len(data):
                size = chance.randrange(1, largest + 1) if at < len(slow) or largest >= 300 else 5_000
                at += self._pass(reader, data[at : at + size])
        except ZmtpError as error:
            # What was found of a signature depends on the pieces.
            self.error = str(error).partition(", found")[0]
        self.messages = [[bytes(part) for part in parts] for parts in reader.messages]
        self.answers = reader.answers
        self.name = reader.name

    def _pass(self, reader: ZmtpReader, piece: bytes) -> int:
        room = reader.room()
        if room is None:
            reader.receive(piece)
            return len(piece)
        size = min(len(piece), len(room))
        room[:size] = piece[:size]
        reader.filled(size)
        return size


def conversation(seed: int) -> None:
    """A conversation with up to eight faults, which is passed twice, in different pieces.

    Whole messages before the first fault arrive, the pieces make no difference, and only ZmtpError is raised.
    """
    chance = random.Random(seed)
    pieces = [ready(b"DEALER", chance.choice((b"", b"name", b"n" * 255)))]
    sent: list[list[bytes]] = []
    ends: list[int] = []
    for _ in range(chance.randrange(6)):
        if chance.random() < 0.3:
            pieces.append(zmtp.ping(chance.randbytes(chance.choice((0, 3, 16, 17, 251, 1_000)))))
        else:
            sent.append(
                [chance.randbytes(1) * chance.choice(SIZES) for _ in range(chance.choice((1, 1, 2, 5)))]
            )
            pieces.append(b"".join(encode(sent[-1])))
            ends.append(sum(map(len, pieces)))
    lawful = b"".join(pieces)
    mutations = [
        (
            chance.choice(KINDS),
            chance.randrange(1 << 20),
            chance.choice((chance.randrange(80), chance.randrange(1 << 20))),
            chance.randbytes(chance.randrange(12)),
        )
        for _ in range(chance.randrange(9))
    ]
    data = b"".join(mutate(pieces, mutations))
    try:
        with patch.object(codec, "PART_BYTES_MAX", ROOM):
            first = Heard(data, chance, copies=True)
            second = Heard(data, chance, copies=chance.random() < 0.5)
        assert vars(first) == vars(second)
        whole = sum(end <= common(lawful, data) for end in ends)
        assert first.messages[:whole] == sent[:whole]
        if data == lawful:
            assert (first.messages, first.error) == (sent, "")
        assert all(len(answer) <= 2 + 5 + codec.CONTEXT_BYTES_MAX for answer in first.answers)
    except BaseException as error:
        raise AssertionError(f"conversation({seed}) broke the reader: {error!r}") from error


def common(one: bytes, other: bytes) -> int:
    """Octets at the beginning that are the same in both."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@pytest.mark.parametrize("part", range(4))
def test_no_mutated_conversation_breaks_the_reader(part: int) -> None:
    for seed in range(part * CONVERSATIONS, (part + 1) * CONVERSATIONS):
        conversation(seed)


@pytest.mark.soak
def test_no_mutated_conversation_breaks_the_reader_for_long(tmp_path: Path) -> None:
    soak_seeds(conversation, tmp_path)
