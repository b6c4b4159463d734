"""Placement: the shard that owns a queue, and since which epoch."""

from typing import NamedTuple


class Placement(NamedTuple):
    """Where a queue is."""

    shard: int
    epoch: int
