"""How often the broker copies a byte of a large message, which is most of what such a message costs."""

from pathlib import Path

import pytest

from tests.support.shard.message_copies import Copies

IN_MAX = 2.6
"""uvloop makes bytes of what it read, and the frame for the shard is joined; half of the bytes, at most, are
copied once more, in frames that two reads share. Shard and journal keep what ZeroMQ received."""
OUT_MAX = 1.05
"""The shard makes the frame for the frontend; from there on the bytes lie where ZeroMQ received them."""


@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
def test_a_large_message_is_copied_no_more_than_it_has_to_be(tmp_path: Path, size: int) -> None:
    copies = Copies(tmp_path, size)
    copies.run()
    assert copies.received == copies.message
    assert copies.per_byte("socket", "engine", "enqueue", "shard", "journal") < IN_MAX, copies.bytes_of
    assert copies.per_byte("deliver", "link", "output") < OUT_MAX, copies.bytes_of
    assert copies.per_byte("shard", "journal") < 0.05, copies.bytes_of
    assert copies.per_byte("link", "output") < 0.05, copies.bytes_of
