"""What bounds an exploration: a scenario of events that may happen, and the laws that members keep."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.model.replication.laws import Ids, Laws
from tests.model.replication.state import Entry, Etcd, Journal, Member, State

NAMES: Final = "ABCDEFGH"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Bounds: how many members there are, and how often an event may happen."""

    members: int = 3
    minimum: int = 1
    records: int = 1
    epochs: int = 3
    writes: int = 2
    crashes: int = 0
    delayed: int = 0
    """Messages that arrive after the death of the owner that sent them."""
    lost_disks: int = 0
    set_backs: int = 0
    """Disks that are set back without being recognised."""
    restored_disks: int = 0
    flips: int = 0
    marks: bool = False
    """Members learn the accepted mark, and write it into their extents."""
    cleaner: bool = False
    reader: bool = False
    question: bool = False
    move: bool = False
    queue: bool = False
    consumer: bool = False
    ticks: int = 0
    returns: bool = False
    """Owners may return their leases."""
    stopped_clock: int | None = None
    """The machine whose clock does not run."""
    restores: bool = False
    """Etcd may be set back once, to `older`."""
    older: Entry | None = None
    promote: bool = False
    omitted: tuple[str, ...] = ()
    """Kinds of steps that the promises of this scenario do not depend on."""
    start: State | None = None


@dataclass(frozen=True, slots=True)
class World:
    """A scenario with its laws."""

    scenario: Scenario
    laws: Laws = field(default_factory=Laws)

    @property
    def ids(self) -> int:
        """How many directories there may be."""
        return self.scenario.members + self.scenario.lost_disks + self.scenario.flips

    def time(self, machine: int, now: int) -> int:
        """The time by this machine's clock."""
        return 0 if machine == self.scenario.stopped_clock else now


Step = tuple[str, State, str | None]
"""What happened, the state after it, and which promise it has broken."""
Steps = Callable[[World, State], Iterator[Step]]


def start_of(scenario: Scenario) -> State:
    """All members have the first segment, the first one owns, and all are in sync."""
    if scenario.start is not None:
        return scenario.start
    everybody = frozenset(range(scenario.members))
    journal = (-1,)
    members = [Member(member, journal, 1) for member in range(scenario.members)]
    ids = scenario.members + scenario.lost_disks + scenario.flips
    members[0] = owning(members[0], Entry(1, 1, 0, everybody), ids)
    return State(tuple(members), Etcd(1, Entry(1, 1, 0, everybody)), held_before=everybody)


def owning(member: Member, entry: Entry, ids: int) -> Member:
    """This member as the owner in the entry's epoch, with its first segment written."""
    return member._replace(
        epoch=entry.epoch,
        won=entry.epoch,
        revision=entry.revision,
        known=entry.in_sync,
        required=entry.in_sync,
        ends=(0,) * ids,
        leases=(0,) * ids,
    )


def letter(member: int) -> str:
    """The name of a machine or a directory."""
    return NAMES[member]


def letters(members: Ids) -> str:
    """The names of a set."""
    return "{" + ", ".join(map(letter, sorted(members))) + "}"


def written(journal: Journal) -> str:
    """A journal in words."""
    texts = {91: "copy", 92: "dropped", 93: "queue", 94: "deleted", 95: "jump"}
    words = [
        f"[epoch {-item}]"
        if item < 0
        else texts.get(item) or (f"r{item - 50} again" if item > 50 else f"r{item}")
        for item in journal
        if item
    ]
    return " ".join(words) or "nothing"
