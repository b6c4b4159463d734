"""The archive: sealed segments of a shard's journals in a folder, for readers that don't use the shard.

    ARCHIVE/shard-7-3f2a…/identity.json           cluster, shard and disk of the journal
    ARCHIVE/shard-7-3f2a…/000000000012.segment    the file of the journal, by a hard link
    ARCHIVE/shard-7-3f2a…/000000000012.index      offsets of its records (index.py)

The index is written first. There is one folder per incarnation of a journal, that is per disk: a shard that
started on an empty disk has another folder.
Drawn in docs/formats/archive.md.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Final

FORMAT: Final = 1
IDENTITY: Final = "identity.json"
SEGMENT_SUFFIX: Final = ".segment"
INDEX_SUFFIX: Final = ".index"

_FOLDER: Final = re.compile(r"shard-(\d+)-([0-9a-f]+)")


class ArchiveError(Exception):
    """The folder is no archive of this format; the message says what was expected and found."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The journal of a shard on one disk; a shard that starts on an empty disk begins another."""

    cluster: str
    shard: int
    disk: str
    """Random id of the journal, drawn when it was made; positions of readers refer to it."""

    @property
    def folder(self) -> str:
        """Name of its folder in an archive."""
        return f"shard-{self.shard}-{self.disk}"

    def encode(self) -> str:
        """The text of identity.json."""
        return json.dumps({"format": FORMAT, **asdict(self)})


def decode_identity(text: str) -> Incarnation:
    """Decodes identity.json.

    Raises:
        ArchiveError: it is not of this format.
    """
    try:
        fields = json.loads(text)
        if fields["format"] > FORMAT:
            raise ArchiveError(
                f"the archive has format {fields['format']}, this version reads up to {FORMAT}"
            )
        return Incarnation(str(fields["cluster"]), int(fields["shard"]), str(fields["disk"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"expected an {IDENTITY} of an archive, found {text[:100]!r}") from error


def is_folder(name: str) -> bool:
    """Whether a folder of an archive may have this name."""
    return _FOLDER.fullmatch(name) is not None


def segment_name(number: int) -> str:
    """File name of a segment; the order of names is the order of numbers."""
    return f"{number:012d}{SEGMENT_SUFFIX}"


def index_name(number: int) -> str:
    """File name of the index of a segment."""
    return f"{number:012d}{INDEX_SUFFIX}"
