"""Following: a member's end of replication, which writes what the owner writes.

    DETACHED --attach--> ATTACHING --ENDS--> CUTTING --cut--> FOLLOWING
       any state --refused, gap, error of the mirror--> DETACHED, and it attaches again

A member answers no owner with an older epoch than its journal has, or than it has granted a lease. It is
called on the loop; the mirror is called in a thread of its own, in order.
"""

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.journal.store import MirrorError
from lightrail.shard.replicas.leases import Grant
from lightrail.shard.replicas.lineage import LineageError, OwnedSegment, compare
from lightrail.wire.frames import WireError
from lightrail.wire.replication import (
    BEHIND,
    CHECKED,
    SYNC,
    WHOLE,
    JournalEnds,
    MemberMessage,
    MessageKind,
    Reach,
    decode,
)

_Found = TypeVar("_Found")
Submit = Callable[[Callable[[], object], Callable[[BaseException | None], None]], None]
STUCK_NS: Final[int] = 1_500_000_000
"""Silence of an owner after which a member attaches again: messages may be lost with a connection."""
EXTENT_BEATS: Final = 10
"""Beats after which the accepted end is written to the disk: five seconds."""

log = logging.getLogger("lightrail.shard.replication.following")


class FollowingState(Enum):
    """How far a member is; see the module."""

    DETACHED = "detached"
    ATTACHING = "attaching"
    CUTTING = "cutting"
    FOLLOWING = "following"


