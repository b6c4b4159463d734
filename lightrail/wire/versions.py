"""Versions: a process speaks its own version of the wire and the one before, so that upgrades can roll.

A frontend greets with the newest version that it knows. A shard that knows this version answers in it, and
otherwise names its own newest version, in which the frontend greets again if it knows it. Both ends then send
only what that version has: bodies have their newer fields removed here; newer kinds of frames, and flags with
a meaning that an older process must not miss, are sent only to a peer whose version has them.
"""

import json
from collections.abc import Mapping
from typing import Final

from lightrail.wire.frames import HEADER_SIZE, VERSION, Kind

VERSIONS: Final = range(VERSION - 1, VERSION + 1)
"""The versions that this program speaks."""
NEW_FIELDS: Final[Mapping[int, frozenset[str]]] = {
    Kind.PRODUCER_OPEN: frozenset({"attach", "user", "sent_below", "routed"}),
    Kind.CONSUMER_OPEN: frozenset({"user", "lock_ends", "removes_first", "removed_bytes_max"}),
}
"""By kind of frame: fields of its body that VERSION has, and the version before has not. Programs of version
4 refuse a body with a field that they do not know; later programs ignore it."""


def unknown(peer: str, version: int) -> str:
    """What to log about a peer whose version this program does not speak."""
    return (
        f"{peer} has version {version} of the wire, and this process ({VERSION}) speaks {VERSIONS[0]} to "
        f"{VERSIONS[-1]}: they can't serve each other. Run the same program on both, or go through the "
        "versions in between (docs/operate/backup.md#upgrade)"
    )


def for_version(
    parts: list[bytes], version: int, new: Mapping[int, frozenset[str]] = NEW_FIELDS
) -> list[bytes]:
    """Frames as a peer of this version reads them: without the fields of bodies that it does not know."""
    if version == VERSION or not new:
        return parts
    return [_without(part, new[part[0]]) if part[0] in new else part for part in parts]


def _without(part: bytes, names: frozenset[str]) -> bytes:
    if len(part) == HEADER_SIZE:
        return part
    fields = json.loads(bytes(part[HEADER_SIZE:]))
    kept = {name: value for name, value in fields.items() if name not in names}
    return part[:HEADER_SIZE] + json.dumps(kept, separators=(",", ":")).encode()
