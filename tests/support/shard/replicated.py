"""A journal and its members in one process: disks, threads and connections run when the test says so."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lightrail.journal.archive import Incarnation
from lightrail.journal.record import Outcome, Queue, QueueEvent, Settle
from lightrail.shard.journal.commit import JournalCommit, Reached, Worker
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.replicas.leases import Grant, OwnersLeases
from lightrail.shard.replicas.marks import Marks
from lightrail.shard.replication.following import Following, FollowingState
from lightrail.shard.replication.stream import FollowerState, Stream
from lightrail.wire.replication import JournalEnds
from tests.support.shard.fake_files import FakeFiles

CLUSTER, SHARD = "test", 0
SEGMENT_BYTES = 2_000

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class Jobs(Worker):
    """A thread whose jobs run one by one, when the test says so."""

    waiting: deque[tuple[Work, Done]] = field(default_factory=deque)

    def submit(self, work: Work, done: Done) -> None:
        self.waiting.append((work, done))

    def run(self) -> None:
        work, done = self.waiting.popleft()
        error: BaseException | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        done(error)


class MemberNode:
    """A member that follows."""

    def __init__(self, world: "World", name: str, files: FakeFiles) -> None:
        self.world, self.name, self.files = world, name, files
        self.start()

    def start(self) -> None:
        self.thread = Jobs()
        self.grant = Grant(self.world.now_ns)
        self.broken: BaseException | None = None
        self.following = Following(
            self.name,
            1,
            self.grant,
            self.thread.submit,
            open_mirror=self._open,
            send=self._send,
            now_ns=lambda: self.world.now_ns,
            on_broken=self._break,
        )

    def _open(self, disk: str, salt: int) -> Mirror:
        mirror = Mirror(self.files, Incarnation(CLUSTER, SHARD, disk), salt, segment_bytes=SEGMENT_BYTES)
        mirror.open()
        return mirror

    def _break(self, error: BaseException) -> None:
        self.broken = error

    def _send(self, parts: list[bytes]) -> bool:
        if self.world.owner is None:
            return False
        self.world.wires[self.name, ""].append(parts)
        return True

    def stop(self) -> None:
        """The process ends in order."""
        self.following.detach()
        while self.thread.waiting:
            self.thread.run()
        if self.following.mirror is not None:
            self.following.mirror.close()

    def crash(self, keep: str, seed: int) -> None:
        """The machine of this member stops, and starts again."""
        self.world.disconnect(self.name)
        self.files = self.files.after_crash(seed, keep)
        self.start()


class OwnerNode:
    """The owner in one epoch."""

    def __init__(
        self, world: "World", files: FakeFiles, epoch: int, required: frozenset[str], promoted_in: int = 0
    ) -> None:
        self.world, self.files = world, files
        marks: Marks[Reached] = Marks(required)
        self.journal = Journal(files, CLUSTER, SHARD, segment_bytes=SEGMENT_BYTES, marks=marks)
        self.journal.promoted_in = promoted_in
        self.recovered = self.journal.recover(1 << 30, 1, epoch)
        self.ended = ""
        self.commit: JournalCommit | None = None
        self.leases = OwnersLeases()
        self.stream = Stream(
            self.journal,
            epoch,
            JournalEnds("", 1, self.journal.incarnation.disk, self.journal.salt),
            self.leases,
            is_member=lambda member: member in world.members,
            send=self._send,
            run_on_loop=lambda call: call(),
            on_accepted=lambda: None,
            on_ended=self._end,
        )

    def _end(self, reason: str) -> None:
        self.ended = reason

    def _send(self, identity: bytes, parts: list[bytes]) -> bool:
        self.world.wires["", identity.decode()].append(parts)
        return True

    def begin(self) -> None:
        self.commit = self.journal.begin_commit()
        self.commit.encode()
        self.stream.begin(self.commit)

    def end(self) -> None:
        commit, self.commit = self.commit, None
        assert commit is not None
        commit.perform()
        self.journal.end_commit(commit)
        self.stream.end(commit)


class World:
    """An owner, its members, and the wires between them.

    Args:
        members: names of one letter; "a" owns first.
        required: those that are required beside the owner, which is changed with each take-over.
    """

    def __init__(self, members: str, required: str = "") -> None:
        self.now_ns = 10_000_000_000
        self.wires: dict[tuple[str, str], deque[list[bytes]]] = {}
        for name in "a" + members:
            self.wires[name, ""], self.wires["", name] = deque(), deque()
        self.in_sync = frozenset("a" + required)
        self.owner: OwnerNode | None = None
        self.owner_name = "a"
        self.members: dict[str, MemberNode] = {}
        self.epoch = 1
        self.promoted_in = 0
        self.owner = OwnerNode(self, FakeFiles(), 1, self.in_sync - {"a"})
        for name in members:
            self.members[name] = MemberNode(self, name, FakeFiles())

    def disconnect(self, name: str) -> None:
        """The connection of a member is lost, with what is on its way."""
        self.wires[name, ""].clear()
        self.wires["", name].clear()
        if self.owner is not None:
            self.owner.stream.lost(name.encode())
        self.members[name].following.detach()

    def promote(self, name: str) -> None:
        """The owner's machine stops, and an operator gives it up: a member owns that was not required."""
        self.epoch += 1
        self.promoted_in = self.epoch
        self.in_sync = frozenset(name)
        self.take_over(name, "all", 0)

    def take_over(self, name: str, keep: str, seed: int, *, is_lost: bool = False) -> None:
        """The machine of the owner stops, and a member owns; the former owner follows when it is back.

        Args:
            is_lost: the machine of the member stops as well, before it owns.
        """
        former, new = self.owner, self.members.pop(name)
        assert former is not None
        self.members[self.owner_name] = MemberNode(
            self, self.owner_name, former.files.after_crash(seed, keep)
        )
        for wire in self.wires.values():
            wire.clear()
        for member in self.members.values():
            member.following.detach()
        if is_lost:
            new.files = new.files.after_crash(seed, keep)
        else:
            new.stop()
        self.epoch += 1
        self.owner_name, self.owner = name, None
        required = self.in_sync - {name}
        self.owner = OwnerNode(self, new.files, self.epoch, required, self.promoted_in)

    def deliver(self, wire: tuple[str, str]) -> None:
        """One message arrives."""
        parts = self.wires[wire].popleft()
        source, target = wire
        if target:
            self.members[target].following.receive(parts)
        else:
            assert self.owner is not None
            self.owner.stream.receive(source.encode(), parts)

    def attach_all(self) -> None:
        for member in self.members.values():
            if member.following.state is FollowingState.DETACHED and member.broken is None:
                member.following.attach(self.epoch)

    def events(self) -> list[Callable[[], None]]:
        """What may happen next."""
        found: list[Callable[[], None]] = [
            lambda wire=wire: self.deliver(wire)  # type: ignore[misc]
            for wire, waiting in self.wires.items()
            if waiting
        ]
        found += [member.thread.run for member in self.members.values() if member.thread.waiting]
        owner = self.owner
        if owner is not None:
            if owner.commit is not None:
                found.append(owner.end)
            elif owner.journal.pending:
                found.append(owner.begin)
        return found

    def settle_down(self, chance: random.Random | None = None) -> None:
        """Until nothing happens any more, and every member follows."""
        for _ in range(100_000):
            self.attach_all()
            events = self.events()
            if not events:
                return
            (chance.choice(events) if chance else events[0])()
        raise AssertionError("the members attach again and again")


