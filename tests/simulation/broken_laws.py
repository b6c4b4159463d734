"""The laws of replication, each broken in the program: the simulation has to see it, or it proves nothing.

`PYTHONHASHSEED=0 python -m tests.simulation.broken_laws LAW FIRST COUNT` runs seeds until one fails.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from lightrail.cluster.coordinator import Commit, Fence, Write
from lightrail.cluster.replica_sets import ReplicaSet
from lightrail.shard.effects.answers import Answers
from lightrail.shard.effects.held_turns import HeldTurns
from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.replicas.candidate import Candidate, Choice
from lightrail.shard.replicas.lineage import Comparison, compare
from lightrail.shard.replicas.marks import Marks, required
from lightrail.shard.replication import following
from lightrail.shard.replication.owning import Owning
from lightrail.shard.replication.replica import Replica
from lightrail.shard.replication.taking_over import TakingOver
from lightrail.shard.startup.member_start import MemberStart
from tests.support.sim.member_scripts import MEMBER_SCRIPTS, script_of
from tests.support.sim.members import MembersCluster


def _accept_all(marks: Any) -> list[Any]:
    accepted = [commit for _, commit in marks._waiting]
    marks._waiting.clear()
    return accepted


def _sync_nothing(mirror: Any) -> None:
    mirror._is_dirty, mirror.synced_lsn = False, mirror.next_lsn - 1


def _without_cut(*args: Any) -> Comparison:
    return compare(*args)._replace(cut=False)


def _unguarded(found: ReplicaSet, changed: ReplicaSet) -> Write:
    return Write(found.key, changed.encode())


async def _compare_nothing(_: TakingOver, owned: ReplicaSet, __: str, *, is_whole: bool) -> ReplicaSet:
    return owned


def _always(_: Any) -> bool:
    return True


def _is_always_whole(_: Replica, __: int) -> bool:
    return True


async def _never_outdated(_: MemberStart, *__: Any) -> None:
    return


def _learn_what_is_older(owning: Any, found: ReplicaSet) -> None:
    if (found.owner, found.epoch) == (owning._member, owning.found.epoch):
        LEARN(owning, found)
    else:
        owning._on_deposed("another entry")


def _claim_always(_: Candidate, *__: Any) -> Choice:
    return Choice.CLAIM


def _require_nobody_else(owning: Any) -> None:
    owning._journal.marks.require(required(owning.found))
    owning._journal.accept()
    owning._on_accepted()


def _answer_at_once(answers: Any, waiters: Any, refusals: Any, **_: Any) -> None:
    answers._send(waiters, refusals)


def _deliver_at_once(_: HeldTurns, __: Any) -> None:
    return


async def _unfenced(_: Fence, writes: Any, commit: Commit) -> int:
    return await commit(writes)


def _below_minimum(found: ReplicaSet, members: Any) -> ReplicaSet:
    return replace(found, in_sync=found.in_sync - frozenset(members), min_in_sync=1)


def _anyone(choose: Callable[..., Choice]) -> Callable[..., Choice]:
    def any_member(candidate: Candidate, found: ReplicaSet, silent_ns: int, *, is_refused: bool) -> Choice:
        return choose(
            candidate, replace(found, in_sync=frozenset(found.members)), silent_ns, is_refused=is_refused
        )

    return any_member


def _taken_by_anyone(found: ReplicaSet, member: str, host: str) -> ReplicaSet:
    return replace(found, epoch=found.epoch + 1, owner=member, in_sync=found.in_sync | {member})


LEARN = Owning._learn
IDLE_RATE = 300
"""Acts of clients per second: they show what is broken for a moment only."""
BROKEN: dict[str, tuple[list[tuple[Any, str, Any]], str]] = {
    "accepted before all have it (1)": ([(Marks, "take_accepted", _accept_all)], "blackout"),
    "acknowledged before the sync (1)": ([(Mirror, "sync", _sync_nothing)], "blackout"),
    # Answers also wait behind deliveries.
    "answered before acceptance (1)": (
        [(Answers, "_wait", _answer_at_once), (HeldTurns, "delivered", _deliver_at_once)],
        "isolate",
    ),
    "delivered before acceptance (1)": ([(HeldTurns, "delivered", _deliver_at_once)], "isolate"),
    "added without a demand (2)": (
        [(Owning, "_require", _require_nobody_else)],
        "pause late_etcd",
    ),
    "removed below the minimum (2)": ([(ReplicaSet, "removed", _below_minimum)], "isolate crash"),
    "changed without a guard (3)": ([(ReplicaSet, "write_of", _unguarded)], "late_etcd partition"),
    "taken over out of sync (5)": (
        [(Candidate, "next", _anyone(Candidate.next)), (ReplicaSet, "taken_over", _taken_by_anyone)],
        "isolate crash",
    ),
    "no look around (6)": (
        [(TakingOver, "compare", _compare_nothing), (Candidate, "judge", _claim_always)],
        "set_back_successor",
    ),
    "everybody has everything (6)": ([(Replica, "_is_whole", _is_always_whole)], "set_back_successor"),
    "delivered without leases (8)": ([(Owning, "may_deliver", _always)], "isolate"),
    "unfenced (9)": ([(Fence, "write", _unfenced)], "move alone"),
    "replaced by an older entry (11)": ([(Owning, "_learn", _learn_what_is_older)], "forgotten_etcd"),
    "in sync on a restored disk (12)": ([(MemberStart, "_outdated", _never_outdated)], "restored_disks"),
    "no cut (10)": ([(following, "compare", _without_cut)], "blackout partition"),
}
"""By what is broken, with the number of the law: what to replace, and the faults under which it shows."""


@contextlib.contextmanager
def broken(law: str) -> Iterator[str]:
    """Breaks a law; yields the kinds of faults under which it shows."""
    with contextlib.ExitStack() as stack:
        replacements, kinds = BROKEN[law]
        for owner, name, value in replacements:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield kinds


def first_seen(law: str, first: int, count: int) -> tuple[int, str] | None:
    """The first seed under which a broken law is seen, and what is seen; None if none sees it."""
    with broken(law) as names:
        kinds = names.split()
        script = MEMBER_SCRIPTS[kinds[0]] if len(kinds) == 1 else script_of(*kinds, at_once=2)
        for seed in range(first, first + count):
            try:
                cluster = MembersCluster(seed, shards=2 if "move" in kinds else 1)
                cluster.idle_rate = IDLE_RATE
                cluster.run(script)
            except AssertionError as error:
                if "TypeError" in str(error) or "AttributeError" in str(error):
                    raise ValueError(f"{law!r} is not broken, but does not run: {error}") from error
                return seed, str(error).splitlines()[-1]
    return None


def main(law: str, first: int, count: int) -> int:
    assert os.environ.get("PYTHONHASHSEED") == "0", "set PYTHONHASHSEED=0, so that a seed can be run again"
    logging.getLogger("lightrail").setLevel(logging.ERROR)
    logging.getLogger("lightrail").propagate = False
    for each in BROKEN if law == "all" else [law]:
        print(each, first_seen(each, first, count), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
