"""The map of the cluster in the hands of a test: what it says is news with the next refresh."""

from collections.abc import Callable

from lightrail.cluster.map import MapChanges, Move, Placed
from lightrail.model import names


class FakeMap:
    """See `lightrail.shard.queues.tenancy.ClusterMap`."""

    __test__ = False

    def __init__(self, shard: int = 0, **placed: tuple[int, int]) -> None:
        self.shard = shard
        self.moves: dict[str, Move] = {}
        self._placed: dict[str, Placed] = {}
        self._told: dict[str, Placed | None] = {}
        self._listeners: list[Callable[[MapChanges], None]] = []
        self._revision = 1
        for name, (at, epoch) in placed.items():
            self._placed[name] = Placed(at, epoch, 1)

    def give(self, name: str, shard: int, epoch: int) -> None:
        self._revision += 1
        self._told[name] = Placed(shard, epoch, self._revision)

    def lose(self, name: str, shard: int, epoch: int) -> None:
        """An operator gave up what was there before that epoch."""
        self._revision += 1
        self._told[name] = Placed(shard, epoch, self._revision, epoch)

    def forget(self, name: str) -> None:
        self._told[name] = None

    def refresh(self) -> None:
        told, self._told = self._told, {}
        for name, placed in told.items():
            if placed is None:
                self._placed.pop(name, None)
            else:
                self._placed[name] = placed
        if told:
            for listener in self._listeners:
                listener(MapChanges(placements=set(told)))

    def placed(self, queue: str) -> Placed | None:
        return self._placed.get(names.owner(queue))

    def queues_of(self, shard: int) -> list[str]:
        return [name for name, placed in self._placed.items() if placed.shard == shard]

    def listen(self, listener: Callable[[MapChanges], None]) -> None:
        self._listeners.append(listener)
