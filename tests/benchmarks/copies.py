"""A row that counts how often a byte of a large message is copied on its way in, and on its way out."""

import tempfile
from pathlib import Path
from typing import Final

from tests.benchmarks.load import LoadError
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.shard.message_copies import Copies

SIZE: Final = 1 << 20
WAY_IN: Final = ("socket", "engine", "enqueue", "shard", "journal")
WAY_OUT: Final = ("deliver", "link", "output")


def measure(workplace: Workplace) -> Figures:
    """Bytes allocated for each byte of one message, by step: the same on every machine."""
    with tempfile.TemporaryDirectory(dir=workplace.scratch) as directory:
        copies = Copies(Path(directory), SIZE)
        copies.run()
    if copies.received != copies.message:
        raise LoadError("expected the message that was sent, found another one")
    steps = {f"{step}_per_byte": copies.per_byte(step) for step in (*WAY_IN, *WAY_OUT)}
    return {"in_per_byte": copies.per_byte(*WAY_IN), "out_per_byte": copies.per_byte(*WAY_OUT), **steps}


ROWS = (
    Row(
        "mib-copies",
        "1 MiB, durable: bytes copied for each byte of it, from socket to journal and from queue to socket",
        ("tests/support/shard/message_copies.py    (frontend, shard and journal in one process)",),
        (Limit("in_per_byte", 2.6, "copies"), Limit("out_per_byte", 1.05, "copies")),
        measure,
    ),
)
