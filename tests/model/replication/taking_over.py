"""Steps of a candidate: it asks etcd for an epoch, looks around, and writes its first segment."""

from collections.abc import Iterator
from itertools import chain, combinations

from tests.model.replication.laws import Ids
from tests.model.replication.owning import name, restarted, stopped
from tests.model.replication.state import JUMP, Member, State, Write, common_end, newest_epoch, replaced
from tests.model.replication.world import Step, World, letter, letters, written


def ask_for_the_epoch(world: World, state: State) -> Iterator[Step]:
    """A member that does not own sends the write by which it takes over."""
    if state.spent.writes >= world.scenario.writes:
        return
    laws, entry = world.laws, state.etcd.entry
    if entry.epoch >= world.scenario.epochs:
        return
    spent = state.spent._replace(writes=state.spent.writes + 1)
    for machine, member in enumerate(state.members):
        if member.won or member.off:
            continue
        own = newest_epoch(member.journal)
        if laws.may_take_over(member.id, entry.in_sync) and laws.trusts_own_disk(entry.epoch, own):
            epoch, in_sync = entry.epoch + 1, laws.set_of_a_take_over(entry.in_sync, entry.owner)
        elif laws.reclaims(entry.epoch, own, entry.in_sync):
            epoch, in_sync = laws.epoch_reclaimed(entry.epoch, own), laws.set_reclaimed(member.id)
        else:
            continue
        compared = laws.compared_by_sets(entry.revision)
        write = Write("take over", machine, member.process, compared, epoch, member.id, in_sync)
        if write in state.writes:
            continue
        yield (
            f"{letter(machine)} asks etcd for epoch {epoch}",
            state._replace(writes=state.writes | {write}, spent=spent),
            None,
        )


def own_again(world: World, state: State) -> Iterator[Step]:
    """Without law 4: a process finds its member in the entry, and owns without a write."""
    entry = state.etcd.entry
    for machine, member in enumerate(state.members):
        if member.won or member.off or world.laws.needs_a_take_over(entry.owner == member.id):
            continue
        owner = won(world, member, entry.epoch, entry.in_sync, entry.revision)
        yield (
            f"{letter(machine)} starts, finds itself in the entry, and owns epoch {entry.epoch} again",
            state._replace(members=replaced(state, machine, owner)),
            None,
        )


def won(world: World, member: Member, epoch: int, in_sync: Ids, revision: int) -> Member:
    """A member that owns by the entry, and has not begun."""
    nothing = (0,) * world.ids
    return member._replace(
        won=epoch,
        won_at=revision,
        known=in_sync,
        required=in_sync,
        revision=revision,
        ends=nothing,
        leases=nothing,
    )


def reach(member: Member) -> tuple[int, int]:
    """How far what is on this member's disk reaches."""
    kept = member.journal[: member.synced]
    return newest_epoch(kept), len(kept)


def begin(world: World, state: State) -> Iterator[Step]:
    """An owner compares its journal with those of the members that answer, fetches what it lacks, and
    writes its first segment. This is one step: who has answered follows no older owner, so that nothing is
    added to its journal before the owner acts on the answer.

    Any of the others may be silent for as long as the owner waits."""
    laws, scenario = world.laws, world.scenario
    for machine, member in enumerate(state.members):
        if not member.won or member.epoch or member.off or member.won < member.promised:
            continue
        others = [at for at, other in enumerate(state.members) if at != machine and not other.off]
        for places in chain.from_iterable(combinations(others, size) for size in range(len(others) + 1)):
            heard = [state.members[at] for at in places]
            compared = 1 + sum(other.id in member.known for other in heard)
            is_whole = 0 < member.whole_in < member.won
            if not member.known:
                if not laws.may_begin_reclaimed(1 + len(heard), scenario.members, scenario.minimum):
                    continue
                if any(reach(other) > reach(member) for other in heard):
                    continue  # That one takes over.
            elif not laws.may_begin(compared, len(member.known), scenario.minimum, is_whole):
                continue
            if not all(laws.trusts_others(member.won, newest_epoch(other.journal)) for other in heard):
                continue
            in_sync = [other.journal[: other.synced] for other in heard if other.id in member.known]
            journal = max([member.journal, *in_sync], key=lambda there: (newest_epoch(there), len(there)))
            fetched = journal != member.journal and (newest_epoch(journal), len(journal)) > (
                newest_epoch(member.journal),
                len(member.journal),
            )
            if not fetched:
                journal = member.journal
            elif common_end(journal, member.journal) < max(member.mark, member.saved):
                continue
            if newest_epoch(journal) < member.won:
                journal = (*journal, -member.won)
                if member.won == state.promoted:
                    journal = (*journal, JUMP)
            owner = member._replace(
                journal=journal,
                synced=len(journal),
                epoch=member.won,
                begun_at=state.etcd.revision,
                silent_until=laws.silent_until(max((grant.until for grant in member.grants), default=0))
                if scenario.ticks
                else 0,
            )
            promised = laws.promised_by_answering(member.won)
            members = list(replaced(state, machine, owner))
            for at in places:
                other = members[at]
                if laws.ends_by_answering(other.won, member.won):
                    other = restarted(world, state, stopped(other))
                members[at] = other._replace(promised=max(other.promised, promised))
            after = state._replace(members=tuple(members))
            if state.etcd.entry.epoch == owner.epoch:
                after = after._replace(held_before=state.etcd.entry.in_sync)
            yield (
                f"{name(machine, member)} hears {letters(frozenset(other.id for other in heard))}, "
                f"{'fetches, ' if fetched else ''}begins: {written(journal)}",
                after,
                None,
            )
