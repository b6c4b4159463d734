"""A state of the model: three members with their journals, the guarded entry, and what is on its way.

A journal is a tuple of whole numbers, at the position of its record number: a positive number is a record,
a negative one the header of a segment (-2 for epoch 2), and 0 a record whose segment was dropped.
"""

from typing import Final, NamedTuple

from tests.model.replication.laws import Ids

Journal = tuple[int, ...]

AGAIN: Final = 50
"""Added to a record that the cleaner wrote again at the tail."""
COPY: Final = 91
"""The record by which a queue's copy begins at the destination of a move."""
DROPPED: Final = 92
"""The record by which that copy is dropped."""
QUEUE: Final = 93
"""The record of a queue that was created in etcd."""
DELETED: Final = 94
"""The record by which that queue is deleted."""

JUMP: Final = 95
"""The record by which a promoted journal jumps over numbers that lost members may have used."""


class Entry(NamedTuple):
    """`replicas/N` in etcd."""

    revision: int
    epoch: int
    owner: int
    in_sync: Ids


class Etcd(NamedTuple):
    """What etcd has."""

    revision: int
    entry: Entry
    restored: int = 0
    """How often etcd was set back to an older time."""
    placed: int = 0
    """The revision from which the placement of the moved queue names this shard; 0: it names the source."""
    named: int = 0
    """The revision at which the queue's name was created; 0: there is no such name."""


class Write(NamedTuple):
    """A transaction that a process has sent to etcd, which may arrive after the death of its process."""

    kind: str
    machine: int
    process: int
    compared: int | None
    epoch: int = 0
    owner: int = 0
    in_sync: Ids = frozenset()


class Member(NamedTuple):
    """The member on one machine: its directory, and the process that is using it."""

    id: int
    journal: Journal = ()
    synced: int = 0
    saved: int = 0
    """The accepted mark in its extent, which survives the process."""
    sound: bool = True
    """No fault of the disk has taken records that were acknowledged."""
    off: bool = False
    process: int = 0
    # The rest is in memory, and ends with the process.
    mark: int = 0
    won: int = 0
    """The epoch in which it is the owner by the entry; its first segment is missing while `epoch` is 0."""
    epoch: int = 0
    """The epoch in which it serves as the owner."""
    revision: int = 0
    """Of the entry, under which it owns."""
    known: Ids = frozenset()
    """The set at that revision."""
    required: Ids = frozenset()
    ends: tuple[int, ...] = ()
    """What each id has acknowledged in its epoch."""
    promised: int = 0
    """It follows no older epoch than this, by what it has answered to a candidate or read in the entry."""
    whole_in: int = 0
    """The epoch of the owner that this process followed last, and from which it has had everything."""
    served: bool = False
    """It has served the queue's consumer."""
    confirmed: Ids | None = None
    """Who has confirmed the round of the question that is waiting; None: no question."""
    view: int = 0
    """The revision at which it has read names and placements."""
    won_at: int = 0
    """The revision of its take-over."""
    begun_at: int = 0
    """The revision of etcd that it read after its first segment."""
    grants: frozenset["Grant"] = frozenset()
    """What it has granted and what has not run out, to any owner."""
    returned_at: int = -1
    """When it has returned its leases as an owner."""
    silent_until: int = 0
    leases: tuple[int, ...] = ()


class Grant(NamedTuple):
    """A member's word that it does not deliver as a newer owner before `until`, and for which beat."""

    machine: int
    """Of the owner; -1 for what a process that has started can't remember."""
    process: int
    sent: int
    until: int


class Spent(NamedTuple):
    """How many of the scenario's events have happened."""

    records: int = 0
    writes: int = 0
    crashes: int = 0
    faults: int = 0
    delayed: int = 0


class Message(NamedTuple):
    """Records of a dead owner that are still on their way to a member."""

    epoch: int
    machine: int
    process: int
    journal: Journal


class State(NamedTuple):
    """Everything."""

    members: tuple[Member, ...]
    etcd: Etcd
    writes: frozenset[Write] = frozenset()
    messages: frozenset[Message] = frozenset()
    accepted: Journal = ()
    """What any owner has accepted: the history that clients rely on."""
    spent: Spent = Spent()
    shown: Journal = ()
    """What a reader has seen, or the archive has linked."""
    source: bool = True
    """The source of the move still has the queue."""
    consumer: int = -1
    """The machine whose owner serves the consumer of the queue."""
    now: int = 0
    replies: frozenset[tuple[int, int, int, int]] = frozenset()
    """Grants on their way to an owner: its machine, its process, the member, and when the beat was sent."""
    returns: frozenset[tuple[int, int, int, int]] = frozenset()
    """Returned leases on their way: the owner's machine, its process, the member, and when it was."""
    delivered: int = 0
    """The newest epoch that has delivered."""
    held_before: Ids = frozenset()
    """The set as the newest owner left it that had written its first segment."""
    promoted: int = 0
    """The epoch of an owner that an operator has promoted."""
    given_up: Journal = ()
    """What was accepted when an operator's promote gave the members of the set up."""


def replaced(state: State, machine: int, member: Member) -> tuple[Member, ...]:
    """The members, with another one at this machine."""
    return (*state.members[:machine], member, *state.members[machine + 1 :])


def newest_epoch(journal: Journal) -> int:
    """The epoch of its newest segment; 0 for an empty journal."""
    return -min(journal, default=0)


def oldest_followed(member: Member) -> int:
    """The oldest epoch that a member may follow, by its journal and by its process."""
    return max(newest_epoch(member.journal), member.epoch, member.promised)


def common_end(first: Journal, second: Journal) -> int:
    """To where two journals have one lineage. Only the headers of segments are compared, as members do."""
    end = 0
    for one, other in zip(first, second, strict=False):
        if one != other and (one < 0 or other < 0):
            break
        end += 1
    return end


def differ(first: Journal, second: Journal) -> bool:
    """Have they two records at one position? Dropped ones equal any."""
    pairs = zip(first, second, strict=False)
    return any(one != other and one and other for one, other in pairs)


def holds(journal: Journal, accepted: Journal) -> bool:
    """Has this journal every accepted record, or what the cleaner wrote again for it?"""
    if journal[: len(accepted)] == accepted:
        return True
    if len(journal) < len(accepted) or differ(journal, accepted):
        return False
    pairs = zip(journal, accepted, strict=False)
    return all(one or not other or other + AGAIN in journal for one, other in pairs)
