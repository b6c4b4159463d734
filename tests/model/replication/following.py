"""Steps of a member that follows: it attaches, is cut, receives records, and acknowledges them."""

from collections.abc import Iterator

from tests.model.replication.invariants import KEPT, LINEAGE
from tests.model.replication.owning import name, owners, restarted, stopped
from tests.model.replication.state import (
    JUMP,
    Journal,
    Member,
    State,
    common_end,
    differ,
    holds,
    oldest_followed,
    replaced,
)
from tests.model.replication.world import Step, World, letter, written


def joined(journal: Journal, owner: Journal) -> Journal:
    """A journal of the owner's lineage with all that the owner has written and has not dropped."""
    pairs = zip(journal, owner, strict=False)
    return tuple(one and other for one, other in pairs) + owner[len(journal) :]


def follow(world: World, state: State) -> Iterator[Step]:
    """A member attaches to an owner and is cut to its lineage, or receives all that the owner has written.

    One step hands over everything up to the end. A prefix is no step of its own: the member could have
    received it before the owner wrote the next record."""
    laws = world.laws
    for machine, owner in owners(state):
        for other, member in enumerate(state.members):
            if other == machine or member.off:
                continue
            if not laws.follows(oldest_followed(member), owner.epoch):
                continue
            if member.won == owner.epoch or member.epoch > owner.epoch:
                continue
            member = without_older_epoch(world, state, other, machine)
            journal, written_there = owner.journal, member.journal
            end = common_end(written_there, journal)
            who = f"{letter(other)} follows {name(machine, owner)}"
            if differ(written_there[:end], journal[:end]):
                yield f"{who}: one lineage, and other records", state, LINEAGE
            elif end < len(written_there):
                yield from cut(world, state, machine, other, end, who)
            else:
                yield from receive(world, state, machine, other, who)


def without_older_epoch(world: World, state: State, machine: int, owner: int) -> Member:
    """The member that follows this owner: who owns an older epoch, or has won one, ends before it follows."""
    member = state.members[machine]
    if member.epoch or world.laws.ends_by_following(member.won, state.members[owner].epoch):
        return restarted(world, state, stopped(member))
    return member


def cut(world: World, state: State, machine: int, other: int, end: int, who: str) -> Iterator[Step]:
    """The member is cut, or refuses that."""
    member = without_older_epoch(world, state, other, machine)
    owner = state.members[machine]
    refuses = world.laws.refuses_a_jump(JUMP in owner.journal[end:])
    if refuses or not world.laws.may_cut(end, max(member.mark, member.saved)):
        if member.id not in owner.required:
            return  # It stops and keeps its journal; the owner needs nothing of it.
        members = replaced(state, machine, restarted(world, state, stopped(owner)))
        yield (
            f"{who}, and refuses to be cut below its mark: {letter(machine)} ends",
            state._replace(members=members),
            None,
        )
        return
    lost = member.journal[end:]
    member = member._replace(journal=member.journal[:end], synced=end, mark=min(member.mark, end), whole_in=0)
    members = replaced(state, other, member)
    kept = state.given_up
    is_kept = not kept or any(holds(there.journal, kept) for there in members)
    yield (
        f"{who}, and is cut to its lineage: without {written(lost)}",
        state._replace(members=members),
        None if is_kept else KEPT,
    )


def receive(world: World, state: State, machine: int, other: int, who: str) -> Iterator[Step]:
    """The member writes, syncs and acknowledges what it lacks. Between these three steps its crash leaves
    nothing else than its crash before the first or after the last: an acknowledgement counts only when
    the owner accepts, which is another step."""
    owner, member = state.members[machine], without_older_epoch(world, state, other, machine)
    journal = joined(member.journal, owner.journal)
    mark = max(member.mark, owner.mark) if world.scenario.marks else member.mark
    end = len(journal)
    has_everything = member.whole_in == owner.epoch and owner.ends[member.id] == end
    if (journal, mark) == (member.journal, member.mark) and has_everything:
        return
    ends = (*owner.ends[: member.id], end, *owner.ends[member.id + 1 :])
    receiver = member._replace(journal=journal, synced=end, mark=mark, whole_in=owner.epoch)
    members = replaced(state, other, receiver)
    after = state._replace(members=members)
    members = replaced(after, machine, owner._replace(ends=ends))
    yield f"{who}, and acknowledges {written(journal)}", state._replace(members=members), None


def receive_late(world: World, state: State) -> Iterator[Step]:
    """Records of an owner that has died meanwhile reach the process that was attached to it."""
    for message in state.messages:
        member = state.members[message.machine]
        if member.process != message.process or member.epoch or member.off:
            continue
        after = state._replace(messages=state.messages - {message})
        fits = common_end(member.journal, message.journal) == len(member.journal) < len(message.journal)
        if fits and world.laws.follows(oldest_followed(member), message.epoch):
            journal = joined(member.journal, message.journal)
            receiver = member._replace(journal=journal, synced=len(journal))
            yield (
                f"{letter(message.machine)} receives late what the dead owner of epoch {message.epoch} "
                f"has sent: {written(journal)}",
                after._replace(members=replaced(state, message.machine, receiver)),
                None,
            )


def save_mark(world: World, state: State) -> Iterator[Step]:
    """A member writes the accepted mark into its extent."""
    if not world.scenario.marks:
        return
    for machine, member in enumerate(state.members):
        if member.saved < member.mark and not member.off:
            members = replaced(state, machine, member._replace(saved=member.mark))
            yield f"{letter(machine)} writes the mark into its extent", state._replace(members=members), None
