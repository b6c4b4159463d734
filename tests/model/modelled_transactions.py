"""The messages and transactions of a shard as a model has them, and what transactions do to them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol
from lightrail.model.attempts import DEFERRED, failures
from lightrail.shard.queue.timed.aside import NOBODY
from lightrail.shard.queue.timed.ended_links import NOBODY_WITH_ENDED_LINKS
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.scene import Scene, numbered_messages
from tests.unit.shard.transactions.test_transactions import post

LINK = 10
ATTEMPTS_MAX = 3
SOURCE, TARGET, DEAD = "a", "b", "a/$dlq"
MARK = "x-opt-seen"
MARKS = encode({Symbol(MARK): 1}).hex()
FAILED = (OutcomeCode.MODIFIED, {"delivery_failed": True})
DEFERS = 4
OUTCOMES: list[tuple[OutcomeCode, dict[str, Any]]] = [
    (OutcomeCode.ACCEPTED, {}),
    (OutcomeCode.REJECTED, {"condition": "app:bad"}),
    (OutcomeCode.RELEASED, {}),
    (OutcomeCode.MODIFIED, {"annotations": MARKS}),
    (OutcomeCode.MODIFIED, {"deferred": True}),
    FAILED,
]


@dataclass
class Message:
    queue: str
    attempts: int = 0
    is_marked: bool = False
    number: int | None = None
    """Of its delivery, where it is locked; its sequence, where it was deferred and is locked by a key."""
    key: str = ""
    until_ms: int = 0
    reserved: str = ""
    """The transaction that it is reserved for."""
    former: tuple[int, str] | None = None
    """Number and key before it was reserved, as long as its consumer may have it again."""
    is_deferred: bool = False


@dataclass
class Work:
    """What a transaction does."""

    posts: list[tuple[str, str]] = field(default_factory=list)
    """(name of a message, queue)."""
    settles: list[tuple[int, str, int]] = field(default_factory=list)
    """(delivery number, name of its message, which outcome)."""
    keys: dict[str, str] = field(default_factory=dict)
    """Of the locks of deferred messages, by name."""
    number: int = 0
    """Among those of the coordinator that were committed."""
    is_decision: bool = False
    """Of a transaction over several shards: that is written down always."""

    @property
    def is_remembered(self) -> bool:
        """Whether a commit writes its number, beside a queue that it changes.

        A decision is written always; without work it has no queue, and applied again it changes nothing.
        """
        return bool(self.posts or (self.is_decision and self.settles)) or any(
            OUTCOMES[which][0] != OutcomeCode.RELEASED and not (name in self.keys and which == DEFERS)
            for _, name, which in self.settles
        )


@dataclass
class State:
    """What the shard has, and remembers."""

    messages: dict[str, Message] = field(default_factory=dict)
    known: int = 0
    """The highest number of a transaction that was committed."""
    known_on_disk: int = 0
    prepared: dict[str, Work] = field(default_factory=dict)
    decided: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)

    def give(self, name: str, which: tuple[OutcomeCode, dict[str, Any]]) -> None:
        """A delivery gets an outcome."""
        message = self.messages[name]
        message.number, message.key, message.reserved, message.former = None, "", "", None
        code, detail = which
        if code == OutcomeCode.ACCEPTED:
            del self.messages[name]
            return
        message.is_marked |= "annotations" in detail
        message.attempts += bool(detail.get("delivery_failed"))
        message.is_deferred |= bool(detail.get("deferred"))
        if code == OutcomeCode.REJECTED or message.attempts >= ATTEMPTS_MAX:
            message.queue, message.is_deferred = DEAD, False

    def commit(self, work: Work) -> None:
        """A numbered transaction of this shard."""
        self.apply(work)
        self.known = work.number
        if work.is_remembered:
            self.known_on_disk = work.number

    def apply(self, work: Work) -> None:
        for name, queue in work.posts:
            self.messages[name] = Message(queue)
        for _, name, which in work.settles:
            self.give(name, OUTCOMES[which])

    def reserve(self, id: str, work: Work) -> None:
        self.prepared[id] = work
        for _, name, _ in work.settles:
            message = self.messages[name]
            assert message.number is not None
            message.former = message.number, message.key
            message.number, message.key, message.reserved = None, "", id

    def conclude(self, id: str, *, commits: bool, until_ms: int) -> None:
        """A decision by the frontend; without an effect, deliveries are their consumers' until that time."""
        work = self.prepared.pop(id, None)
        if work is None:
            return
        if commits:
            self.apply(work)
        else:
            for _, name, _ in work.settles:
                message = self.messages[name]
                if message.former is None:
                    self.give(name, FAILED)
                else:
                    message.number, message.key = message.former
                    message.reserved, message.former, message.until_ms = "", None, until_ms

    @property
    def set_aside(self) -> list[str]:
        """Names of deferred messages that are neither locked nor reserved."""
        return sorted(
            name
            for name, message in self.messages.items()
            if message.is_deferred and message.number is None and not message.reserved
        )

    def release(self) -> None:
        """The consumer is lost; locks of deferred messages are not those of a consumer."""
        for message in self.messages.values():
            if not message.key:
                message.number = None
            if message.former is not None and not message.former[1]:
                message.former = None

    def restart(self) -> None:
        """The shard is started again."""
        for message in self.messages.values():
            message.number, message.key, message.former = None, "", None
        self.known = self.known_on_disk

    def expire(self, now_ms: int) -> None:
        for name, message in list(self.messages.items()):
            if message.number is not None and message.until_ms <= now_ms:
                self.give(name, FAILED)

    def has(self, work: Work) -> bool:
        """Whether all deliveries that a transaction settles are locked yet."""
        return all(
            name in self.messages
            and (self.messages[name].number, self.messages[name].key) == (number, work.keys.get(name, ""))
            for number, name, _ in work.settles
        )


