"""Ownership: the state of one queue at one shard, and its transitions by placements and names.

Theory. The placement of a queue, an entry of the coordinator, names one shard and one epoch. Each change of
the owner raises the epoch. The named shard serves the queue in this epoch, and all others refuse it. A queue
moves in three steps (docs/adr/0010-moving-queues.md): the destination fills a copy (COPYING), the source
freezes the queue (FROZEN), and the destination writes the placement with the next epoch. From then on the
destination serves its copy as the queue, and the source deletes its queue (MOVED).

Only a frozen queue can have moved to another shard, because it did not change after the last copy. If the
placement names another owner, and this shard did not freeze the queue, this shard has messages that no other
shard has: an operator declared its disk lost, or the disk is an old copy. Such a queue is kept (UNOWNED)
until a placement names this shard again. So is a queue whose name is missing in the directory after a start:
a lost directory must not delete messages.

A queue that nobody has used for the time of its policy is LEAVING (links/retiring.py), and so is an empty one
whose name a gateway is about to delete: it accepts nothing while the coordinator deletes its name, so that no
accepted message is deleted. The deletion is guarded by the revision of the name, and fails at a later one,
with which the queue is served again.

    COPYING --OPEN----> SERVING     the placement names this shard, in the epoch that the copy was made for
    SERVING --FREEZE--> FROZEN      the destination requested it, and its record is appended
    FROZEN  --THAW----> SERVING     the placement names this shard in a later epoch: the move was cancelled
    UNOWNED --CLAIM---> SERVING     placement and name show again that the queue belongs here
    SERVING --RENEW---> SERVING     the placement names this shard in another epoch
    UNOWNED --RENEW---> UNOWNED     the same, while the name does not show that the queue belongs here
    SERVING, FROZEN --DISOWN--> UNOWNED   the placement names another shard, which lacks messages of this one
    FROZEN  --LEAVE---> MOVED       the placement names another shard, which has all messages
    SERVING --RETIRE--> LEAVING     its name is about to be deleted, and its record is appended
    LEAVING --RETURN--> SERVING     the name was changed, so that its deletion fails
    LEAVING --RENEW---> LEAVING, LEAVING --DISOWN--> UNOWNED   as a queue that is SERVING
    COPYING, SERVING, FROZEN, LEAVING, UNOWNED --DELETE--> DELETED   the name was deleted, or the copy is not
                                                                     needed

The module is pure. `Ownership` is the only writer of a queue's state and epoch. The modules that apply an
event carry out its consequences: shard/engine/follower.py, moving/freezing.py, moving/arrivals.py and
links/retiring.py.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from lightrail.model import names as rules
from lightrail.model.policy import Role
from lightrail.shard.journal.record import Declared

if TYPE_CHECKING:
    from lightrail.namespace.records import Name


class OwnershipState(Enum):
    """What a shard does with a queue."""

    COPYING = "copying"
    """The shard copies the queue from its owner, and does not serve it."""
    SERVING = "serving"
    """The shard owns the queue: links attach, messages are stored and delivered."""
    FROZEN = "frozen"
    """The queue does not change, because another shard is about to own it."""
    LEAVING = "leaving"
    """The queue does not change, because its name is about to be deleted, unless somebody changes it."""
    UNOWNED = "unowned"
    """The shard keeps the queue and does not serve it, until an operator or a placement decides."""
    MOVED = "moved"
    """The shard has deleted the queue: another shard owns it and has all of its messages."""
    DELETED = "deleted"
    """The shard has deleted the queue, or the copy."""


class OwnershipEvent(Enum):
    """An event that changes the state of a queue."""

    OPEN = "open"
    FREEZE = "freeze"
    THAW = "thaw"
    CLAIM = "claim"
    RENEW = "renew"
    DISOWN = "disown"
    LEAVE = "leave"
    RETIRE = "retire"
    RETURN = "return"
    DELETE = "delete"


TRANSITIONS: Final[Mapping[tuple[OwnershipState, OwnershipEvent], OwnershipState]] = MappingProxyType(
    {
        (OwnershipState.COPYING, OwnershipEvent.OPEN): OwnershipState.SERVING,
        (OwnershipState.COPYING, OwnershipEvent.DELETE): OwnershipState.DELETED,
        (OwnershipState.SERVING, OwnershipEvent.FREEZE): OwnershipState.FROZEN,
        (OwnershipState.SERVING, OwnershipEvent.RENEW): OwnershipState.SERVING,
        (OwnershipState.SERVING, OwnershipEvent.DISOWN): OwnershipState.UNOWNED,
        (OwnershipState.SERVING, OwnershipEvent.DELETE): OwnershipState.DELETED,
        (OwnershipState.FROZEN, OwnershipEvent.THAW): OwnershipState.SERVING,
        (OwnershipState.FROZEN, OwnershipEvent.DISOWN): OwnershipState.UNOWNED,
        (OwnershipState.FROZEN, OwnershipEvent.LEAVE): OwnershipState.MOVED,
        (OwnershipState.FROZEN, OwnershipEvent.DELETE): OwnershipState.DELETED,
        (OwnershipState.SERVING, OwnershipEvent.RETIRE): OwnershipState.LEAVING,
        (OwnershipState.LEAVING, OwnershipEvent.RETURN): OwnershipState.SERVING,
        (OwnershipState.LEAVING, OwnershipEvent.RENEW): OwnershipState.LEAVING,
        (OwnershipState.LEAVING, OwnershipEvent.DISOWN): OwnershipState.UNOWNED,
        (OwnershipState.LEAVING, OwnershipEvent.DELETE): OwnershipState.DELETED,
        (OwnershipState.UNOWNED, OwnershipEvent.CLAIM): OwnershipState.SERVING,
        (OwnershipState.UNOWNED, OwnershipEvent.RENEW): OwnershipState.UNOWNED,
        (OwnershipState.UNOWNED, OwnershipEvent.DELETE): OwnershipState.DELETED,
    }
)
"""The next state for each state and event; missing pairs are refused."""

PLACED: Final = frozenset(
    {OwnershipEvent.OPEN, OwnershipEvent.THAW, OwnershipEvent.CLAIM, OwnershipEvent.RENEW}
)
"""Events that follow a placement, and set the epoch to that of the placement."""


class OwnershipError(Exception):
    """An event that the state of the queue does not allow."""


class Ownership:
    """State and epoch of one queue at this shard.

    Args:
        epoch: epoch in which this shard owns the queue, or will own it if it is a copy.
    """

    __slots__ = ("epoch", "is_serving", "state")

    def __init__(self, state: OwnershipState, epoch: int) -> None:
        self.state = state
        self.epoch = epoch
        self.is_serving = state is OwnershipState.SERVING

    def apply(self, event: OwnershipEvent, epoch: int | None = None) -> None:
        """Changes the state.

        Args:
            epoch: epoch of the placement, for the events of `PLACED` only.

        Raises:
            OwnershipError: the state does not allow the event; nothing has changed.
        """
        after = TRANSITIONS.get((self.state, event))
        if after is None or (epoch is None) is (event in PLACED):
            raise OwnershipError(
                f"expected an event that {self.state.value} allows, found {event.value}, epoch {epoch}"
            )
        self.state = after
        self.is_serving = after is OwnershipState.SERVING
        if epoch is not None:
            self.epoch = epoch


class StoredPlacement(Protocol):
    """A placement as the coordinator stores it; `lightrail.cluster.map.Placed` is one."""

    @property
    def shard(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def lost(self) -> int:
        """Epochs up to this one ended because an operator gave up the disk of their owner."""


class QueueVerdict(Enum):
    """The verdict on a queue that a shard stores."""

    SERVE = 1
    """Serve it in the epoch of the placement."""
    STAY = 2
    """Change nothing."""
    CHANGE = 3
    """Apply the policy of its name."""
    KEEP = 4
    """Keep it and do not serve it: its owner is unknown, or lacks messages of this shard."""
    LEAVE = 5
    """Delete it: its owner has all messages by a move from this shard."""
    DELETE = 6
    """Delete it: its name was deleted."""


def judge(state: OwnershipState, epoch: int, placed: StoredPlacement | None, shard: int) -> QueueVerdict:
    """The verdict of the placement on a queue: SERVE, STAY, KEEP or LEAVE.

    Args:
        state: one of COPYING, SERVING, FROZEN, LEAVING and UNOWNED.
        epoch: the epoch that this shard stores with it; for a copy, the epoch after its move.
        placed: the placement; None if there is none.
    """
    if placed is None:
        return (
            QueueVerdict.STAY
            if state in (OwnershipState.COPYING, OwnershipState.FROZEN)
            else QueueVerdict.KEEP
        )
    if state is OwnershipState.COPYING:
        if placed.epoch == epoch and placed.shard == shard:
            return QueueVerdict.SERVE
        return QueueVerdict.STAY if placed.epoch < epoch else QueueVerdict.LEAVE
    is_frozen = state is OwnershipState.FROZEN
    if placed.shard == shard:
        return QueueVerdict.STAY if is_frozen and placed.epoch == epoch else QueueVerdict.SERVE
    if placed.epoch <= epoch:
        return QueueVerdict.STAY if is_frozen else QueueVerdict.KEEP
    return QueueVerdict.LEAVE if is_frozen and placed.lost <= epoch else QueueVerdict.KEEP


def judge_name(
    ownership: Ownership, stored: "Name", found: "Name", history: str, *, is_placed: bool
) -> QueueVerdict:
    """The verdict of a changed name on a queue that is SERVING, FROZEN, LEAVING or UNOWNED.

    Args:
        stored: the name with which the queue was opened.
        found: the current name in the directory.
        history: the directory's history. In another history than that of `stored` nothing was deleted: the
            coordinator was set back to an older snapshot (cluster/history.py).
        is_placed: whether the placement names this shard.
    """
    is_queue = found.role is Role.QUEUE
    if ownership.state is OwnershipState.UNOWNED:
        return QueueVerdict.SERVE if is_queue and is_placed else QueueVerdict.STAY
    if history != stored.history:
        if not is_queue:
            return QueueVerdict.KEEP
    elif not is_queue or found.created != stored.created:
        return QueueVerdict.DELETE
    elif found.policy == stored.policy:
        return QueueVerdict.STAY
    # A frozen queue gets the policy at the shard that serves it next.
    return QueueVerdict.STAY if ownership.state is OwnershipState.FROZEN else QueueVerdict.CHANGE


def recovered(
    declared: Declared, found: "Name", history: str, placed: StoredPlacement | None, shard: int
) -> tuple[OwnershipState, int]:
    """State and epoch of a queue, not a copy, that the journal has after a start.

    MOVED and DELETED are results for queues whose deletion could not be recorded before.

    Args:
        declared: the journal's last Queue record.
        found: the current record of its name in the directory.
        history: the directory's history.
    """
    before = OwnershipState.FROZEN if declared.frozen else OwnershipState.SERVING
    # In another history than the journal's, no revision shows that the queue was deleted.
    is_comparable = declared.history == history
    # If the name has an earlier revision than the journal's, the directory was set back, and the queue was
    # not deleted.
    is_same = not is_comparable or declared.created is None or found.created <= declared.created
    if found.role is Role.QUEUE and is_same:
        verdict = judge(before, declared.epoch, placed, shard)
        if verdict is QueueVerdict.SERVE:
            assert placed is not None
            # A deletion that was requested before the start may be applied late, unless the name is changed.
            is_leaving = is_comparable and declared.leaving and found.revision <= declared.leaving
            return OwnershipState.LEAVING if is_leaving else OwnershipState.SERVING, placed.epoch
        after = {
            QueueVerdict.STAY: OwnershipState.FROZEN,
            QueueVerdict.LEAVE: OwnershipState.MOVED,
            QueueVerdict.KEEP: OwnershipState.UNOWNED,
        }
        return after[verdict], declared.epoch
    if is_comparable and (found.role is Role.QUEUE or rules.is_system(rules.owner(found.name))):
        return OwnershipState.DELETED, declared.epoch
    return OwnershipState.FROZEN if declared.frozen else OwnershipState.UNOWNED, declared.epoch
