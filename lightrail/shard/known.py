"""Known: what a shard remembers of the last batches of producers."""

from typing import NamedTuple


class Known(NamedTuple):
    """The last batches of producers, by producer id."""

    numbers: dict[int, int]
    """By producer (boot << 32 | link)."""
    parts: dict[int, int]
    """Number of messages stored from each partially accepted last batch, by producer id."""
    sequences: dict[int, dict[int, int]]
    """The first sequence of each batch, for producers that asked for sequences."""
