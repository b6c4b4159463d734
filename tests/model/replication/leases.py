"""Steps of clocks: time passes, owners send beats, members grant, and owners deliver."""

from collections.abc import Iterator

from tests.model.replication.invariants import ONE_DELIVERS
from tests.model.replication.laws import GRANT
from tests.model.replication.owning import name, owners, restarted, stopped
from tests.model.replication.state import State, oldest_followed, replaced
from tests.model.replication.world import Step, World, letter


def tick(world: World, state: State) -> Iterator[Step]:
    """Time passes."""
    if state.now < world.scenario.ticks:
        yield f"it is {state.now + 1} o'clock", state._replace(now=state.now + 1), None


def beat(world: World, state: State) -> Iterator[Step]:
    """A beat reaches a member, which grants. A beat that was longer on its way only shortens the lease."""
    if not world.scenario.ticks:
        return
    for machine, owner in owners(state):
        sent = world.time(machine, state.now)
        for other, member in enumerate(state.members):
            if other == machine or not world.laws.follows(oldest_followed(member), owner.epoch):
                continue
            granted = world.time(other, state.now) + GRANT
            reply = (machine, owner.process, member.id, sent)
            if member.granted_until >= granted or reply in state.replies:
                continue
            if world.laws.ends_by_answering(
                member.won, owner.epoch
            ):  # An owner that hears of a newer one ends before it grants.
                member = restarted(world, state, stopped(member))
            granting = member._replace(granted_until=granted)
            yield (
                f"{letter(other)} grants a lease to {name(machine, owner)}",
                state._replace(members=replaced(state, other, granting), replies=state.replies | {reply}),
                None,
            )


def hear_grant(world: World, state: State) -> Iterator[Step]:
    """A grant reaches the owner."""
    for reply in state.replies:
        machine, process, granter, sent = reply
        owner = state.members[machine]
        replies = state.replies - {reply}
        if owner.process != process or not owner.epoch:
            continue
        end = world.laws.lease_end(sent, world.time(machine, state.now))
        if owner.leases[granter] >= end:
            continue
        leases = (*owner.leases[:granter], end, *owner.leases[granter + 1 :])
        yield (
            f"{name(machine, owner)} has a lease of {letter(granter)} until {end} o'clock",
            state._replace(members=replaced(state, machine, owner._replace(leases=leases)), replies=replies),
            None,
        )


def deliver(world: World, state: State) -> Iterator[Step]:
    """An owner sends a delivery to a consumer."""
    if not world.scenario.ticks:
        return
    for machine, owner in owners(state):
        if owner.epoch == state.delivered:
            continue
        now = world.time(machine, state.now)
        if not world.laws.may_deliver(now, owner.silent_until, owner.required, owner.id, owner.leases):
            continue
        is_late = owner.epoch < state.delivered and world.scenario.stopped_clock is None
        yield (
            f"{name(machine, owner)} delivers at {state.now} o'clock",
            state._replace(delivered=max(owner.epoch, state.delivered)),
            ONE_DELIVERS if is_late else None,
        )
