"""What must hold in every history, whatever fails within the bounds of its scenario."""

from typing import Final

from tests.model.replication.state import Journal, State, differ, holds
from tests.model.replication.world import World

ONE_HISTORY: Final = "what was accepted stays accepted"
COPIES: Final = "what is accepted is on as many disks as the minimum demands"
IN_SYNC: Final = "every member in sync has everything accepted"
LINEAGE: Final = "journals of one lineage have the same bytes"
PLACES: Final = "an epoch without a segment took nobody's place"
SHOWN: Final = "what a reader has seen stays"
KEPT: Final = "what was accepted is kept on some disk"
ABSENCE: Final = "an answer about absence is true"
ONE_DELIVERS: Final = "no owner delivers after a newer one has"
MOVED: Final = "a moved queue is at its source or at its destination"
NAMED: Final = "a queue that is named and used is not deleted"


def broken_by_acceptance(world: World, state: State, prefix: Journal) -> str | None:
    """The invariant that an owner breaks by accepting this much of its journal."""
    accepted = state.accepted
    if differ(prefix, accepted) or (len(prefix) >= len(accepted) and not holds(prefix, accepted)):
        return ONE_HISTORY
    if differ(prefix, state.shown):
        return SHOWN
    scenario = world.scenario
    if not state.spent.faults and not scenario.promote:
        copies = sum(holds(member.journal[: member.synced], prefix) for member in state.members)
        if copies < scenario.minimum:
            return COPIES
    return None


def broken_in(state: State) -> str | None:
    """The invariant that a state breaks, however it came about."""
    if state.etcd.restored:
        return None  # The entry may be wrong; what owners accept by it may not be.
    accepted = state.accepted
    in_sync = state.etcd.entry.in_sync
    ids = set()
    for member in state.members:
        ids.add(member.id)
        if member.sound and member.id in in_sync and not holds(member.journal[: member.synced], accepted):
            return IN_SYNC
    if not ids & in_sync and ids & state.held_before:
        return PLACES
    return None
