"""Work: the work of a transaction at one shard, from the body of the request `transact`.

Messages whose outcome in a transaction needs their bytes are read from disk first (`Loading`). A dead letter
is a copy of its message with the reason, and annotations are merged into the message. Outside of transactions
such an outcome is deferred until the message is read (`memory/deferred.py`); in a transaction its records are
in one group with all others, so the message is read first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.model import conditions, limits
from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.answers import Fields, RequestError, unexpected, whole
from lightrail.shard.effects.receiving_link import outcome_of
from lightrail.shard.queue.memory.disk import gaps_of, pieces_of
from lightrail.shard.queue.values.commands import Outcome
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode

if TYPE_CHECKING:
    from lightrail.shard.effects.performer import Performer

ID_BYTES: Final = 16
_U64: Final = (1 << 64) - 1


class Post(NamedTuple):
    """A batch for some queues of the shard."""

    queues: list[str]
    batch: Batch
    sequence: int | None = None
    """Of the first message, if the queue has given the messages their numbers before (`reserve_numbers`)."""


class Cancellation(NamedTuple):
    """Delayed messages that leave their queue before their time."""

    queue: str
    first: int
    last: int
    """Sequences from `first` to before `last`, all of which are delayed."""


CANCELLED: Final = "cancelled"
"""In the place of the outcome in the settlements of a request. Shards of former versions refuse it."""


class Retirement(NamedTuple):
    """Deliveries of one consumer that get an outcome, or one deferred message that is locked."""

    queue: str
    link: int
    """Number of the consumer's link at the requesting frontend; not used with a `key`."""
    first: int
    last: int
    """The delivery number after the last one; for a deferred message, the sequence after its own."""
    outcome: Outcome
    key: str = ""
    """Of the lock under which a client has received the deferred message by its sequence."""


class TransactionWork(NamedTuple):
    """All work of a transaction at this shard."""

    id: bytes
    """Id of a transaction over several shards; empty for a transaction at this shard alone."""
    others: list[int]
    """If this shard decides a transaction over several shards: the shards that have prepared it."""

    producer: int
    """Boot of the frontend << 32 | link of the coordinator; stored like producers of batches."""
    number: int
    """Number of the transaction among the committed ones of its producer; it rises."""
    posts: list[Post]
    retirements: list[Retirement]
    cancellations: list[Cancellation]


def work_of(fields: Fields, now_ms: int) -> TransactionWork:
    """The work in the fields of a request. Raises RequestError."""
    blob = fields.get("blob", b"")
    try:
        posts = list(posts_of(fields["posts"], memoryview(blob), now_ms))
        settles = fields["settles"]
        retirements = [_retirement(*each) for each in settles if each[4] != CANCELLED]
        cancellations = [_cancellation(*each) for each in settles if each[4] == CANCELLED]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RequestError(
            conditions.INVALID_FIELD, f"expected the posts and settles of a transaction: {error!r:.200}"
        ) from error
    if sum(post.batch.count for post in posts) > limits.TRANSACTION_MESSAGES_MAX:
        raise RequestError(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"a transaction sends at most {limits.TRANSACTION_MESSAGES_MAX} messages",
        )
    return TransactionWork(
        id_of(fields) if "id" in fields else b"",
        [shard for shard in fields.get("others", ()) if type(shard) is int],
        whole(fields, "producer", 1, _U64, None),
        whole(fields, "number", 1, _U64, None),
        posts,
        retirements,
        cancellations,
    )


def id_of(fields: Fields) -> bytes:
    """The id of a transaction over several shards: 32 hexadecimal digits. Raises RequestError."""
    found = fields.get("id")
    try:
        id = bytes.fromhex(found) if isinstance(found, str) else b""
    except ValueError:
        id = b""
    if len(id) != ID_BYTES:
        raise unexpected("id", found, "32 hexadecimal digits")
    return id


