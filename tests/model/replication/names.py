"""Steps about names: a queue moves here, is created, or is deleted with its last consumer."""

from collections.abc import Iterator

from tests.model.replication.invariants import MOVED, NAMED
from tests.model.replication.owning import name, owners
from tests.model.replication.state import (
    COPY,
    DELETED,
    DROPPED,
    QUEUE,
    Journal,
    Member,
    State,
    Write,
    replaced,
)
from tests.model.replication.world import Step, World, letter


def with_record(state: State, machine: int, member: Member, record: int) -> State:
    """The owner has written this record."""
    return state._replace(
        members=replaced(state, machine, member._replace(journal=(*member.journal, record)))
    )


def newest_owner(state: State) -> Member | None:
    """The owner with the highest epoch."""
    return max((member for _, member in owners(state)), key=lambda member: member.epoch, default=None)


def has_dropped(state: State, journal: Journal) -> bool:
    """Is the queue at neither end of its move?"""
    return not state.source and DROPPED in journal


def move(world: World, state: State) -> Iterator[Step]:
    """A queue moves to this shard: its copy is written, its placement, and then the source deletes it."""
    if not world.scenario.move:
        return
    for machine, member in owners(state):
        journal = member.journal
        who = name(machine, member)
        if COPY not in journal and state.spent.records == 0 and not state.etcd.placed:
            after = with_record(state, machine, member, COPY)
            after = after._replace(spent=state.spent._replace(records=1))
            yield f"{who} writes a copy of the moving queue", after, None
        elif COPY in journal[: member.mark] and DROPPED not in journal and not state.etcd.placed:
            compared = world.laws.compared_by_moves(member.revision)
            write = Write("move", machine, member.process, compared)
            if write not in state.writes and member.begun_at == 0:
                after = state._replace(writes=state.writes | {write})
                yield f"{who} asks etcd to place the queue here", after, None
    if state.etcd.placed and state.source:
        after = state._replace(source=False)
        newest = newest_owner(state)
        is_lost = newest is not None and has_dropped(after, newest.journal)
        yield "the source sees the placement, and deletes the queue", after, MOVED if is_lost else None


def drop_copy(world: World, state: State) -> Iterator[Step]:
    """A new owner drops a copy that it has recovered and that is not placed here."""
    if not world.scenario.move:
        return
    for machine, member in owners(state):
        if not member.begun_at or COPY not in member.journal or DROPPED in member.journal:
            continue
        if not world.laws.may_judge(member.view, member.won_at, member.begun_at):
            continue
        if state.etcd.placed and member.view >= state.etcd.placed:
            continue
        after = with_record(state, machine, member, DROPPED)
        yield (
            f"{name(machine, member)} drops the copy that it has recovered",
            after,
            MOVED if has_dropped(after, after.members[machine].journal) else None,
        )


def read_names(world: World, state: State) -> Iterator[Step]:
    """A process reads names and placements as they are now."""
    if not world.scenario.move and not world.scenario.queue:
        return
    for machine, member in enumerate(state.members):
        if member.won and member.view < state.etcd.revision:
            view = member._replace(view=state.etcd.revision)
            yield (
                f"{letter(machine)} reads names at revision {view.view}",
                state._replace(members=replaced(state, machine, view)),
                None,
            )


def create_queue(world: World, state: State) -> Iterator[Step]:
    """A queue is created in etcd; then the owner that sees it there writes its record."""
    if not world.scenario.queue:
        return
    etcd = state.etcd
    if not etcd.named:
        revision = etcd.revision + 1
        etcd = etcd._replace(named=revision, revision=revision)
        yield f"a queue is created, at revision {revision}", state._replace(etcd=etcd), None
        return
    for machine, member in owners(state):
        if QUEUE not in member.journal and member.view >= etcd.named:
            after = with_record(state, machine, member, QUEUE)
            yield f"{name(machine, member)} writes the record of the queue", after, None


def delete_queue(world: World, state: State) -> Iterator[Step]:
    """A new owner deletes a queue that its view of the names does not have."""
    if not world.scenario.queue:
        return
    for machine, member in owners(state):
        if not member.begun_at or QUEUE not in member.journal or DELETED in member.journal:
            continue
        if (
            not world.laws.may_judge(member.view, member.won_at, member.begun_at)
            or member.view >= state.etcd.named
        ):
            continue
        after = with_record(state, machine, member, DELETED)
        text = f"{name(machine, member)} deletes the queue, which is not in its view of {member.view}"
        yield text, after, NAMED if state.etcd.named else None


def consume(world: World, state: State) -> Iterator[Step]:
    """The consumer of a queue, which is deleted with its last one, goes over to the registered owner."""
    if not world.scenario.consumer:
        return
    etcd = state.etcd
    for machine, member in owners(state):
        is_leaving = any(
            write.machine == machine and write.process == member.process and write.kind == "delete the name"
            for write in state.writes
        )
        if etcd.named and member.epoch == etcd.entry.epoch and state.consumer != machine and not is_leaving:
            serving = replaced(state, machine, member._replace(served=True))
            after = state._replace(consumer=machine, members=serving)
            yield f"the consumer of the queue attaches to {name(machine, member)}", after, None
        if etcd.named and state.consumer == machine:
            after = state._replace(consumer=-1)
            yield f"the consumer loses its link to {name(machine, member)}", after, None


def delete_name(world: World, state: State) -> Iterator[Step]:
    """An owner that sees no consumer of the queue asks etcd to delete its name."""
    if not world.scenario.consumer or not state.etcd.named:
        return
    for machine, member in owners(state):
        compared = world.laws.compared_by_deletions(member.revision)
        write = Write("delete the name", machine, member.process, compared)
        if member.served and state.consumer != machine and write not in state.writes:
            after = state._replace(writes=state.writes | {write})
            yield f"{name(machine, member)} sees no consumer, and asks etcd to delete the queue", after, None
