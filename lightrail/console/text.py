"""Text for a terminal: quotes names that users chose, and writes numbers with their unit."""

import re
from typing import Final

_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|↳")


def printable(text: str) -> str:
    """Text with control characters as escapes, a new line as \\n, because names come from other people."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(count: int, what: str) -> str:
    """``1 queue``, ``1,200 queues``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def one_line(text: object) -> str:
    """The text of an error, without the colours and frames that some libraries add."""
    return " ".join(_DRAWN.sub("", str(text)).split())