def used_by(works: Iterable[Work]) -> set[str]:
    """Names of messages that transactions settle."""
    return {name for work in works for _, name, _ in work.settles}


def free(state: State, works: Iterable[Work] = ()) -> list[tuple[int, str]]:
    """Locked messages that none of these transactions settles."""
    used = used_by(works)
    locked = [(each.number, name) for name, each in state.messages.items() if each.number is not None]
    return sorted(each for each in locked if each[1] not in used)


def expected(state: State) -> list[tuple[Any, ...]]:
    return sorted(
        (_shown(name, message) for name, message in state.messages.items()), key=lambda each: each[0]
    )


def _shown(name: str, message: Message) -> tuple[Any, ...]:
    attempts = message.attempts if message.queue == SOURCE else 0
    state = (message.number, bool(message.reserved), message.is_deferred)
    return name, message.queue, attempts, message.is_marked, *state


def found(scene: Scene) -> list[tuple[Any, ...]]:
    """(name, queue, attempts, is marked, number or None, is reserved, is deferred) of each message."""
    found: list[tuple[Any, ...]] = []
    for queue in filter(scene.has_queue, (SOURCE, TARGET, DEAD)):
        for consumer, number, attempts, message in scene.everything(queue):
            mark = MARK.encode() in message
            is_deferred = bool(attempts & DEFERRED)
            attempts = failures(attempts) if queue == SOURCE else 0
            is_reserved = consumer is not None and consumer < NOBODY_WITH_ENDED_LINKS
            locked = None if consumer is None or consumer < 0 else number
            found.append((name_of(message), queue, attempts, mark, locked, is_reserved, is_deferred))
    return sorted(found, key=lambda each: each[0])


def sequences_of(scene: Scene) -> dict[str, int]:
    """The sequences of deferred messages that are neither locked nor reserved, by name."""
    return {
        name_of(message): number
        for consumer, number, _, message in scene.everything(SOURCE)
        if consumer == NOBODY
    }


def request_of(work: Work) -> tuple[dict[str, Any], bytes]:
    """The fields and the blob of a request that has the work of a transaction."""
    posts = [post(queue, messages=numbered_messages(1, int(name[1:]))) for name, queue in work.posts]
    settles: list[list[Any]] = []
    for number, name, which in work.settles:
        key = [work.keys[name]] if name in work.keys else []
        code, detail = OUTCOMES[which]
        settles.append([SOURCE, 0 if key else LINK, number, 1, int(code), detail, *key])
    return {"posts": [each for each, _ in posts], "settles": settles}, b"".join(part for _, part in posts)


def remembered(state: State) -> tuple[int, set[str], set[str]]:
    """The number of the last transaction on disk; those that are prepared; those that others may ask for."""
    return state.known_on_disk, set(state.prepared), state.decided


def name_of(message: bytes) -> str:
    # The body is at the end; the bytes of a time before it may look like a name.
    found: list[bytes] = re.findall(rb"m\d+", message)
    return found[-1].decode()
