"""The identity of a journal: a small file beside the segments, checked before anything is read."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from lightrail.journal.segment_header import FORMAT_VERSION
from lightrail.shard.journal.files import Files
from lightrail.shard.journal.store import NewerFormatError, StoreRefusedError

IDENTITY_FILE: Final = "identity.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the directory, written at its first use."""

    format: int
    cluster: str
    shard: int
    disk: str
    """Random id that distinguishes two disks of the same shard."""
    salt: int
    """Start value of all checksums of this journal."""


def load_identity(files: Files) -> Identity | None:
    """The identity of a directory; None if it has none yet.

    Raises:
        NewerFormatError: the file has a newer format.
        StoreRefusedError: the file can't be read.
    """
    data = files.load(IDENTITY_FILE)
    if data is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(data)
        version = int(fields["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreRefusedError(
            f"expected {IDENTITY_FILE} of a journal, found {data[:80]!r} ({error}): "
            "restore the file from a copy"
        ) from error
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"this journal has format version {version}, this program knows {FORMAT_VERSION} and older: "
            "start it with the newer program that wrote it"
        )
    return Identity(
        version, str(fields["cluster"]), int(fields["shard"]), str(fields["disk"]), int(fields["salt"])
    )


def settle(
    files: Files, cluster: str, shard: int, salt: int | None = None, disk: str | None = None
) -> Identity:
    """Checks that the directory belongs to this shard; a new directory gets its identity.

    Args:
        salt: the salt in the headers of the segments, for a directory that lost its identity file.
        disk: the id of the disk, for a new directory whose disk has one already.

    Raises:
        StoreRefusedError: the directory belongs to another shard or cluster, or has a newer format.
    """
    found = load_identity(files)
    if found is None:
        drawn = files.random()
        if salt is None:
            salt = int.from_bytes(drawn[:4], "little")
        identity = Identity(FORMAT_VERSION, cluster, shard, disk or drawn.hex(), salt)
        files.replace(IDENTITY_FILE, json.dumps(asdict(identity), indent=2).encode() + b"\n")
        return identity
    if (found.cluster, found.shard) != (cluster, shard):
        raise StoreRefusedError(
            f"expected the journal of shard {shard} of cluster {cluster!r}, found that of shard "
            f"{found.shard} of cluster {found.cluster!r}: give this shard its own directory"
        )
    return found