class Following:
    """One member that follows.

    Args:
        submit: runs a job in a thread, in order, and calls the second function on the loop with its error.
        open_mirror: opens the mirror of a journal with this id and salt.
        send: sends a message to the owner; False if it is not connected.
        on_broken: called when this member can't go on: its disk failed, or nothing can be cut.
        on_prepare: called when the owner requests this member to be ready to take over.
        on_returned: called when the owner has returned its leases.
    """

    def __init__(
        self,
        member: str,
        boot: int,
        grant: Grant,
        submit: Submit,
        *,
        open_mirror: Callable[[str, int], Mirror],
        send: Callable[[list[bytes]], bool],
        now_ns: Callable[[], int],
        on_broken: Callable[[BaseException], None],
        on_prepare: Callable[[], None] = lambda: None,
        on_returned: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = FollowingState.DETACHED
        self.epoch = 0
        """Of the owner that it follows, or attaches to."""
        self.promised = 0
        """No owner of an older epoch is answered: the owner of this epoch knows how far this journal reaches,
        or the process has read the epoch in the entry at its start."""
        self.heard_ns = now_ns()
        """When the owner was heard last."""
        self._awaited, self._awaited_ns = -1, 0
        """The epoch whose owner this member waits for, and since when."""
        self.returned = 0
        """The newest epoch whose owner has returned its leases: it is about to end."""
        self.successor = ""
        """The member that it has chosen to take over, if any."""
        self.whole_in = 0
        """Epoch of an owner by whose word this process has had all accepted records, and was not cut since;
        0 if there is none. While this member is in sync no others are accepted without it."""
        self.whole_lsn = 0
        """Number of the last record on this disk that ended a group of an owner that it has followed since it
        was cut: any recovery finds it."""
        self.mirror: Mirror | None = None
        self._member = member
        self._boot = boot
        self._grant = grant
        self._submit = submit
        self._open_mirror = open_mirror
        self._send = send
        self._now_ns = now_ns
        self._on_broken = on_broken
        self._on_prepare = on_prepare
        self._on_returned = on_returned
        self._number = 0
        """Of the last message that arrived."""
        self._arrived: deque[MemberMessage] = deque()
        """Messages of this attempt that are not written yet."""
        self._is_wanted = False
        """Whether a job that writes them is still to begin."""
        self._attempt = 0
        """Of its attaches: what is left of a former one changes nothing."""
        self._beats = 0
        """Number of beats whose mark was noted."""
        self._attached_ns = 0
        self._refused_for = ""
        """Reason of the last refusal: a member attaches again and again, but logs it once."""
        self._kept_for = ""
        """Why this member was not cut the last time; it is logged once, too."""

    def promise(self, epoch: int) -> None:
        """From now on no owner of an older epoch is answered: what it still sends was never accepted."""
        if epoch > max(self.promised, self.epoch):
            self.promised = epoch
            self.detach()

    def look(self, then: Callable[[Reach], None]) -> None:
        """Calls `then` on the loop with how far the journal reaches when all that has arrived is written: a
        cut that is under way has ended by then."""
        found: list[Reach] = []

        def done(error: BaseException | None) -> None:
            if error is None:
                then(found[0])

        self._submit(lambda: found.append(self.reach), done)

    @property
    def reach(self) -> Reach:
        """How far the journal on this disk reaches; while the thread cuts it, only about so far."""
        mirror = self.mirror
        if mirror is None:
            return Reach(0, 1)
        newest = mirror.lineage[:1]
        return Reach(newest[0].epoch if newest else 0, mirror.synced_lsn + 1)

    @property
    def _oldest(self) -> int:
        """The oldest epoch whose owner is answered."""
        return max(self.epoch, self.promised, self._grant.epoch)

    def attach(self, epoch: int) -> None:
        """Attaches to the owner of an epoch, unless a newer one is known."""
        if epoch < self._oldest:
            return
        self._begin_attempt()
        self._attached_ns = self._now_ns()
        self.state, self.epoch = FollowingState.ATTACHING, epoch
        message = MemberMessage(
            MessageKind.ATTACH, epoch, body=JournalEnds(self._member, self._boot).encode()
        )
        if not self._send(message.encode()):
            self.state = FollowingState.DETACHED

    def silent_ns(self, epoch: int) -> int:
        """For how long the owner of this epoch is silent.

        The silence of the owner before it does not count: with it the next member that has waited as long
        would take the shard over from the new owner at once.
        """
        if epoch != self._awaited:
            self._awaited, self._awaited_ns = epoch, self._now_ns()
        return self._now_ns() - max(self.heard_ns, self._awaited_ns)

    @property
    def is_stuck(self) -> bool:
        """Whether the owner has neither answered the last attach nor sent a beat for a while."""
        return self._now_ns() - max(self._attached_ns, self.heard_ns) > STUCK_NS

    def prepared(self) -> None:
        """Tells the owner that this member has read its journal."""
        self._send(MemberMessage(MessageKind.PREPARED, self.epoch).encode())

    def leave(self) -> None:
        """Ends in order: the owner removes this member at once, if the minimum allows."""
        if self.state is FollowingState.FOLLOWING:
            self._send(MemberMessage(MessageKind.LEAVING, self.epoch).encode())
        self.detach()

    def detach(self) -> None:
        """Follows nobody; what a job has begun to write is still written."""
        self._begin_attempt()
        self.state = FollowingState.DETACHED

    def _begin_attempt(self) -> None:
        self._attempt += 1
        self._arrived, self._is_wanted = deque(), False

    # --- from the owner ----------------------------------------------------------------------------------

    def receive(self, parts: list[bytes]) -> None:
        """Handles one message of the owner."""
        try:
            message = decode(parts)
            if message.epoch < self._oldest and message.kind is not MessageKind.REFUSED:
                self._refuse(self._oldest, "there is a newer owner")
                return
            self._apply(message)
        except (WireError, MirrorError) as error:
            log.warning("this member attaches again: %s", error)
            self.detach()

    def _refuse(self, epoch: int, reason: str) -> None:
        """Says to an owner that it can't be followed."""
        self._send(MemberMessage(MessageKind.REFUSED, epoch, body=reason.encode()).encode())

    def _apply(self, message: MemberMessage) -> None:
        kind = message.kind
        if kind is MessageKind.REFUSED:
            reason = message.body.decode(errors="replace")
            if reason != self._refused_for:
                log.warning("the owner refuses this member: %s", reason)
            self._refused_for = reason
            self.detach()
        elif kind is MessageKind.ENDS and self.state is FollowingState.ATTACHING:
            self.heard_ns, self._refused_for = self._now_ns(), ""
            self.state, self._number = FollowingState.CUTTING, message.number
            ends = JournalEnds.decode(message.body)
            self._run(partial(self._become_like, ends), self._ready)
        elif kind is MessageKind.BEAT:
            if self._grant.give(message.epoch, self._now_ns()):
                self.heard_ns = self._now_ns()
                self._send(MemberMessage(MessageKind.GRANT, message.epoch, message.number).encode())
            if self.state is FollowingState.FOLLOWING:
                self._run(partial(self._accept, message.accepted), self._became_whole)
        elif kind is MessageKind.RETURNED:
            self._grant.give_back(message.epoch)
            self.returned, self.successor = message.epoch, message.body.decode(errors="replace")
            self._on_returned()
        elif kind is MessageKind.PREPARE and self.state is FollowingState.FOLLOWING:
            self._on_prepare()
        elif self.state is FollowingState.FOLLOWING and kind in (MessageKind.COMMIT, MessageKind.DROP):
            self._follow(message)

    def _follow(self, message: MemberMessage) -> None:
        expected = self._number + 1
        is_behind = bool(message.flags & BEHIND)
        if not is_behind and message.number != expected:
            raise MirrorError(f"expected message {expected} of the owner, found {message.number}")
        self._number = message.number
        self.heard_ns = self._now_ns()
        # Also a message without bytes waits for those before it: a disk that hangs is not to be hidden.
        self._arrived.append(message)
        if is_behind or not self._is_wanted:
            self._is_wanted = not is_behind
            self._run(partial(self._write_arrived, self._arrived), self._acknowledge)

    def _became_whole(self, has_everything: bool) -> None:
        if has_everything:
            self.whole_in = self.epoch

    def _acknowledge(self, written: tuple[int, int, bool] | None) -> None:
        if written is None:
            return
        number, whole_lsn, has_everything = written
        self._became_whole(has_everything)
        assert self.mirror is not None
        lsn = self.mirror.synced_lsn
        if self.whole_lsn < whole_lsn <= lsn:
            self.whole_lsn = whole_lsn
        self._send(MemberMessage(MessageKind.SYNCED, self.epoch, number, lsn).encode())

    # --- in the thread of the mirror ---------------------------------------------------------------------

    def _become_like(self, ends: JournalEnds) -> MemberMessage:
        """Opens the mirror, and cuts what the owner does not have; the answer says where it ends then."""
        mirror = self.mirror
        if mirror is None:
            mirror = self.mirror = self._open_mirror(ends.disk, ends.salt)
        owner = [OwnedSegment(*each) for each in ends.lineage]
        comparison = compare(mirror.lineage, owner, mirror.accepted_lsn)
        if comparison.cut:
            # Only then: a member that attaches again, maybe to a new owner, still has what it had.
            self.whole_in = self.whole_lsn = 0
            mirror.cut(comparison.common)
        common = comparison.common
        body = JournalEnds(self._member, self._boot, lineage=[common]).encode()
        ready = MemberMessage(MessageKind.READY, self.epoch, body=body)
        if not common.offset:
            return ready
        return ready._replace(flags=CHECKED, number=mirror.checksum_before(common))

    def _write_arrived(self, arrived: deque[MemberMessage]) -> tuple[int, int, bool] | None:
        """Writes what has arrived, with one sync for all of it; messages to a member that is behind one by
        one, as the owner counts their acknowledgements.

        Returns:
            Numbers of the last message, and of the last record that ends a group, 0 for none; whether this
            journal has everything that was accepted then. None if a former job has written everything.
        """
        mirror = self.mirror
        assert mirror is not None
        # A message that arrives from here on gets another job, which may find it written.
        self._is_wanted = False
        if not arrived:
            return None
        number = whole_lsn = accepted = flags = 0
        while arrived and not flags & BEHIND:
            message = arrived.popleft()
            number, accepted = message.number, message.accepted
            flags |= message.flags
            if message.kind is MessageKind.DROP:
                mirror.drop(message.lsn)
            for piece in message.pieces:
                if piece.offset == 0:
                    mirror.begin(piece.data)
                else:
                    mirror.write(piece.segment, piece.offset, piece.data, piece.next_lsn, piece.checksum)
            if message.flags & WHOLE:
                whole_lsn = message.lsn
        if flags & SYNC:
            mirror.sync()
        return number, whole_lsn, self._has_accepted(accepted)

    def _accept(self, lsn: int) -> bool:
        """Notes the accepted end of a beat; returns whether this journal has everything up to it."""
        assert self.mirror is not None
        has_everything = self._has_accepted(lsn)
        self._beats += 1
        if self._beats % EXTENT_BEATS == 0:
            # What is accepted is not cut after a start either.
            self.mirror.write_extent()
        return has_everything

    def _has_accepted(self, lsn: int) -> bool:
        """Notes the accepted end; returns whether this journal has everything up to it."""
        assert self.mirror is not None
        self.mirror.accept(lsn)
        # An owner that has accepted nothing yet does not know what former ones have.
        return 0 < lsn <= self.mirror.synced_lsn

    def _ready(self, message: MemberMessage) -> None:
        self.state = FollowingState.FOLLOWING
        self._send(message.encode())

    def _run(self, work: Callable[[], _Found], then: Callable[[_Found], None]) -> None:
        """Runs a job of the mirror, and `then` on the loop, unless it has attached again meanwhile."""
        attempt = self._attempt
        results: list[_Found] = []

        def job() -> None:
            # A job behind one that failed must not write what follows a gap.
            if attempt == self._attempt:
                results.append(work())

        def done(error: BaseException | None) -> None:
            if attempt != self._attempt or (error is None and not results):
                return
            if error is None:
                then(results[0])
            elif isinstance(error, MirrorError):
                log.warning("this member attaches again: %s", error)
                self.detach()
            elif isinstance(error, LineageError):
                # An owner that requires this member ends, as it lacks accepted records.
                if str(error) != self._kept_for:
                    self._kept_for = str(error)
                    log.error("this member does not follow the owner of epoch %d: %s", self.epoch, error)
                self._refuse(self.epoch, str(error))
                self.detach()
            else:
                self.detach()
                self._on_broken(error)

        self._submit(job, done)
