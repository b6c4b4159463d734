"""The scenarios that are explored: small ones for every run, and larger ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tests.model.replication.laws import GRANT, LEASE
from tests.model.replication.state import Entry, Etcd, Grant, Journal, Member, Spent, State
from tests.model.replication.world import Scenario, owning

A: Final = frozenset({0})
AB: Final = frozenset({0, 1})
AC: Final = frozenset({0, 2})
BC: Final = frozenset({1, 2})
ABC: Final = frozenset({0, 1, 2})


def with_learner() -> State:
    """A owns and is alone in sync; B follows."""
    entry = Entry(1, 1, 0, A)
    return State((owning(Member(0, (-1,), 1), entry, 2), Member(1, (-1,), 1)), Etcd(1, entry), held_before=A)


def with_accepted(size: int, mark: int) -> State:
    """A owns, all are in sync, and r1 is accepted. `mark` is in the extents of the others."""
    everybody = frozenset(range(size))
    entry = Entry(1, 1, 0, everybody)
    others = [Member(member, (-1, 1), 2, mark=mark, saved=mark) for member in range(size)]
    others[0] = owning(others[0], entry, size + 1)._replace(mark=2, ends=(2,) * (size + 1))
    return State(
        tuple(others), Etcd(1, entry), accepted=(-1, 1), held_before=everybody, spent=Spent(records=1)
    )


def with_name() -> State:
    """A owns with B in sync, and a queue is named."""
    entry = Entry(1, 1, 0, AB)
    members = (owning(Member(0, (-1,), 1), entry, 2), Member(1, (-1,), 1))
    return State(members, Etcd(1, entry, named=1), held_before=AB)


def after_a_removal(older: Entry, newer: Entry, c: tuple[int, ...]) -> State:
    """B owns epoch 2 and A is out of the set; etcd may be set back to a time when it was in it."""
    journal = (-1, 1, -2)
    b = owning(Member(1, journal, 3), newer, 3)._replace(mark=3, begun_at=newer.revision)
    members = (Member(0, (-1, 1), 2), b, Member(2, c, len(c)))
    return State(
        members,
        Etcd(newer.revision, newer),
        accepted=journal,
        held_before=newer.in_sync,
        spent=Spent(records=1),
    )


def after_a_removal_of_two(older: Entry, newer: Entry, a: tuple[int, ...]) -> State:
    """As `after_a_removal`, with two members."""
    journal = (-1, 1, -2)
    b = owning(Member(1, journal, 3), newer, 2)._replace(mark=3, begun_at=newer.revision)
    return State(
        (Member(0, a, len(a)), b),
        Etcd(newer.revision, newer),
        accepted=journal,
        held_before=newer.in_sync,
        spent=Spent(records=1),
    )


def overtaken() -> State:
    """C owns epoch 2 and has removed A, which does not know it. A has leases of B and C, and C one of B."""
    entry = Entry(4, 2, 2, BC)
    to_a, to_c = Grant(0, 0, 0, GRANT), Grant(2, 0, 0, GRANT)
    a = owning(Member(0, (-1,), 1), Entry(1, 1, 0, ABC), 3)._replace(leases=(0, LEASE, LEASE))
    b = Member(1, (-1, -2), 2, grants=frozenset({to_a, to_c}))
    c = owning(Member(2, (-1, -2), 2, grants=frozenset({to_a})), entry, 3)
    c = c._replace(leases=(0, LEASE, 0), silent_until=GRANT, begun_at=2)
    return State((a, b, c), Etcd(4, entry), held_before=BC)


def all_down(*journals: Journal, accepted: Journal) -> State:
    """Everybody has ended; B owned epoch 2 last, and etcd is set back to an older entry before they start."""
    entry = Entry(4, 2, 1, frozenset(range(1, len(journals))) or frozenset({1}))
    members = tuple(Member(at, journal, len(journal)) for at, journal in enumerate(journals))
    return State(
        members, Etcd(4, entry), accepted=accepted, held_before=entry.in_sync, spent=Spent(records=2)
    )


ALONE: Final = Entry(1, 1, 0, A)
B_ALONE: Final = Entry(4, 2, 1, frozenset({1}))
WITH_C: Final = Entry(1, 1, 0, AC)
B_WITH_C: Final = Entry(4, 2, 1, BC)

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "two members": Scenario(members=2, records=2, writes=2, crashes=1, delayed=1),
    "two that may not shrink": Scenario(members=2, minimum=2, records=2, writes=2, crashes=1, delayed=1),
    "three members": Scenario(minimum=2, epochs=2, writes=2, crashes=1),
    "a learner": Scenario(members=2, records=2, writes=3, crashes=1, start=with_learner()),
    "a lost disk": Scenario(members=2, records=1, writes=2, lost_disks=1),
    "a disk set back": Scenario(
        minimum=2, records=2, epochs=2, writes=2, set_backs=1, start=with_accepted(3, 0)
    ),
    "a disk set back, of two": Scenario(
        members=2, epochs=2, writes=1, set_backs=1, marks=True, start=with_accepted(2, 2)
    ),
    "restored disks": Scenario(minimum=2, epochs=2, writes=2, restored_disks=2, start=with_accepted(3, 0)),
    "a restored learner": Scenario(members=2, records=2, writes=2, restored_disks=1, start=with_learner()),
    "damage": Scenario(minimum=2, epochs=2, writes=1, flips=1),
    "damage and a crash": Scenario(minimum=2, epochs=2, writes=1, crashes=1, flips=1),
    "damage below the mark": Scenario(members=2, flips=1, marks=True, start=with_accepted(2, 2)),
    "a question": Scenario(members=2, records=1, epochs=2, writes=2, question=True),
    "clocks": Scenario(
        members=2, records=0, epochs=2, writes=2, crashes=1, ticks=3, omitted=("follow", "accept")
    ),
    "a hand-over": Scenario(
        members=2, records=0, epochs=2, writes=2, ticks=2, returns=True, omitted=("follow", "accept")
    ),
    "a hand-over to the next": Scenario(
        records=0, writes=1, ticks=1, returns=True, omitted=("follow", "accept", "tick"), start=overtaken()
    ),
    "a stopped clock": Scenario(
        members=2, records=1, epochs=2, writes=2, ticks=2, stopped_clock=0, question=True
    ),
    "a move": Scenario(members=2, epochs=2, writes=2, move=True),
    "a last consumer": Scenario(members=2, records=0, epochs=3, writes=3, consumer=True, start=with_name()),
    "a promoted member": Scenario(
        members=2, records=1, epochs=3, writes=2, crashes=1, promote=True, marks=True
    ),
    "a cleaner": Scenario(members=2, records=1, writes=2, crashes=1, cleaner=True),
    "a reader": Scenario(members=2, records=2, writes=1, crashes=1, reader=True),
    "etcd set back, two": Scenario(
        members=2,
        records=2,
        epochs=3,
        writes=2,
        crashes=1,
        restores=True,
        older=ALONE,
        start=after_a_removal_of_two(ALONE, B_ALONE, (-1, 1, -2)),
    ),
    "etcd set back, three": Scenario(
        minimum=2,
        records=2,
        epochs=3,
        writes=2,
        restores=True,
        older=WITH_C,
        start=after_a_removal(WITH_C, B_WITH_C, (-1, 1, -2)),
    ),
    "etcd forgets, two": Scenario(
        members=2,
        records=1,
        epochs=9,
        writes=2,
        crashes=1,
        restores=True,
        older=ALONE,
        start=all_down((-1, 1, -2), (-1, 1, -2, 2), accepted=(-1, 1, -2, 2)),
    ),
    "etcd forgets, three": Scenario(
        minimum=2,
        records=2,
        epochs=9,
        writes=2,
        restores=True,
        older=WITH_C,
        start=all_down((-1, 1, -2), (-1, 1, -2, 2), (-1, 1, -2, 2), accepted=(-1, 1, -2, 2)),
    ),
    "a queue": Scenario(members=2, records=0, epochs=2, writes=2, queue=True),
}
"""Small enough for every run: each is explored wholly in a few seconds."""

LONG: Final[Mapping[str, Scenario]] = {
    "two members, longer": Scenario(members=2, records=2, writes=3, crashes=1, delayed=1),
    "two members, four epochs": Scenario(members=2, records=2, epochs=4, writes=4, crashes=1),
    "three members, three epochs": Scenario(minimum=2, writes=2, crashes=1),
    "three members, one may stay": Scenario(writes=3),
    "three members and a lost disk": Scenario(minimum=2, writes=2, lost_disks=1),
    "a disk set back, and a crash": replace(SCENARIOS["a disk set back"], crashes=1),
    "restored disks, and a record": replace(SCENARIOS["restored disks"], records=2),
    "damage, a crash and a removal": Scenario(minimum=2, epochs=2, writes=2, crashes=1, flips=1),
    "a question to one of three": Scenario(minimum=2, writes=3, question=True),
    "clocks, longer": replace(SCENARIOS["clocks"], ticks=5),
    "a move, and a crash": replace(SCENARIOS["a move"], crashes=1),
    "a queue, and a crash": replace(SCENARIOS["a queue"], epochs=3, writes=3, crashes=1),
    "promoted, below the minimum": Scenario(minimum=2, writes=1, crashes=2, marks=True, promote=True),
    "a cleaner of three": Scenario(minimum=2, epochs=2, writes=2, crashes=1, cleaner=True),
    "etcd set back, three, and a crash": replace(SCENARIOS["etcd set back, three"], crashes=1),
    "etcd forgets, two, and crashes": replace(SCENARIOS["etcd forgets, two"], writes=4, crashes=2),
    "etcd forgets, three, and a crash": replace(SCENARIOS["etcd forgets, three"], writes=3, crashes=1),
}
"""Up to millions of states: `make soak` explores them, and the command."""
