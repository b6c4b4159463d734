"""Topic uses: until when each topic with max_idle is in use, as all processes know it.

A topic has no shard that sees all its uses. Its entry `uses/TOPIC` says until when it is in use. A process
routes messages of a topic while the time of the entry is not over, and writes a later one before it routes
the next message after that. So a message after a pause waits for one write, a topic that is always in use is
written about once a minute by all processes together, and a deletion that is guarded by the revision of this
entry fails if somebody has used the topic since the decision. Changes of its subscriptions are uses, too.

Nothing is done per message: plans of such topics are put aside every USE_LOOK_MS, and the use of one that is
put aside is what `UseNotes` notes.

While the coordinator can't be written, messages are routed, and their use is written later.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from lightrail.cluster.changes import ChangeFollower
from lightrail.cluster.coordinator import ConflictError, CoordinatorError, KeySpace, Write, unchanged
from lightrail.cluster.entries import Entry
from lightrail.model.policy import Policy, Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES, Name

USES: Final = "uses/"
USE_MS: Final[int] = 60_000
"""How long an entry says that a topic is used: so much later than its last use begins its time. For a
max_idle of hours and days a hundredth of that, since fewer entries are written then."""
USE_MS_MAX: Final[int] = 3_600_000
USE_LOOK_MS: Final[int] = 20_000
"""How often a process looks which topics it has used."""
USES_OF_A_WRITE_MAX: Final[int] = 40
"""Topics whose use is written in one transaction."""
_ATTEMPTS: Final = 5

log = logging.getLogger("lightrail.namespace.topic_uses")


class TopicUse(NamedTuple):
    """What all processes know of the use of a topic; times are milliseconds since 1970."""

    until_ms: int = 0
    asked_ms: int = 0
    """When a gateway asked for uses of which it does not know, before it deletes the topic; 0 for never."""
    revision: int = 0
    """Of the entry; 0 without one."""

    def encode(self) -> str:
        value = {"until_ms": self.until_ms}
        return json.dumps(value | {"asked_ms": self.asked_ms} if self.asked_ms else value)


NO_USE: Final = TopicUse()


def idle_s(record: Name) -> float | None:
    """Seconds without use after which a topic is deleted; None for never, and for other names."""
    return record.policy["max_idle"] if record.role is Role.ROUTER else None


def covered_ms(policy: Policy) -> int:
    """For how long an entry says that a topic of this policy is used."""
    max_ms = policy.milliseconds("max_idle") or 0
    return min(max(USE_MS, max_ms // 100), USE_MS_MAX)


def use_write(record: Name, now_ms: int) -> list[Write]:
    """The write that notes a use of a name at this time: none for a name that no use keeps."""
    if idle_s(record) is None:
        return []
    return [Write(USES + record.name, TopicUse(now_ms + covered_ms(record.policy)).encode())]


class TopicUses:
    """The entries of all topics, as of the last refresh."""

    def __init__(self, space: KeySpace, directory: Directory) -> None:
        self._space = space
        self._directory = directory
        self._by_topic: dict[str, TopicUse] = {}
        self._follower: ChangeFollower[None] = ChangeFollower(space, self._keys, self._take, (USES,))

    def _keys(self) -> Iterator[str]:
        return (USES + topic for topic in self._by_topic)

    def _take(self, entry: Entry, _: None) -> None:
        topic = entry.key.removeprefix(USES)
        if entry.value is None:
            self._by_topic.pop(topic, None)
            return
        value = json.loads(entry.value)
        self._by_topic[topic] = TopicUse(
            int(value["until_ms"]), int(value.get("asked_ms", 0)), entry.revision
        )

    def refresh(self) -> None:
        """Applies changes. Raises CoordinatorError."""
        self._follower.read(None)

    def of(self, topic: str) -> TopicUse:
        """The use of a topic; NO_USE without an entry."""
        return self._by_topic.get(topic, NO_USE)

    def topics(self) -> list[str]:
        """The names with an entry."""
        return list(self._by_topic)

    def is_noted(self, topic: str, now_ms: int) -> bool:
        """Whether a name may be used at this time without a write."""
        return idle_s(self._directory.get(topic)) is None or now_ms < self.of(topic).until_ms

    async def note(self, topics: Iterable[str], now_ms: int) -> None:
        """Writes that topics are used, at most USES_OF_A_WRITE_MAX; those that are deleted are left out.

        Raises CoordinatorError: it is not known whether their uses are written.
        """
        for _ in range(_ATTEMPTS):
            self._directory.refresh()
            writes: list[Write] = []
            for record in map(self._directory.get, topics):
                if found := use_write(record, now_ms):
                    writes += [*found, unchanged(NAMES + record.name, record.revision)]
            if not writes:
                return
            try:
                revision = await self._space.write(writes)
            except ConflictError:
                continue
            self.refresh()
            for write in writes:
                topic = write.key.removeprefix(USES)
                if not write.is_check and self.of(topic).revision < revision:
                    # The coordinator can't be followed at present: who waits for the write would repeat it.
                    self._take(Entry(write.key, write.value, 0, revision), None)
            return
        raise CoordinatorError("topics were changed while their use was written; this is tried again")


class RoutingSender(Protocol):
    """A sender with batches that wait."""

    def route_waiting(self) -> None:
        """Tries the waiting batches again."""


@dataclass(slots=True, eq=False, repr=False)
class UseNotes:
    """The notes of one process: which topics it uses, and what it has to write of that."""

    uses: TopicUses
    _now_ms: Callable[[], int]
    _spawn: Callable[[Coroutine[Any, Any, None]], object]
    _later: Callable[[int, Callable[[], None]], object]
    rest: Callable[[], set[str]] = field(init=False)
    """Puts the plans of topics aside, and returns the topics that they used; set by Routing."""
    _pending: dict[str, None] = field(default_factory=dict)
    """Topics to write."""
    _unwritten: dict[str, None] = field(default_factory=dict)
    """Used topics whose use could not be written."""
    is_writing: bool = False
    _is_looking: bool = False
    _senders: dict[RoutingSender, None] = field(default_factory=dict)
    _futures: list[asyncio.Future[None]] = field(default_factory=list)

    def admits(self, topics: Iterable[str], now_ms: int) -> bool:
        """Whether messages may pass these routers now; if not, their use is being written: wait for that."""
        missing = [each for each in topics if not self._is_noted(each, now_ms)]
        if missing:
            self._refresh()
            missing = [each for each in missing if not self._is_noted(each, now_ms)]
        if missing:
            self._write(missing)
        return not missing

    def _refresh(self) -> None:
        try:
            self.uses.refresh()
        except CoordinatorError as error:
            log.info("the uses of topics can't be read: %s", error)

    def _is_noted(self, topic: str, now_ms: int) -> bool:
        return topic in self._unwritten or self.uses.is_noted(topic, now_ms)

    def begin(self) -> None:
        """A plan of such a topic is used from now on."""
        if not self._is_looking:
            self._is_looking = True
            self._later(USE_LOOK_MS, self._look)

    def wait(self, sender: RoutingSender) -> None:
        """Calls the sender when what is being written is written, or can't be."""
        self._senders[sender] = None

    async def written(self) -> None:
        """Waits as `wait` does."""
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(waits)
        await waits

    def _look(self) -> None:
        """Writes in advance what is used all the time, and again what could not be written."""
        self._is_looking = False
        used, now_ms = self.rest(), self._now_ms()
        self._refresh()
        due = [each for each in used if not self.uses.is_noted(each, now_ms + USE_MS // 2)]
        due += self._unwritten
        if due:
            self._write(due)
        if used or self._unwritten:
            self.begin()

    def _write(self, topics: Iterable[str]) -> None:
        self._pending.update(dict.fromkeys(topics))
        if not self.is_writing:
            self.is_writing = True
            self._spawn(self._write_pending())

    async def _write_pending(self) -> None:
        try:
            while self._pending:
                topics = list(self._pending)[:USES_OF_A_WRITE_MAX]
                try:
                    await self.uses.note(topics, self._now_ms())
                except CoordinatorError as error:
                    log.warning("that %s is used could not be written yet: %s", ", ".join(topics), error)
                    self._unwritten.update(dict.fromkeys(topics))
                    self.begin()
                else:
                    for topic in topics:
                        self._unwritten.pop(topic, None)
                for topic in topics:
                    del self._pending[topic]
        finally:
            self.is_writing = False
            senders, self._senders = self._senders, {}
            futures, self._futures = self._futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)
            for sender in senders:
                self._later(0, sender.route_waiting)