def contents(files: FakeFiles, end: tuple[int, int]) -> dict[int, bytes]:
    """The bytes of each segment up to this end (segment, offset)."""
    found = {}
    for number in numbers(files):
        if number <= end[0]:
            data = bytes(files.open(name_of(number)).inode.live)
            found[number] = data[: end[1]] if number == end[0] else data
    return found


def declare(world: World) -> OwnerNode:
    owner = world.owner
    assert owner is not None
    owner.journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 0)
    return owner


def send(owner: OwnerNode, sequence: int, size: int = 100, flags: int = 0) -> None:
    body = bytes([65 + sequence % 26]) * size
    owner.journal.append(Append([(1, sequence)], 0, 0, batch_of([body], durable=True), 0, 1, 0, flags), 0)


def settle(owner: OwnerNode, sequence: int) -> None:
    owner.journal.append(Settle(1, [(sequence, 1)], Outcome.ACCEPTED), 0)


def accepted(owner: OwnerNode) -> int:
    return owner.journal.committed.next_lsn - 1


def check_equal(world: World) -> None:
    owner = world.owner
    assert owner is not None
    ended = owner.journal.position.ended
    for name, member in world.members.items():
        assert member.broken is None
        assert member.following.state is FollowingState.FOLLOWING
        assert owner.stream.followers[name].state is FollowerState.LIVE
        end = (ended.segment, ended.end)
        assert contents(member.files, end) == contents(owner.files, end)
