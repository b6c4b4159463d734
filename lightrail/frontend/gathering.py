"""Gathers the output of a connection for one write: only small pieces are copied."""

from collections.abc import Sequence

from lightrail.model import limits

Piece = bytes | memoryview


def gathered(output: Sequence[Piece]) -> list[Piece]:
    """The same bytes in as few pieces as possible, without copying pieces of LARGE_PIECE_BYTES or more."""
    pieces: list[Piece] = []
    small: list[Piece] = []
    for piece in output:
        if len(piece) < limits.LARGE_PIECE_BYTES:
            small.append(piece)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        pieces.append(piece)
    if small:
        pieces.append(b"".join(small))
    return pieces