def posts_of(found: Any, blob: memoryview, now_ms: int) -> Iterator[Post]:
    """The posts; for each post the blob has the ends of its messages, u32 each, and then the messages."""
    at = 0
    for queues, durable, priority, expires_at_ms, message_format, count, size, *numbered in found:
        sequence = _sequence(numbered, queues)
        if not (type(queues) is list and queues and all(type(each) is str for each in queues)):
            raise ValueError(f"queues are {queues!r:.80}, not names")
        base = at + 4 * count
        if count <= 0 or size < 0 or base + size > len(blob):
            raise ValueError(f"{count} messages of {size} bytes do not fit into {len(blob) - at} bytes")
        ends = blob[at:base].cast("I")
        if ends[count - 1] != size or any(one > other for one, other in pairwise(ends)):
            raise ValueError("the ends of messages do not rise up to their size")
        part, first = blob, base
        if 2 * (base + size - at) < len(blob):
            # Other messages of the transaction may leave long before these, which may be delayed for days.
            part, first = memoryview(bytes(blob[at : base + size])), 4 * count
        batch = Batch(
            part,
            part[first - 4 * count : first].cast("I"),
            count,
            size,
            first,
            bool(durable),
            priority,
            expires_at_ms or None,
            now_ms,
            None,
            message_format,
        )
        yield Post(queues, batch, sequence)
        at = base + size


def _sequence(numbered: list[Any], queues: list[str]) -> int | None:
    """The number of the first message of a post, if the post has one. Raises ValueError."""
    if not numbered:
        return None
    if len(numbered) > 1 or type(numbered[0]) is not int or not 0 <= numbered[0] < 1 << 62 or len(queues) > 1:
        raise ValueError(f"expected one queue and the number of its first message, found {numbered!r:.80}")
    return numbered[0]


def _cancellation(queue: str, link: int, first: int, count: int, _code: str, _detail: Any) -> Cancellation:
    if type(first) is not int or type(count) is not int or link or first < 0 or count <= 0:
        raise ValueError(f"{count!r:.40} messages from {first!r:.40} on are cancelled")
    return Cancellation(queue, first, first + count)


def _retirement(
    queue: str, link: int, first: int, count: int, code: int, detail: Any, key: str = ""
) -> Retirement:
    if count <= 0:
        raise ValueError(f"{count} deliveries are settled")
    if not isinstance(key, str):
        raise TypeError(f"the key of a lock is {key!r:.80}, not a text")
    outcome = outcome_of(OutcomeCode(code), SettleDetail(**detail))
    return Retirement(queue, link, first, first + count, outcome, key)


@dataclass(slots=True, eq=False, repr=False)
class Loaded:
    """Messages that were read, by queue and sequence."""

    _runs: dict[Queue, list[Run]] = field(default_factory=dict)

    def add(self, queue: Queue, runs: Sequence[Run]) -> None:
        """Adds messages of a queue that no earlier call has added."""
        found = self._runs.setdefault(queue, [])
        found += runs
        found.sort(key=lambda run: run.sequence)

    def of(self, queue: Queue, run: Run) -> list[Run] | None:
        """The messages of a run that is only on disk; None if some of them were not read."""
        pieces = pieces_of(self._runs.get(queue, ()), run)
        return None if gaps_of(pieces, run) else pieces


@dataclass(slots=True, eq=False, repr=False)
class Loading:
    """Requests reads of messages by the reader thread."""

    _performer: "Performer"

    def begin(self, wanted: Sequence[tuple[Queue, Run]], then: Callable[[Loaded], None]) -> None:
        """Reads runs that are only on disk; `then` is called once, even if some could not be read."""
        loaded = Loaded()
        left = len(wanted)

        def read(queue: Queue, ended: Read) -> None:
            nonlocal left
            left -= 1
            loaded.add(queue, ended.runs)
            if not left:
                then(loaded)

        for queue, run in wanted:
            self._performer.read(queue, run, lambda ended, queue=queue: read(queue, ended))  # type: ignore[misc]
