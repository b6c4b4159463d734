"""Replication: the messages between the owner of a shard and its other members.

A member connects to the owner's socket for members, and sends ATTACH; the owner answers with its lineage
(ENDS), the member cuts what the owner does not have, and says where its journal ends (READY). From there on
the owner sends everything that it writes, as bytes:

    member  ATTACH ─────────> owner     the member's id and newest epoch
            <───────── ENDS             the owner's journal and its lineage
            READY ──────────>           where the member's journal ends, after the cut, and its last bytes
            <─────── COMMIT …           numbered; whole records of segments, SYNC if the owner syncs them
            SYNCED ─────────>           of the last message that arrived; last record on the member's disk
            <───────── BEAT             every half a second; the owner's accepted mark
            GRANT ──────────>           of this beat: the owner may deliver for a while (replicas/leases.py)

A member that misses a number attaches again. Any member is asked how far it reaches by LOOK, and answers
SEEN. Each message is a ZeroMQ message whose first part begins with the header; integers are little-endian.
Header, 32 bytes: kind u8, flags u8, version u16, epoch u32, number u64, lsn u64, accepted u64. In COMMIT the
places of all pieces follow it, as each part costs both ends as much as some KiB of bytes do.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error
from typing import Final, NamedTuple
from zlib import crc32

from lightrail.wire.frames import Buffer, WireError

VERSION: Final = 2
HEADER: Final = Struct("<BBHIQQQ")
PIECE: Final = Struct("<QQQI")
"""Segment u64, offset of the first byte u64, number of the record behind the bytes u64, checksum u32 (see
checksum_of); the header of a segment is a piece at offset 0."""
SYNC: Final = 1
"""Flag of COMMIT: the owner syncs the bytes, and the member has to."""
BEHIND: Final = 2
"""Flag of COMMIT: the member is behind the owner. The number is that of the last message to members that are
not, and is not counted."""
WHOLE: Final = 8
"""Flag of COMMIT: its last record ends a group, so that no recovery cuts it."""
CHECKED: Final = 4
"""Flag of READY: the number is the checksum of the member's last bytes before the end. The lineages of two
owners that had one epoch, after etcd was set back, are equal although their bytes differ."""
CHECKED_BYTES: Final = 64 << 10
"""Bytes of the segment before the end that this checksum covers; all, if there are fewer."""


_POSITION: Final = Struct("<QQQ")
"""segment, offset, number of the record behind the bytes."""


def checksum_of(salt: int, segment: int, offset: int, next_lsn: int, pieces: Sequence[Buffer]) -> int:
    """The checksum of the bytes of whole records, which belong to this position of this journal."""
    checksum = crc32(_POSITION.pack(segment, offset, next_lsn), salt)
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return checksum


class MessageKind(IntEnum):
    """Kinds of messages; the first group goes to the owner, or asks any member."""

    ATTACH = 1
    READY = 2
    SYNCED = 3
    GRANT = 4
    LOOK = 5
    LEAVING = 6
    """The member ends in order: the owner need not wait until it is silent."""
    PREPARED = 7
    """The member has read its journal, and would be the owner within a moment."""

    ENDS = 65
    COMMIT = 66
    DROP = 67
    """Segments before the one with the number in `lsn` are dropped; numbered as COMMIT is."""
    BEAT = 68
    RETURNED = 69
    """The owner delivers nothing more in this epoch; the body is the member that is to take over, if any."""
    SEEN = 70
    REFUSED = 71
    """The other end has a newer epoch (`epoch`), or knows no such member; the body is the reason."""
    PREPARE = 72
    """The member is to take over soon."""


_LOOK: Final = bytes((MessageKind.LOOK,))
_KINDS: Final = {kind.value: kind for kind in MessageKind}


class JournalPiece(NamedTuple):
    """Whole records of one segment, or its header."""

    segment: int
    offset: int
    next_lsn: int
    checksum: int
    data: bytes


class Reach(NamedTuple):
    """How far the journal of a member reaches; a larger one has everything that a smaller one has."""

    epoch: int
    """Of its newest segment."""
    next_lsn: int


NOTHING: Final = Reach(0, 1)
"""The reach of a member that has no journal."""


@dataclass(slots=True)
class JournalEnds:
    """Body of ATTACH, READY, ENDS and SEEN: whose journal it is, and how far it reaches."""

    member: str
    boot: int = 0
    disk: str = ""
    """Id of the journal, which all members share; with the salt only in ENDS."""
    salt: int = 0
    lineage: Sequence[Sequence[int]] = ()
    """Segment, first record, epoch, end and next record of each segment, the newest first."""

    def encode(self) -> bytes:
        fields = (self.member, self.boot, self.disk, self.salt, [list(each) for each in self.lineage])
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> "JournalEnds":
        """Reads a body. Raises WireError."""
        try:
            member, boot, disk, salt, lineage = json.loads(body)
            stretches = [tuple(map(int, each)) for each in lineage]
            return cls(str(member), int(boot), str(disk), int(salt), stretches)
        except (ValueError, TypeError) as wrong:
            raise WireError(f"expected how far a journal reaches, found {body[:80]!r}: {wrong}") from wrong


class MemberMessage(NamedTuple):
    """A message as it was received; what the fields mean depends on the kind."""

    kind: MessageKind
    epoch: int
    number: int = 0
    lsn: int = 0
    accepted: int = 0
    flags: int = 0
    body: bytes = b""
    pieces: Sequence[JournalPiece] = ()

    def encode(self) -> list[bytes]:
        """The parts of the ZeroMQ message."""
        kind, epoch, number, lsn, accepted, flags, body, pieces = self
        head = HEADER.pack(kind, flags, VERSION, epoch, number, lsn, accepted)
        if pieces:
            places = [PIECE.pack(*piece[:4]) for piece in pieces]
            return [b"".join((head, *places)), *[piece.data for piece in pieces]]
        return [head, body] if body else [head]


def is_look(parts: Sequence[bytes]) -> bool:
    """Whether a message is LOOK, as its first byte says: each acknowledgement is asked."""
    return bool(parts) and parts[0][:1] == _LOOK


def decode(parts: Sequence[bytes]) -> MemberMessage:
    """Reads a message. Raises WireError."""
    try:
        head = parts[0]
        kind, flags, version, epoch, number, lsn, accepted = HEADER.unpack_from(head)
        if version != VERSION:
            raise WireError(
                f"expected a member that speaks version {VERSION} of replication, found {version}: run the "
                "same program on all members"
            )
        found = _KINDS[kind]
        if len(parts) == 1 and len(head) == HEADER.size:
            return MemberMessage(found, epoch, number, lsn, accepted, flags)
        places, bodies = PIECE.iter_unpack(memoryview(head)[HEADER.size :]), parts[1:]
        if found is MessageKind.COMMIT:
            pieces = [
                JournalPiece(segment, offset, next_lsn, checksum, bytes(data))
                for (segment, offset, next_lsn, checksum), data in zip(places, bodies, strict=True)
            ]
            return MemberMessage(found, epoch, number, lsn, accepted, flags, b"", pieces)
        (body,), () = bodies, tuple(places)
        return MemberMessage(found, epoch, number, lsn, accepted, flags, bytes(body))
    except (error, ValueError, KeyError, IndexError) as wrong:
        raise WireError(f"expected a message between members of a shard, found {wrong}") from wrong
