"""Placement: chooses the shard of a new queue, as a pure function of the shards and their loads."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

Near = Mapping[int, tuple[int, ...]]
NOWHERE: Final[Near] = MappingProxyType({})


def choose(queue: str, loads: Mapping[int, int], near: Near = NOWHERE) -> int:
    """The shard for a new queue: least loaded, then fewest siblings near it, then by rendezvous hashing.

    ``loads`` maps every shard that may own the queue to its load (its number of queues), ``near`` a shard to
    the numbers of siblings in its zone and on its host, if these are known. Raises ValueError if there is no
    shard.
    """
    if not loads:
        raise ValueError("expected at least one shard to place a queue on")
    ranks = {shard: (load, near.get(shard, ())) for shard, load in loads.items()}
    best = min(ranks.values())
    return max((shard for shard, rank in ranks.items() if rank == best), key=lambda s: _weight(queue, s))


def _weight(queue: str, shard: int) -> bytes:
    """Highest random weight (Thaler, Ravishankar 1998): the same on every machine, uniform over shards."""
    return hashlib.blake2b(queue.encode(), digest_size=8, salt=shard.to_bytes(8, "big")).digest()
