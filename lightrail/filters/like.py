"""LIKE: `%` is any text, `_` one character; compiled so that no text takes more than text times pattern.

The pattern is cut at its `%`. Each piece is searched for after the one before it and, once found, stays where
it was found (an atomic group): the leftmost place is always as good as any other, so nothing is tried twice.
"""

import re
from collections.abc import Callable

from lightrail.model import limits

Test = Callable[[str], bool | None]


def _pieces(pattern: str, escape: str | None) -> list[list[str | None]]:
    """The characters between the `%`; None stands for `_`. Raises ValueError for an escape of nothing."""
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise ValueError("the escape character before '%', '_' or itself")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def compile_like(pattern: str, escape: str | None) -> Test:
    """A test of text; None (UNKNOWN) for text of more than LIKE_TEXT_MAX characters.

    Raises ValueError, which says what was expected, when the escape character escapes nothing.
    """
    pieces = _pieces(pattern, escape)
    test = _plain(pieces) or _expression(pieces)

    def like(text: str) -> bool | None:
        return test(text) if len(text) <= limits.LIKE_TEXT_MAX else None

    return like


def _plain(pieces: list[list[str | None]]) -> Callable[[str], bool] | None:
    """The patterns that a method of str answers: none, a leading, a trailing, or both `%`."""
    if any(None in piece for piece in pieces):
        return None
    texts = ["".join(filter(None, piece)) for piece in pieces]
    if len(texts) == 1:
        return texts[0].__eq__
    if len(texts) == 2 and not texts[1]:
        prefix = texts[0]
        return lambda text: text.startswith(prefix)
    if len(texts) == 2 and not texts[0]:
        suffix = texts[1]
        return lambda text: text.endswith(suffix)
    if len(texts) == 3 and not texts[0] and not texts[2]:
        middle = texts[1]
        return lambda text: middle in text
    return None


def _expression(pieces: list[list[str | None]]) -> Callable[[str], bool]:
    written = ["".join("." if c is None else re.escape(c) for c in piece) for piece in pieces]
    if len(written) == 1:
        source = written[0]
    else:
        middle = "".join(f"(?>.*?{piece})" for piece in written[1:-1] if piece)
        # The last piece belongs at the end: a look behind of its own width finds it there at once.
        last = f".*+(?<={written[-1]})" if written[-1] else ".*+"
        least = f"(?=.{{{len(pieces[-1])}}})" if written[-1] else ""
        source = f"{written[0]}{middle}{least}{last}"
    match = re.compile(source, re.DOTALL).fullmatch
    return lambda text: match(text) is not None
