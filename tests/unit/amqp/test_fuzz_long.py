"""The fuzz target that runs for a while: lawful conversations, mutated by a seed, through `feed`.

CI goes through sixty thousand seeds, the same in every run; `make soak` and `make fuzz` go on from a fresh
one for LIGHTRAIL_SOAK_SECONDS. The failing seed is in the assertion, and `conversation(seed)` repeats it.
"""

import random
from pathlib import Path

import pytest

from lightrail.amqp import frames
from lightrail.amqp.performatives import SaslInit
from lightrail.amqp.values import Symbol
from tests.unit.amqp.peer import Peer, sasl
from tests.unit.amqp.seeds import soak_seeds
from tests.unit.amqp.test_fuzz_feed import LAWFUL, drive, mutate

CONVERSATIONS = 15_000
KINDS = ("octet", "octet", "octet", "cut", "repeat", "insert", "swap", "drop")
SASL = [frames.SASL_HEADER, sasl(SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0a\0b"))]


def conversation(seed: int) -> None:
    """One conversation with up to eight faults, fed in pieces of any size to one of three sorts of engine."""
    chance = random.Random(seed)
    mutations = [
        (
            chance.choice(KINDS),
            chance.randrange(1 << 20),
            chance.randrange(1 << 20),
            chance.randbytes(chance.randrange(12)),
        )
        for _ in range(chance.randrange(1, 9))
    ]
    sort = chance.randrange(3)
    if sort == 0:
        peer, pieces = Peer(max_frame_size=700, session_incoming_window=8), LAWFUL
    elif sort == 1:
        peer, pieces = Peer(), LAWFUL
    else:
        peer, pieces = Peer(sasl_mechanisms=("PLAIN",), allow_plain_header=False), [*SASL, *LAWFUL]
    try:
        drive(peer, mutate(pieces, mutations), chance.randrange(1, 30))
    except BaseException as error:
        raise AssertionError(f"conversation({seed}) broke the engine: {error!r}") from error


@pytest.mark.parametrize("part", range(4))
def test_no_mutated_conversation_breaks_the_engine(part: int) -> None:
    for seed in range(part * CONVERSATIONS, (part + 1) * CONVERSATIONS):
        conversation(seed)


@pytest.mark.soak
def test_no_mutated_conversation_breaks_the_engine_for_long(tmp_path: Path) -> None:
    soak_seeds(conversation, tmp_path)
