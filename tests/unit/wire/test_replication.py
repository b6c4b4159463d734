"""Messages between the members of a shard: what was encoded is decoded, and all else is refused."""

import pytest

from lightrail.wire.frames import WireError
from lightrail.wire.replication import (
    HEADER,
    SYNC,
    VERSION,
    JournalEnds,
    JournalPiece,
    MemberMessage,
    MessageKind,
    decode,
    is_look,
)

PIECES = [JournalPiece(3, 0, 7, 0, b"a header"), JournalPiece(3, 40, 9, 0xFFFF_FFFF, b"two records")]
MESSAGES = [
    MemberMessage(MessageKind.ATTACH, 2, body=JournalEnds("member", 5).encode()),
    MemberMessage(MessageKind.SYNCED, 2, number=8, lsn=1 << 60),
    MemberMessage(MessageKind.COMMIT, 2, number=9, lsn=8, accepted=6, flags=SYNC, pieces=PIECES),
    MemberMessage(MessageKind.COMMIT, 2, number=10, accepted=8),
    MemberMessage(MessageKind.REFUSED, 3, body=b"a reason"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: f"{each.kind.name}-{len(each.pieces)}")
def test_a_message_is_decoded_as_it_was_encoded(message: MemberMessage) -> None:
    found = decode([memoryview(part) for part in message.encode()])  # type: ignore[misc]
    assert found == message._replace(pieces=found.pieces)
    assert [*found.pieces] == [*message.pieces]


def test_a_look_is_told_from_all_else_by_its_first_byte() -> None:
    assert is_look(MemberMessage(MessageKind.LOOK, 3).encode())
    assert not any(is_look(each.encode()) for each in MESSAGES)
    assert not is_look([])
    assert not is_look([b"", b"\x05"])


def test_the_places_of_all_pieces_are_in_the_first_part() -> None:
    head, *data = MESSAGES[2].encode()
    assert len(head) == HEADER.size + 2 * 28
    assert data == [b"a header", b"two records"]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [MESSAGES[1].encode()[0][:-1]],
        [MESSAGES[1].encode()[0] + bytes(1)],
        [*MESSAGES[1].encode(), b"a body", b"another one"],
        [MESSAGES[1].encode()[0] + bytes(28), b"a body"],
        MESSAGES[2].encode()[:-1],
        MESSAGES[2].encode()[:1],
        [*MESSAGES[2].encode(), b"bytes without a place"],
        [MESSAGES[2].encode()[0][:-1], b"a header", b"two records"],
        [HEADER.pack(99, 0, VERSION, 1, 0, 0, 0)],
    ],
)
def test_what_is_no_message_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(WireError, match="expected a message between members of a shard"):
        decode(parts)


def test_a_member_of_another_version_is_refused() -> None:
    with pytest.raises(WireError, match=f"speaks version {VERSION} of replication, found {VERSION + 1}"):
        decode([HEADER.pack(MessageKind.BEAT, 0, VERSION + 1, 1, 0, 0, 0)])


def test_how_far_a_journal_reaches_is_decoded_as_it_was_encoded() -> None:
    ends = JournalEnds("member", 5, "disk", 1 << 31, [(3, 7, 2, 4_096, 9)])
    assert JournalEnds.decode(ends.encode()) == ends
    with pytest.raises(WireError, match="expected how far a journal reaches"):
        JournalEnds.decode(b"[1, 2]")
