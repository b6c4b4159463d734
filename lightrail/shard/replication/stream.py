"""Stream: the owner's end of replication, which sends every commit to the members that follow.

A member attaches (wire/replication.py) and is ATTACHING until it has answered where its journal ends; from
there on it gets what the owner has written before, read from the owner's segments, and is BEHIND; when it has
all that was written before the commit under way, it gets every commit as the owner writes it, and is LIVE.
What a member acknowledges goes into the journal's marks, whether it is required or not.

The stream knows nothing of sockets and clocks: it is called on the loop, but for `perform`, and calls `send`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from lightrail.shard.journal.commit import JournalCommit, Reached
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import Commit, StoreError
from lightrail.shard.replicas.leases import OwnersLeases
from lightrail.shard.replicas.lineage import RecordEnd
from lightrail.shard.replication.pieces import behind, difference, encoded_pieces, lineage_of
from lightrail.wire.frames import WireError
from lightrail.wire.replication import (
    BEHIND,
    CHECKED,
    SYNC,
    WHOLE,
    JournalEnds,
    JournalPiece,
    MemberMessage,
    MessageKind,
    decode,
)

AHEAD_MAX: Final[int] = 64 << 20
"""Bytes that are kept for a member that does not acknowledge; beyond them it has to attach again."""
BEHIND_BYTES: Final[int] = 1 << 20
"""Bytes of one message to a member that is behind."""
ENCODED_AT_ONCE: Final[int] = 256 << 10
"""Bytes of a commit that is encoded on the loop; those of a larger one are, while the loop goes on."""
ACCEPTED_S: Final = 1.0
"""How long an owner that ends waits for the acknowledgements of members; senders repeat the rest."""
BEHIND_AHEAD: Final[int] = 4
"""Such messages that a member has not acknowledged."""

log = logging.getLogger("lightrail.shard.replication.stream")


_NOTHING: Final = RecordEnd(0, 0, 1)


class FollowerState(Enum):
    """What a member that follows gets; see the module."""

    ATTACHING = "attaching"
    BEHIND = "behind"
    LIVE = "live"


@dataclass(slots=True, eq=False, repr=False)
class AttachedMember:
    """A member that has attached."""

    member: str
    identity: bytes
    """Of its connection."""
    state: FollowerState = FollowerState.ATTACHING
    at: RecordEnd = _NOTHING
    """While it is behind: the end of what it was sent."""
    sent: deque[int] = field(default_factory=deque)
    """Bytes of each message that it has not acknowledged, the oldest first."""
    ahead: int = 0
    """The sum of them."""
    first: int = 0
    """Number of the oldest of these messages while it is live."""
    heard: int = 0
    """Number of the last message that it has acknowledged."""


class Stream:
    """The followers of one owner in one epoch.

    Args:
        is_member: whether a member belongs to the shard.
        send: sends a message to a connection; False if it is lost.
        run_on_loop: calls a function on the loop, from any thread.
        on_accepted: called when members have acknowledged, after the journal's mark was set.
        on_ended: called with the reason for which this owner has to end: a member knows a newer epoch, or a
            required one has accepted records that this journal lacks.
    """

    def __init__(
        self,
        journal: Journal,
        epoch: int,
        own: JournalEnds,
        leases: OwnersLeases,
        *,
        is_member: Callable[[str], bool],
        send: Callable[[bytes, list[bytes]], bool],
        run_on_loop: Callable[[Callable[[], None]], object],
        on_accepted: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self.epoch: Final = epoch
        self.followers: dict[str, AttachedMember] = {}
        self.left: set[str] = set()
        """Members whose processes have ended in order, until they attach again."""
        self.prepared: set[str] = set()
        """Members that have read their journals, as they were requested to."""
        self.news = asyncio.Event()
        """Set when a member has acknowledged, prepared itself, or is lost."""
        self.became_live = asyncio.Event()
        """Set when a member has everything that was written before."""
        self._journal = journal
        self._own = own
        self._leases = leases
        self._is_member = is_member
        self._send = send
        self._run_on_loop = run_on_loop
        self._on_accepted = on_accepted
        self._on_ended = on_ended
        self._ends_at = 0.0
        """Until when an owner that ends waits for acceptance; 0: it does not end."""
        self.number = 0
        """Of the last message to live members."""
        self._written = journal.position.ended.position
        """The end of what was written to this disk."""
        self.is_returned = False
        """Whether this owner has returned its leases: another one is to take over."""
        self._reached: tuple[Reached, int] | None = None
        """How far records were accepted, and messages heard, at the last acknowledgement."""
        self._under_way: MemberMessage | None = None
        """The commit that is being written."""

    # --- from members ------------------------------------------------------------------------------------

    def receive(self, identity: bytes, parts: list[bytes]) -> None:
        """Handles one message of a member; what can't be read is logged and changes nothing."""
        try:
            message = decode(parts)
            if message.epoch > self.epoch:
                self._on_ended(f"a member of the shard knows an owner of epoch {message.epoch}")
                return
            if message.kind is MessageKind.ATTACH:
                self._attach(identity, JournalEnds.decode(message.body))
                return
            follower = self._of(identity)
            if follower is None or message.epoch != self.epoch:
                return
            if message.kind is MessageKind.READY:
                ((segment, offset, next_lsn),) = JournalEnds.decode(message.body).lineage
                self._ready(follower, RecordEnd(segment, offset, next_lsn), message)
            elif message.kind is MessageKind.SYNCED:
                self._synced(follower, message)
            elif message.kind is MessageKind.GRANT:
                self._leases.granted(follower.member, message.number)
            elif message.kind is MessageKind.LEAVING:
                self.left.add(follower.member)
                del self.followers[follower.member]
            elif message.kind is MessageKind.PREPARED:
                self.prepared.add(follower.member)
            elif message.kind is MessageKind.REFUSED:
                self._refused(follower, message.body.decode(errors="replace"))
            self.news.set()
        except (WireError, ValueError) as error:
            log.error("a message of a member was not applied: %s", error)

    def _of(self, identity: bytes) -> AttachedMember | None:
        return next((each for each in self.followers.values() if each.identity == identity), None)

    def _attach(self, identity: bytes, ends: JournalEnds) -> None:
        if not self._is_member(ends.member):
            reason = f"expected a member of shard {self._journal.incarnation.shard}, found {ends.member}"
            refusal = MemberMessage(MessageKind.REFUSED, self.epoch, body=reason.encode())
            self._send(identity, refusal.encode())
            return
        self.followers[ends.member] = AttachedMember(ends.member, identity)
        self.left.discard(ends.member)
        self._own.lineage = lineage_of(self._journal, self._written)
        body = self._own.encode()
        self._send(identity, MemberMessage(MessageKind.ENDS, self.epoch, self.number, body=body).encode())

    def _ready(self, follower: AttachedMember, at: RecordEnd, message: MemberMessage) -> None:
        reason = difference(self._journal, at, message.number) if message.flags & CHECKED else ""
        if reason:
            log.error("member %s can't follow: %s", follower.member, reason)
            refusal = MemberMessage(MessageKind.REFUSED, self.epoch, body=reason.encode())
            self._send(follower.identity, refusal.encode())
            self._refused(follower, reason)
            return
        follower.state, follower.at = FollowerState.BEHIND, at
        # What it acknowledged before may be lost: a directory that was set back attaches under the same id.
        marks = self._journal.marks
        marks.synced(follower.member, min(marks.mark(follower.member), at.next_lsn - 1))
        self._catch_up(follower)

    def _synced(self, follower: AttachedMember, message: MemberMessage) -> None:
        if follower.state is FollowerState.LIVE:
            while follower.sent and follower.first <= message.number:
                follower.ahead -= follower.sent.popleft()
                follower.first += 1
            follower.heard = max(follower.heard, message.number)
        elif follower.sent:
            follower.ahead -= follower.sent.popleft()
        self._journal.marks.synced(follower.member, message.lsn)
        if follower.state is FollowerState.BEHIND:
            self._catch_up(follower)
        self._journal.accept()
        # With three members the first of two acknowledgements changes nothing, and a turn costs CPU.
        reached = (self._journal.committed, self.heard)
        if reached != self._reached:
            self._reached = reached
            self._on_accepted()

    def _refused(self, follower: AttachedMember, reason: str) -> None:
        """A member does not cut accepted records: if it is required, they are missing here."""
        del self.followers[follower.member]
        if follower.member in self._journal.marks.others:
            self._on_ended(f"member {follower.member} has accepted records that this one lacks: {reason}")

    def lost(self, identity: bytes) -> None:
        """The connection of a member is lost: it attaches again."""
        follower = self._of(identity)
        if follower is not None:
            del self.followers[follower.member]
            self.news.set()

    # --- members that are behind -------------------------------------------------------------------------

    def _catch_up(self, follower: AttachedMember) -> None:
        """Sends what was written before, until the member has all of it or has much to acknowledge."""
        while follower.state is FollowerState.BEHIND and len(follower.sent) < BEHIND_AHEAD:
            if follower.at == self._written:
                follower.state = FollowerState.LIVE
                self.became_live.set()
                follower.sent.clear()
                follower.ahead, follower.heard, follower.first = 0, 0, self.number + 1
                last = MemberMessage(MessageKind.COMMIT, self.epoch, flags=BEHIND)
                if self._under_way is not None:
                    last = self._under_way._replace(flags=self._under_way.flags | BEHIND)
                self._send_to(follower, last._replace(number=self.number))
                return
            try:
                piece, follower.at = behind(self._journal, follower.at, self._written, BEHIND_BYTES)
            except StoreError as error:
                log.warning("member %s attaches again: %s", follower.member, error)
                self._detach(follower)
                return
            follower.sent.append(len(piece.data))
            follower.ahead += len(piece.data)
            flags = BEHIND | SYNC
            message = MemberMessage(MessageKind.COMMIT, self.epoch, self.number, flags=flags, pieces=[piece])
            self._send_to(follower, message)

    # --- members that are live ---------------------------------------------------------------------------

    def begun(self, commit: Commit) -> Callable[[], None] | None:
        """What the commit thread has to do in the place of `commit.perform`, or None; the other members get
        the bytes while this disk writes them.

        A small commit is sent at once: its encoding costs less than another turn of the loop.
        """
        assert isinstance(commit, JournalCommit), "only journals have members"
        if sum([part.end - part.start for part in commit.parts]) > ENCODED_AT_ONCE:
            return partial(self._perform, commit)
        commit.encode()
        self.begin(commit)
        return None

    def _perform(self, commit: JournalCommit) -> None:
        commit.encode()
        self._run_on_loop(partial(self.begin, commit))
        commit.perform()

    def begin(self, commit: JournalCommit) -> None:
        """Sends a commit that is encoded, and that this disk begins to write."""
        pieces = list(encoded_pieces(commit, self._journal.salt))
        flags = (SYNC if commit.synced else 0) | (WHOLE if commit.reached.whole else 0)
        self._under_way = self._sent(MessageKind.COMMIT, pieces, flags=flags, lsn=commit.last_lsn)

    def end(self, commit: Commit) -> bool:
        """Notes that the commit under way is on this disk; returns whether commits wait for other members,
        so that `on_accepted` follows."""
        assert isinstance(commit, JournalCommit), "only journals have members"
        self._under_way = None
        self._written = commit.reached.position
        if commit.drops:
            self._sent(MessageKind.DROP, lsn=max(segment.number for segment in commit.drops) + 1)
        for follower in [*self.followers.values()]:
            if follower.state is FollowerState.BEHIND:
                self._catch_up(follower)
        return self._journal.marks.waits

    def begin_round(self) -> int:
        """Sends a message without bytes to all live members; returns its number."""
        return self._sent(MessageKind.COMMIT).number

    @property
    def heard(self) -> int:
        """Number of the last message that every required member has acknowledged (law 7 of ADR 73)."""
        others = self._journal.marks.others
        heard = [self.followers[each].heard if each in self.followers else 0 for each in others]
        return min(heard, default=self.number)

    def beat(self, now_ns: int) -> None:
        """Requests the next lease; called every BEAT_NS."""
        number = self._leases.beat(now_ns)
        accepted = self._journal.committed.next_lsn - 1
        message = MemberMessage(MessageKind.BEAT, self.epoch, number, accepted=accepted)
        for follower in [*self.followers.values()]:
            self._send_to(follower, message)

    async def prepare(self, member: str, until: float) -> bool:
        """Whether a member that follows is ready to take over; waits for that until this time of the loop, or
        until the member is lost or attaches again, which makes it forget the request."""
        follower = self.followers[member]
        self._send_to(follower, MemberMessage(MessageKind.PREPARE, self.epoch))
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.followers.get(member) is follower and member not in self.prepared:
                    self.news.clear()
                    await self.news.wait()
        return member in self.prepared

    async def until_accepted(self) -> bool:
        """Waits until all that is on this disk is accepted; False if it is, or ACCEPTED_S have passed since
        the first call."""
        loop = asyncio.get_running_loop()
        self._ends_at = self._ends_at or loop.time() + ACCEPTED_S
        journal = self._journal
        is_missing = journal.committed.next_lsn <= journal.position.synced_lsn
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._ends_at):
                while journal.committed.next_lsn <= journal.position.synced_lsn:
                    self.news.clear()
                    await self.news.wait()
                return is_missing
        return False

    def return_leases(self, successor: str = "") -> None:
        """Tells all members that this owner delivers nothing more, and which of them is to take over."""
        self.is_returned = True
        self._leases.return_all()
        message = MemberMessage(MessageKind.RETURNED, self.epoch, body=successor.encode())
        for follower in [*self.followers.values()]:
            self._send_to(follower, message)

    def _sent(
        self, kind: MessageKind, pieces: Iterable[JournalPiece] = (), *, flags: int = 0, lsn: int = 0
    ) -> MemberMessage:
        """Sends the next numbered message to all live members."""
        self.number += 1
        accepted = self._journal.committed.next_lsn - 1
        message = MemberMessage(kind, self.epoch, self.number, lsn, accepted, flags, pieces=tuple(pieces))
        live = [each for each in self.followers.values() if each.state is FollowerState.LIVE]
        if live:
            parts, size = message.encode(), sum([len(piece.data) for piece in message.pieces])
            for follower in live:
                self._send_live(follower, parts, size)
        return message

    def _send_live(self, follower: AttachedMember, parts: list[bytes], size: int) -> None:
        follower.sent.append(size)
        follower.ahead += size
        if follower.ahead > AHEAD_MAX:
            log.warning("member %s is %d bytes behind, and attaches again", follower.member, follower.ahead)
            self._detach(follower)
        elif not self._send(follower.identity, parts):
            self.followers.pop(follower.member, None)

    def _send_to(self, follower: AttachedMember, message: MemberMessage) -> None:
        if not self._send(follower.identity, message.encode()):
            self.followers.pop(follower.member, None)

    def _detach(self, follower: AttachedMember) -> None:
        reason = b"attach again"
        self._send(follower.identity, MemberMessage(MessageKind.REFUSED, self.epoch, body=reason).encode())
        self.followers.pop(follower.member, None)
