"""Generations: how the directory of a shard is distinguished from its copies.

Every start of a shard is a generation: a rising number and a random token. The directory has the generation
of its last start (`Mark`, in ``generation.json``), the coordinator has that of the last completed start
(`Generation`, ``generations/ID``). The directory is written first, so that a directory whose process died in
between still has the former token:

    directory  {5, token e, previous [d]}      about to begin 5, or serving
    coordinator {5, token e}                   serving, or served last: a directory without e is another one
    coordinator {4, token d}                   died between the writes; no other process has started meanwhile

A copy that was made before the owner's last start has an older token. A later copy has the same token, and
differs in the inode of the directory and, after a while, in the length of its journal. After an
orderly stop, a copy with all records is equivalent to the original, and the directory that is started first
makes the other one outdated.

Each member of a shard with replicas has generations of its own, whether it owns or follows
(`generations/ID/MEMBER`). A directory that is refused here may follow all the same, out of sync: see
shard/startup/member_start.py.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lightrail.cluster import moves, replica_sets
from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, CoordinatorError, KeySpace, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.map import Map
from lightrail.cluster.membership import MemberRefusedError
from lightrail.journal.record import range_of

GENERATIONS: Final = "generations/"
PREVIOUS_MAX: Final = 8
"""Tokens that are kept of consecutive starts that died between the writes to directory and coordinator."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The last start of a directory, as its file records it."""

    number: int
    token: str
    """Random token of this start."""
    previous: tuple[str, ...] = ()
    """Former tokens; the coordinator may have one of them until it has recorded this start."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The last start of a shard that the coordinator has recorded: the entry ``generations/ID``."""

    disk: str
    number: int
    token: str
    boot: int
    """Boot of the process."""
    lock: str = ""
    """Identity of the process's lock in its running kernel; empty if the system does not show it."""
    inode: int = 0
    """Inode of the directory; 0 where it does not matter."""
    segment: int = 0
    """The journal's newest segment, as last reported; 0 for a store without segments."""
    next_lsn: int = 0
    """Number of the next record at that time: all records before it are on its disk. Of a member of a shard
    with replicas: all before it were accepted, so that each member in sync has them."""
    closed: bool = False
    """Whether the process ended in an orderly way; then `next_lsn` is the end of the journal, or of what a
    member knew to be accepted."""
    accepted: bool = False
    """Whether an operator accepts the next directory that is started with this disk, whatever its state."""

    def encode(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, entry: Entry) -> "Generation":
        """Decodes an entry; ignores fields of newer programs. Raises CoordinatorError."""
        try:
            fields: dict[str, Any] = json.loads(entry.value or "")
            return cls(**{key: fields[key] for key in cls.__slots__ if key in fields})
        except (ValueError, TypeError, AttributeError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None


def key_of(shard: int, member: str = "") -> str:
    """The key of the last start of a shard; of a shard with replicas each member has its own."""
    return f"{GENERATIONS}{shard}/{member}" if member else f"{GENERATIONS}{shard}"


async def last_generation(
    coordinator: KeySpace, shard: int, member: str = ""
) -> tuple[Generation | None, int]:
    """The last recorded start, and the revision of its entry or 0. Raises CoordinatorError."""
    entry = await coordinator.entry(key_of(shard, member))
    return (None, 0) if entry is None else (Generation.decode(entry), entry.revision)


async def all_generations(coordinator: KeySpace, shard: int) -> list[tuple[str, Generation, int]]:
    """The last recorded start of each member of a shard with replicas, former ones included, with its key and
    revision. Raises CoordinatorError."""
    entries = await coordinator.entries(f"{GENERATIONS}{shard}/")
    return [(entry.key, Generation.decode(entry), entry.revision) for entry in entries]


class OutdatedError(MemberRefusedError):
    """A directory is a copy, or may lack records.

    Args:
        found: what was expected and what was found, without the remedy.
    """

    def __init__(self, found: str, remedy: str) -> None:
        MemberRefusedError.__init__(self, f"{found}. {remedy}")
        self.found: Final = found
        self.remedy: Final = remedy


def check_generation(
    shard: int,
    last: Generation | None,
    mark: Mark | None,
    *,
    member: str = "",
    disk: str | None,
    inode: int,
    directory: str,
) -> None:
    """Checks that a directory is the one of the last start; no process is registered under this number.

    The directory of a member may be newer than the entry, as after a restore of etcd: its journal is compared
    with those of others then (law 11 of ADR 73).

    Args:
        disk: id of the journal.
        inode: of the directory; 0 if the coordinator is copied together with it.

    Raises OutdatedError.
    """
    if not _concerns(last, disk):
        return
    assert last is not None
    if mark is None:
        found = f"this directory ({directory}) is a copy from before generations were kept"
        raise _refused(shard, member, last, found)
    if last.token not in (mark.token, *mark.previous):
        if mark.number <= last.number:
            found = f"has generation {mark.number}: an outdated copy or a restored backup"
        elif member:
            return
        else:
            found = (
                f"has generation {mark.number} of another line: it was started elsewhere, or the "
                "coordinator was restored from an older backup"
            )
        raise _refused(shard, member, last, f"this directory ({directory}) {found}")
    if inode and last.inode and inode != last.inode and not last.closed:
        raise _refused(
            shard,
            member,
            last,
            f"that start did not end in order, and this directory ({directory}) is not the one that it ran "
            "on but a copy, which may lack its last records",
        )


def check_extent(
    shard: int, last: Generation | None, *, disk: str | None, next_lsn: int, directory: str
) -> None:
    """Checks that a journal has all records that the last start reported. Raises OutdatedError."""
    if not _concerns(last, disk):
        return
    assert last is not None
    if next_lsn < last.next_lsn:
        raise _refused(
            shard,
            "",
            last,
            f"its journal had come to record {last.next_lsn - 1} in segment {last.segment}, the one in this "
            f"directory ({directory}) ends with record {next_lsn - 1}: an outdated copy or a restored "
            "backup, or a journal that has lost its end",
        )


def check_accepted(
    shard: int,
    member: str,
    generations: Iterable[Generation],
    *,
    disk: str,
    promoted_in: int,
    next_lsn: int,
    directory: str,
) -> None:
    """Checks that the journal of a member in sync has all records that any member knew to be accepted.

    Args:
        disk: id of the journal.
        promoted_in: see ReplicaSet. What was accepted before this promotion was given up.

    Raises OutdatedError.
    """
    ends = (each.next_lsn for each in generations if each.disk == disk)
    end = max((each for each in ends if range_of(each) >= promoted_in), default=0)
    if next_lsn < end:
        raise OutdatedError(
            f"expected all accepted records, up to {end - 1} as {GENERATIONS}{shard}/ says, in the journal "
            f"of member {member} of shard {shard}, which is in sync, found those up to {next_lsn - 1} in "
            f"{directory}: an outdated copy or a restored backup, or a journal that has lost its end",
            _remedy(shard, member),
        )


def _concerns(last: Generation | None, disk: str | None) -> bool:
    """Whether the entry belongs to this disk, and not to a former one that was given up."""
    return last is not None and last.disk == disk and not last.accepted


def _refused(shard: int, member: str, last: Generation, found: str) -> OutdatedError:
    subject = f"this member of shard {shard}" if member else f"shard {shard}"
    return OutdatedError(
        f"{key_of(shard, member)} says that {subject} was last started as generation {last.number}; {found}",
        _remedy(shard, member),
    )


def _remedy(shard: int, member: str) -> str:
    remedy = "Give the shard its own directory, or, if that is lost and there is"
    if member:
        remedy = (
            "It is the only member in sync. Give it its own directory. If that is lost, see with "
            f"`lightrail-admin shard promote {shard}` whether another member reaches further, and promote "
            "that one. If there is"
        )
    return (
        "Messages that are missing in it would be lost, and consumed ones would be delivered again. "
        f"{remedy} only this one, `lightrail-admin shard accept-disk {shard}` lets it start"
    )


async def accept_disk(coordinator: KeySpace, shard: int) -> Generation:
    """Accepts the next directory that is started with the disk of this shard, even if it is outdated.

    The caller has made sure that the shard does not run. Raises MemberRefusedError, CoordinatorError.
    """
    for _ in range(ATTEMPTS_MAX):
        map = Map(coordinator)
        map.refresh()
        member = await _last_member(coordinator, shard)
        found, revision = await last_generation(coordinator, shard, member)
        if found is None and member:
            # It has followed with a program that kept no generations of members that follow.
            found = Generation(map.shard_records[shard].disk, 0, "", boot=0)
        if found is None:
            raise MemberRefusedError(
                f"shard {shard} has not served yet, so no directory is refused as its copy; "
                "`lightrail-admin shard list` shows which shards there are"
            )
        accepted = replace(found, accepted=True)
        writes = [Write(key_of(shard, member), accepted.encode(), revision)]
        if member:
            # What others know to be accepted is given up with it.
            writes += [
                Write(key, replace(each, segment=0, next_lsn=0).encode(), guard)
                for key, each, guard in await all_generations(coordinator, shard)
                if each.next_lsn and key != key_of(shard, member)
            ]
        try:
            # The directory may lack the copies that the last start has made.
            await moves.cancel_to(coordinator, map, shard)
            await coordinator.write(writes)
        except ConflictError:
            continue
        return accepted
    raise CoordinatorError(f"{key_of(shard)} is constantly changed by other processes: try again")


async def _last_member(coordinator: KeySpace, shard: int) -> str:
    """The only member in sync of a shard with replicas; empty for another shard.

    Raises MemberRefusedError: others have all of its messages. CoordinatorError.
    """
    entry = await coordinator.current(replica_sets.key_of(shard))
    if entry is None or entry.value is None:
        return ""
    found = replica_sets.ReplicaSet.decode(entry)
    having = found.with_everything
    if len(having) > 1:
        hosts = ", ".join(f"{member} on {found.members[member].host}" for member in sorted(having))
        todo = (
            "Start one of them, and give the others an empty directory: they get everything from it"
            if found.in_sync
            else "Start all of them: etcd was set back, and their journals show who has everything"
        )
        raise MemberRefusedError(
            f"{len(having)} members of shard {shard} {'have' if found.in_sync else 'may have'} all of its "
            f"messages: {hosts}. {todo}"
        )
    return next(iter(having))


def next_mark(last: Generation | None, mark: Mark | None, token: str) -> Mark:
    """The mark that is written into the directory before the coordinator records this start."""
    number = 1 + max(last.number if last else 0, mark.number if mark else 0)
    known = [last.token] if last else []
    if mark is not None and mark.token not in known:
        known += [each for each in (mark.token, *mark.previous) if each not in known]
    return Mark(number, token, tuple(known[:PREVIOUS_MAX]))
