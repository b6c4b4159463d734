"""Steps of etcd: it applies or refuses the writes that were sent to it, and may be set back."""

from collections.abc import Iterator

from tests.model.replication.invariants import NAMED
from tests.model.replication.state import Entry, State, Write, replaced
from tests.model.replication.taking_over import won
from tests.model.replication.world import Step, World, letter, letters


def apply(world: World, state: State) -> Iterator[Step]:
    """Etcd receives a write. A write that etcd would refuse is dropped as soon as that is certain."""
    etcd = state.etcd
    for write in state.writes:
        if write.compared is not None and write.compared != etcd.entry.revision:
            continue  # Etcd was set back since, and may reach this revision again.
        left = state._replace(writes=state.writes - {write})
        revision = etcd.revision + 1
        by = f"etcd applies what {letter(write.machine)} has sent: "
        if write.kind == "move":
            yield (
                f"{by}the queue is placed here",
                left._replace(etcd=etcd._replace(placed=revision, revision=revision)),
                None,
            )
        elif write.kind == "delete the name":
            after = left._replace(etcd=etcd._replace(named=0, revision=revision))
            served = state.consumer >= 0
            yield f"{by}the queue's name is deleted", after, NAMED if served else None
        else:
            yield from apply_to_entry(world, left, write, by, revision)


def apply_to_entry(world: World, state: State, write: Write, by: str, revision: int) -> Iterator[Step]:
    """The entry has another owner, or another set. A process that lives learns that it has won; when it acts
    on that is its own step."""
    members = state.members
    before = state.etcd.entry
    entry = Entry(revision, write.epoch, write.owner, write.in_sync)
    member = members[write.machine]
    held_before = state.held_before
    if write.kind == "take over":
        text = f"epoch {entry.epoch}, owner {letter(entry.owner)}, set {letters(entry.in_sync)}"
        if member.process == write.process and not member.won:
            members = replaced(state, write.machine, won(world, member, entry.epoch, entry.in_sync, revision))
    else:
        if write.compared is None:  # Without a guard a write of the set is one of the set alone.
            entry = entry._replace(epoch=max(before.epoch, write.epoch), owner=before.owner)
        text = f"the set is {letters(entry.in_sync)}"
        if member.epoch or member.process != write.process:
            held_before = entry.in_sync
    writes = frozenset(
        other
        for other in state.writes
        if other.compared is None or other.compared == revision or world.scenario.restores
    )
    after = state._replace(
        members=members,
        etcd=state.etcd._replace(entry=entry, revision=revision),
        writes=writes,
        held_before=held_before,
    )
    yield by + text, after, None


def restore(world: World, state: State) -> Iterator[Step]:
    """Etcd is set back to an older entry; writes on their way are lost with the connections."""
    older = world.scenario.older
    if not world.scenario.restores or older is None or state.etcd.restored:
        return
    etcd = state.etcd._replace(revision=older.revision, entry=older, restored=1)
    yield (
        f"etcd is set back: epoch {older.epoch}, owner {letter(older.owner)}, set {letters(older.in_sync)}",
        # Processes that run see that it was set back, and count on nothing that they know.
        state._replace(
            etcd=etcd,
            writes=frozenset(),
            members=tuple(member._replace(whole_in=0) for member in state.members),
        ),
        None,
    )


def write_again(world: World, state: State) -> Iterator[Step]:
    """An owner whose epoch is above that of the entry writes its entry again."""
    entry = state.etcd.entry
    if not state.etcd.restored:
        return
    for machine, member in enumerate(state.members):
        if member.epoch <= entry.epoch or member.off:
            continue
        revision = state.etcd.revision + 1
        again = Entry(revision, member.epoch, member.id, member.required)
        owner = member._replace(revision=revision, known=member.required)
        yield (
            f"{letter(machine)} (epoch {member.epoch}) writes its entry again",
            state._replace(
                etcd=state.etcd._replace(entry=again, revision=revision),
                members=replaced(state, machine, owner),
            ),
            None,
        )
