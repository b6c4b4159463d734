"""The slug of a queue: its name as a part of a path, in any file system and object store."""

import hashlib
from typing import Final

PREFIX_BYTES: Final = 80
"""Bytes of a shortened slug before the digest; a slug longer than SLUG_BYTES_MAX is shortened."""
SLUG_BYTES_MAX: Final = 200
"""Folder names may have 255 bytes, and each has the prefix `queue_slug=`."""
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")
_CUT: Final = "_-"
"""Separates the digest of a long name; no escape begins with it."""


def slug_of(queue: str) -> str:
    """Letters, digits, `-` and `.` unchanged, every other byte of the UTF-8 as `_` and two hex digits.

    A name that becomes too long is cut, and ends in `_-` and 32 hex digits of its BLAKE2b. No two names have
    the same slug.
    """
    data = queue.encode()
    slug = _escaped(data)
    if len(slug) <= SLUG_BYTES_MAX:
        return slug
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return f"{_escaped(data[:PREFIX_BYTES])[:PREFIX_BYTES]}{_CUT}{digest}"


def queue_of(slug: str) -> str | None:
    """The queue's name; None for a shortened slug (see the column `queue`)."""
    if _CUT in slug:
        return None
    data = bytearray()
    at = 0
    while at < len(slug):
        if slug[at] == "_":
            data.append(int(slug[at + 1 : at + 3], 16))
            at += 3
        else:
            data.append(ord(slug[at]))
            at += 1
    return data.decode()


def _escaped(data: bytes) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"_{byte:02x}" for byte in data)
