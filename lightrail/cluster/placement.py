"""Placement: which shard a new queue goes to, as a pure function of the shards and their loads."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple


class Placement(NamedTuple):
    """Where a queue is: the shard that owns it, and since which epoch."""

    shard: int
    epoch: int


def choose(queue: str, loads: Mapping[int, int]) -> int:
    """The shard for a new queue: the least loaded, by rendezvous hashing among equals.

    ``loads`` maps every shard that may take it to its load (its number of queues). Raises ValueError when
    there is none.
    """
    if not loads:
        raise ValueError("expected at least one shard to place a queue on")
    least = min(loads.values())
    return max((shard for shard, load in loads.items() if load == least), key=lambda s: _weight(queue, s))


def _weight(queue: str, shard: int) -> bytes:
    """Highest random weight (Thaler, Ravishankar 1998): the same on every machine, uniform over shards."""
    return hashlib.blake2b(queue.encode(), digest_size=8, salt=shard.to_bytes(8, "big")).digest()
