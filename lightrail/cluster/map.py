"""Map: one process's view of placements, moves and members, as of the last refresh.

It follows the coordinator's entries like the directory of names: `refresh()` is synchronous, costs
microseconds when nothing changed, and is called before each decision and every limits.DIRECTORY_POLL_MS.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lightrail.cluster.changes import ChangeFollower
from lightrail.cluster.coordinator import CoordinatorError, KeySpace, Write
from lightrail.cluster.entries import HISTORY, Entry
from lightrail.cluster.readers import READERS, Reader
from lightrail.cluster.replica_sets import FOLLOWERS, REPLICAS, ReplicaSet, follower_key
from lightrail.model import limits, names
from lightrail.model.placement import Placement

PLACEMENT: Final = "placement/"
MOVES: Final = "moves/"
SHARD_SETS: Final = "shardsets/"
SHARDS: Final = "shards/"
FRONTENDS: Final = "frontends/"
GATEWAYS: Final = "gateways/"
PREFIXES: Final = (
    *(PLACEMENT, MOVES, READERS, SHARD_SETS, SHARDS, FRONTENDS, GATEWAYS, REPLICAS, FOLLOWERS),
    HISTORY,
)
"""Of the keys that the map follows."""
FIRST_EPOCH: Final = 0
"""Epoch in a new placement; the revision that made the entry is used instead (docs/adr/0015)."""


class Placed(NamedTuple):
    """A placement as it is stored, with the revision that guards a change of it."""

    shard: int
    epoch: int
    """Rises with every change of the owner, also if the queue was deleted and created again in between."""
    revision: int
    lost: int = 0
    """Epoch in which an operator gave up the messages of all epochs before; 0 for none."""
    moved: bool = True
    """Whether the owner has changed since the queue was placed for the first time."""

    @property
    def placement(self) -> Placement:
        return Placement(self.shard, self.epoch)

    @staticmethod
    def encode(shard: int, epoch: int = FIRST_EPOCH, lost: int = 0) -> str:
        """The value of the entry ``placement/QUEUE``."""
        fields = {"shard": shard, "epoch": epoch}
        if lost:
            fields["lost"] = lost
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, entry: Entry) -> "Placed":
        """Decodes such an entry, which exists. Raises CoordinatorError."""
        try:
            shard, epoch, lost = _placed(entry.value or "")
            return cls(
                shard, entry.created if epoch == FIRST_EPOCH else epoch, entry.revision, lost, epoch > 1
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a queue to another shard: the entry ``moves/QUEUE``.

    It exists from the plan to the commit. Its destination carries it out (docs/adr/0010).
    """

    queue: str
    source: int
    to: int
    epoch: int
    """Epoch of the placement at its start."""
    phase: str = "waiting"
    """``waiting`` and copying, or ``frozen``: the destination has requested the source to freeze."""
    throttle: int = 0
    """Bytes per second of the copy; 0 for no limit."""
    asked_ms: int = 0
    """Time of the request, in milliseconds since 1970."""
    order: int = 0
    """Position among the moves of one request."""
    revision: int = 0
    """Revision of the entry; guards the next change."""

    @property
    def key(self) -> str:
        return MOVES + self.queue

    def encode(self) -> str:
        """The value of its entry."""
        fields = asdict(self)
        del fields["queue"], fields["revision"]
        return json.dumps(fields, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard, alive or not, until it is removed: the entry ``shardsets/ID``."""

    id: int
    disk: str = ""
    """Disk id of its data directory; empty until the first process has registered."""
    state: str = "active"
    """``active``, or ``draining``: it receives no new queues, and its queues are to be moved away."""
    revision: int = 0

    def encode(self) -> str:
        return json.dumps({"disk": self.disk, "state": self.state}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Member:
    """A process that serves: the entries ``shards/ID``, ``frontends/ID`` and ``gateways/ID``."""

    id: int
    boot: int
    """Random number, drawn when the process starts."""
    address: str = ""
    """ZeroMQ address: a shard's for frontends, or a frontend's control socket."""
    metrics: str = ""
    """``HOST:PORT`` of the /metrics of this process."""
    http: str = ""
    """``HOST:PORT`` of a gateway."""
    disk: str = ""
    """Disk id of a shard's data directory."""
    host: str = ""
    zone: str = ""
    version: str = ""
    started_ms: int = 0
    lock: str = ""
    """Of a member with replicas: the identity of its directory's lock, which one process can have."""
    storage: str = ""
    """Of such a member: the server of the network file system of its directory; empty for a local one."""

    def encode(self) -> str:
        fields = asdict(self)
        del fields["id"]
        # A former version can't read an entry with these fields; it reads no entries of members.
        for name in ("lock", "storage"):
            if not self.lock or not fields[name]:
                del fields[name]
        return json.dumps(fields, separators=(",", ":"))


_OF_THE_ENTRY: Final = ("id", "queue", "revision")
"""Fields of the three classes that are not in the value: they are those of the key, and the revision."""


def known(kind: type[Move | ShardRecord | Member], value: str) -> dict[str, Any]:
    """The fields of an entry that this program knows: a later one may have written more.

    Raises ValueError.
    """
    fields = json.loads(value)
    if not isinstance(fields, dict) or (kind is ShardRecord and "disk" not in fields):
        raise ValueError(f"expected a JSON object with the fields of {kind.__name__}, found {value[:80]}")
    return {name: fields[name] for name in kind.__slots__ if name in fields and name not in _OF_THE_ENTRY}


@lru_cache(maxsize=limits.EQUAL_VALUES_MAX)
def _placed(value: str) -> tuple[int, int, int]:
    """Shard, epoch and lost messages of a placement; most of them have the same value."""
    fields = json.loads(value)
    return int(fields["shard"]), int(fields["epoch"]), int(fields.get("lost", 0))


def unplacing(queues: Iterable[str]) -> list[Write]:
    """The writes that delete the placements of deleted queues; queues made again may get another shard.

    They belong into the transaction that deletes the names: alone, and late, they would delete the placements
    of queues that were made again meanwhile.
    """
    owners = dict.fromkeys(queue for queue in queues if not names.is_dead_letter(queue))
    return [Write(prefix + queue, None) for queue in owners for prefix in (PLACEMENT, MOVES)]


@dataclass(slots=True)
class MapChanges:
    """The changes that a refresh found."""

    placements: set[str] = field(default_factory=set)
    """Queues with a new shard or epoch, with their first placement, or whose placement was deleted."""
    moves: set[str] = field(default_factory=set)
    """Queues whose move began, changed or ended."""
    shards: set[int] = field(default_factory=set)
    """Shards that were added, removed or registered, have ended, or have a new address or state."""
    members: bool = False
    """Frontends or gateways were registered, or have ended."""
    readers: set[str] = field(default_factory=set)
    """Readers of journals that were added, have new positions or were removed."""


Listener = Callable[[MapChanges], None]


class Map:
    """All placements, moves and members in memory."""

    def __init__(self, space: KeySpace) -> None:
        self._follower: ChangeFollower[MapChanges] = ChangeFollower(space, self._keys, self._take, PREFIXES)
        self._placements: dict[str, Placed] = {}
        self._siblings: dict[str, Counter[int]] = {}
        self.loads: Counter[int] = Counter()
        """Queues that each shard owns."""
        self.moves: dict[str, Move] = {}
        self.shard_records: dict[int, ShardRecord] = {}
        self.shards: dict[int, Member] = {}
        """Shards that are registered now."""
        self.replica_sets: dict[int, ReplicaSet] = {}
        self.followers: dict[tuple[int, str], Member] = {}
        """Processes of members of shards with replicas, owners among them, by shard and id of the member."""
        self.frontends: dict[int, Member] = {}
        self.gateways: dict[int, Member] = {}
        self.readers: dict[str, Reader] = {}
        """Readers of journals, by name."""
        self.history = ""
        """The entry of the present history; revisions of different histories must not be compared."""

    def listen(self, listener: Listener) -> None:
        """Registers `listener`, which is called with later changes."""
        self._follower.listen(listener)

    def refresh(self) -> None:
        """Applies the changes and calls the listeners. Raises CoordinatorError."""
        changes = MapChanges()
        self._follower.read(changes)
        if changes.placements or changes.moves or changes.shards or changes.members or changes.readers:
            self._follower.tell(changes)

    # --- questions -------------------------------------------------------------------------------------

    def placed(self, queue: str) -> Placed | None:
        """The placement of a queue, or None; ``NAME/$dlq`` has that of NAME."""
        return self._placements.get(names.owner(queue))

    def placements(self) -> dict[str, Placed]:
        """All placements by queue; do not change the result."""
        return self._placements

    def queues_of(self, shard: int) -> list[str]:
        """Queues that a shard owns."""
        return [queue for queue, placed in self._placements.items() if placed.shard == shard]

    def siblings(self, queue: str) -> Mapping[int, int]:
        """Numbers of queues directly below the same name, by their shard; empty for a name at the top."""
        return self._siblings.get(queue.rpartition("/")[0], {})

    # --- applying changes ------------------------------------------------------------------------------

    def _keys(self) -> Iterator[str]:
        yield from (PLACEMENT + queue for queue in self._placements)
        yield from (MOVES + queue for queue in self.moves)
        yield from (READERS + name for name in self.readers)
        if self.history:
            yield HISTORY
        yield from (f"{REPLICAS}{shard}" for shard in self.replica_sets)
        yield from (follower_key(*each) for each in self.followers)
        for prefix, table in self._tables():
            yield from (f"{prefix}{id}" for id in table)

    def _tables(self) -> tuple[tuple[str, dict[int, Any]], ...]:
        return (
            (SHARD_SETS, self.shard_records),
            (SHARDS, self.shards),
            (FRONTENDS, self.frontends),
            (GATEWAYS, self.gateways),
        )

    def _take(self, entry: Entry, changes: MapChanges) -> None:
        key, value, _, revision = entry
        if key.startswith(PLACEMENT):
            queue = key.removeprefix(PLACEMENT)
            placed = Placed.decode(entry) if value is not None else None
            before = self._placements.pop(queue, None)
            if before is not None:
                self._count(queue, before.shard, -1)
            if placed is not None:
                self._placements[queue] = placed
                self._count(queue, placed.shard, 1)
            changes.placements.add(queue)
            return
        if key.startswith(MOVES):
            queue = key.removeprefix(MOVES)
            if value is None:
                self.moves.pop(queue, None)
            else:
                self.moves[queue] = Move(queue=queue, revision=revision, **known(Move, value))
            changes.moves.add(queue)
            return
        if key.startswith(READERS):
            name = key.removeprefix(READERS)
            if value is not None:
                # For a new reader whose entry can't be read, all segments within the usual bounds are kept.
                self.readers.setdefault(name, Reader(revision=revision))
                self.readers[name] = Reader.decode(value, revision)
            else:
                self.readers.pop(name, None)
            changes.readers.add(name)
            return
        if key == HISTORY:
            self.history = value or ""
            return None
        if key.startswith((REPLICAS, FOLLOWERS)):
            return self._take_replicas(entry, changes)
        for prefix, table in self._tables():
            if key.startswith(prefix):
                id = int(key.removeprefix(prefix))
                if value is None:
                    table.pop(id, None)
                else:
                    table[id] = (
                        ShardRecord(id=id, revision=revision, **known(ShardRecord, value))
                        if prefix == SHARD_SETS
                        else Member(id=id, **known(Member, value))
                    )
                if prefix in (SHARD_SETS, SHARDS):
                    changes.shards.add(id)
                else:
                    changes.members = True
                return

    def _take_replicas(self, entry: Entry, changes: MapChanges) -> None:
        key, value = entry.key, entry.value
        if key.startswith(REPLICAS):
            shard = int(key.removeprefix(REPLICAS))
            if value is None:
                self.replica_sets.pop(shard, None)
            else:
                self.replica_sets[shard] = ReplicaSet.decode(entry)
        else:
            number, _, member = key.removeprefix(FOLLOWERS).partition("/")
            shard = int(number)
            if value is None:
                self.followers.pop((shard, member), None)
            else:
                self.followers[shard, member] = Member(id=shard, **known(Member, value))
        changes.shards.add(shard)

    def _count(self, queue: str, shard: int, queues: int) -> None:
        self.loads[shard] += queues
        parent = queue.rpartition("/")[0]
        if parent:
            family = self._siblings.get(parent)
            if family is None:
                family = self._siblings[parent] = Counter()
            family[shard] += queues
            if not family[shard]:
                del family[shard]
            if not family:
                del self._siblings[parent]
