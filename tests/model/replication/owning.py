"""Steps of an owner: it appends, syncs, accepts, and changes the set."""

from collections.abc import Iterator

from tests.model.replication.invariants import broken_by_acceptance
from tests.model.replication.state import Grant, Member, State, Write, replaced
from tests.model.replication.world import Step, World, letter, letters, written


def owners(state: State) -> Iterator[tuple[int, Member]]:
    """Processes that serve as owners, deposed ones that do not know it included."""
    for machine, member in enumerate(state.members):
        if member.epoch and not member.off:
            yield machine, member


def name(machine: int, member: Member) -> str:
    """An owner with its epoch."""
    return f"{letter(machine)} (epoch {member.epoch or member.won})"


def stopped(member: Member) -> Member:
    """The member after an orderly end: it has written its mark."""
    return member._replace(saved=max(member.saved, member.mark))


def restarted(world: World, state: State, member: Member) -> Member:
    """The member with a new process. What was not synced is lost, however the old one has ended."""
    kept = member.journal[: member.synced]
    scenario = world.scenario
    return Member(
        member.id,
        kept,
        len(kept),
        min(member.saved, len(kept)),
        member.sound,
        member.off,
        member.process + 1,
        member.saved,
        promised=world.laws.promised_at_start(state.etcd.entry.epoch),
        grants=frozenset({Grant(-1, -1, 0, world.laws.granted_at_start(state.now))})
        if scenario.ticks
        else frozenset(),
    )


def append(world: World, state: State) -> Iterator[Step]:
    """An owner writes a record."""
    if state.spent.records >= world.scenario.records:
        return
    record = state.spent.records + 1
    spent = state.spent._replace(records=record)
    for machine, member in owners(state):
        members = replaced(state, machine, member._replace(journal=(*member.journal, record)))
        yield f"{name(machine, member)} writes r{record}", state._replace(members=members, spent=spent), None


def sync(world: World, state: State) -> Iterator[Step]:
    """An owner's records reach its own disk."""
    for machine, member in owners(state):
        if member.synced < len(member.journal):
            members = replaced(state, machine, member._replace(synced=len(member.journal)))
            yield f"{name(machine, member)} syncs", state._replace(members=members), None


def accept(world: World, state: State) -> Iterator[Step]:
    """An owner calls records accepted: it answers their senders."""
    for machine, member in owners(state):
        end = world.laws.accepted_end(member.id, member.synced, member.ends, member.required)
        if end <= member.mark or not world.laws.may_accept(member.known):
            continue
        prefix = member.journal[:end]
        accepted = state.accepted
        after = state._replace(
            members=replaced(state, machine, member._replace(mark=end)),
            accepted=accepted + prefix[len(accepted) :],
        )
        yield (
            f"{name(machine, member)} accepts {written(prefix)}",
            after,
            broken_by_acceptance(world, state, prefix),
        )


def change_set(world: World, state: State) -> Iterator[Step]:
    """An owner sends the write that removes or adds a member."""
    if state.spent.writes >= world.scenario.writes:
        return
    laws = world.laws
    spent = state.spent._replace(writes=state.spent.writes + 1)
    for machine, member in enumerate(state.members):
        if not member.won or member.off or not laws.may_change_the_set(bool(member.epoch)):
            continue
        alone = frozenset({member.id})
        wishes = [
            (f"to remove {letter(other)}", member.known - {other})
            for other in sorted(member.known - {member.id})
            if laws.may_be_removed(member.known, world.scenario.minimum)
        ]
        if not member.known and world.scenario.minimum == 1:
            wishes.append(("to be alone in sync", alone))
        wishes += [
            (f"to add {letter(other.id)}", member.known | alone | {other.id})
            for other in state.members
            if other.id not in member.known
            and laws.has_caught_up(
                laws.mark_when_attached(member.ends[other.id], other.synced), len(member.journal)
            )
            and member.epoch
        ]
        for wish, wanted in wishes:
            compared = laws.compared_by_sets(member.revision)
            write = Write("set", machine, member.process, compared, member.won, member.id, wanted)
            if write in state.writes:
                continue
            required = laws.required_while_unknown(member.required, wanted)
            yield (
                f"{name(machine, member)} asks etcd {wish}: {letters(wanted)}",
                state._replace(
                    members=replaced(state, machine, member._replace(required=required)),
                    writes=state.writes | {write},
                    spent=spent,
                ),
                None,
            )


def read_entry(world: World, state: State) -> Iterator[Step]:
    """A process that owns reads the entry: it learns the outcome of its writes, or that it is deposed.

    A later revision settles all of its writes: none of them can be applied any more. To read an older
    revision than etcd's is no step of its own: the process could have read it when it was the newest."""
    entry = state.etcd.entry
    for machine, member in enumerate(state.members):
        if not member.won or member.off or member.revision == entry.revision:
            continue
        if entry.owner == member.id and entry.epoch == member.won:
            known = member._replace(known=entry.in_sync, required=entry.in_sync, revision=entry.revision)
            text = f"{name(machine, member)} learns that the set is {letters(entry.in_sync)}"
        elif entry.epoch < member.won:
            continue  # Etcd was set back: restores.py.
        else:
            known = restarted(world, state, stopped(member))
            text = f"{name(machine, member)} learns that it is deposed, and ends"
        yield text, state._replace(members=replaced(state, machine, known)), None
