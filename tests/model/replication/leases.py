"""Steps of clocks: time passes, owners send beats, members grant, and owners deliver."""

from collections.abc import Iterator

from tests.model.replication.invariants import ONE_DELIVERS
from tests.model.replication.laws import GRANT
from tests.model.replication.owning import name, owners, restarted, stopped
from tests.model.replication.state import Grant, Member, State, oldest_followed, replaced
from tests.model.replication.world import Step, World, letter


def tick(world: World, state: State) -> Iterator[Step]:
    """Time passes."""
    if state.now < world.scenario.ticks:
        now = state.now + 1
        members = tuple(
            without_expired(member, world.time(machine, now)) for machine, member in enumerate(state.members)
        )
        yield f"it is {now} o'clock", state._replace(now=now, members=members), None


def without_expired(member: Member, now: int) -> Member:
    """The member without times that are over: they make no difference any more."""
    return member._replace(
        grants=frozenset(grant for grant in member.grants if grant.until > now),
        leases=tuple(end if end > now else 0 for end in member.leases),
        silent_until=member.silent_until if member.silent_until > now else 0,
    )


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
            grant = Grant(machine, owner.process, sent, granted)
            if still_granted(world, member, grant) == member.grants or reply in state.replies:
                continue
            if world.laws.ends_by_answering(
                member.won, owner.epoch
            ):  # An owner that hears of a newer one ends before it grants.
                member = restarted(world, state, stopped(member))
            granting = member._replace(grants=still_granted(world, member, grant))
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
        if owner.leases[granter] >= end or not world.laws.counts_as_lease(sent, owner.returned_at):
            continue
        leases = (*owner.leases[:granter], end, *owner.leases[granter + 1 :])
        yield (
            f"{name(machine, owner)} has a lease of {letter(granter)} until {end} o'clock",
            state._replace(members=replaced(state, machine, owner._replace(leases=leases)), replies=replies),
            None,
        )


def still_granted(world: World, member: Member, grant: Grant) -> frozenset[Grant]:
    """The grants of a member with one more: of each owner only the latest counts. Where none is ever
    returned, the latest of all counts."""
    if not world.scenario.returns:
        until = max([grant.until, *(old.until for old in member.grants)])
        return frozenset({Grant(-1, -1, 0, until)})
    others = {old for old in member.grants if (old.machine, old.process) != (grant.machine, grant.process)}
    return frozenset(others | {grant})


def hand_back(world: World, state: State) -> Iterator[Step]:
    """An owner that hands over returns its leases, and delivers no more by them."""
    if not world.scenario.returns:
        return
    for machine, owner in owners(state):
        if owner.returned_at >= 0 or not any(owner.leases):
            continue
        now = world.time(machine, state.now)
        returned = owner._replace(leases=(0,) * len(owner.leases), returned_at=now)
        messages = {(machine, owner.process, other, now) for other in owner.required - {owner.id}}
        yield (
            f"{name(machine, owner)} returns its leases",
            state._replace(members=replaced(state, machine, returned), returns=state.returns | messages),
            None,
        )


def hear_return(world: World, state: State) -> Iterator[Step]:
    """Returned leases reach the member that granted them."""
    for message in state.returns:
        machine, process, granter, returned_at = message
        for at, member in enumerate(state.members):
            if member.id != granter:
                continue
            grants = frozenset(
                grant
                for grant in member.grants
                if not world.laws.is_returned(
                    (grant.machine, grant.process), grant.sent, (machine, process), returned_at
                )
            )
            silent = world.laws.silent_until(max((grant.until for grant in grants), default=0))
            member = member._replace(grants=grants, silent_until=min(member.silent_until, silent))
            yield (
                f"{letter(at)} has its grants to {letter(machine)} back",
                state._replace(members=replaced(state, at, member), returns=state.returns - {message}),
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
