"""Answers to what frontends and gateways send: to batches, settlements and requests.

`Answers` has the ones that wait until their records are on disk. The functions read the fields of a request's
JSON, or raise a RequestError with what is wrong with them, which becomes the answer.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lightrail.model import conditions
from lightrail.shard.effects.peers import NumberedLink, Peer
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.shard_queue import Queue, Waiter
from lightrail.wire.bodies import Refusal, encode_request
from lightrail.wire.frames import Kind, frame

if TYPE_CHECKING:
    from lightrail.shard.journal.store import Position
    from lightrail.shard.queues.queues import Queues
    from lightrail.shard.replication.stream import Stream

_Found = TypeVar("_Found")

NUMBER_MAX: Final = (1 << 63) - 1
"""The highest sequence and the highest delivery number."""

Fields = dict[str, Any]
Operation = Callable[[Peer, int, Fields, int], Fields | None]
"""(peer, number of the request, fields, now_ms): the answer, or None if it follows. Raises RequestError."""


class RequestError(Exception):
    """A failed request, with the error for its answer."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class Reply:
    """An answer that waits for a commit, like answers to producers."""

    __slots__ = ("_body", "_number", "_peer")

    def __init__(self, peer: Peer, number: int, fields: Fields) -> None:
        self._peer = peer
        self._number = number
        self._body = encode_request(fields)

    def accept(self, _: int) -> None:
        """See Waiter: all records of the request are on disk."""
        self._peer.out.append(frame(Kind.RESPONSE, number=self._number, body=self._body))


def demand(found: _Found | Refusal) -> _Found:
    """What was found. Raises RequestError instead of a refusal."""
    if isinstance(found, Refusal):
        raise RequestError(found.condition, found.description)
    return found


def name_of(fields: Fields) -> str:
    """The name of a queue in a request. Raises RequestError."""
    name = fields.get("queue")
    if not isinstance(name, str) or not name:
        raise RequestError(conditions.INVALID_FIELD, "queue is expected to be the name of a queue")
    return name


def named(queues: "Queues", fields: Fields) -> Queue:
    """The queue that a request names. Raises RequestError."""
    return demand(queues.for_request(name_of(fields)))


def whole(fields: Fields, name: str, low: int, high: int, default: int | None) -> int:
    """A whole number of a request, within bounds; required if there is no default. Raises RequestError."""
    found = fields.get(name, default)
    if type(found) is not int or not low <= found <= high:
        raise unexpected(name, found, f"a whole number from {low} to {high}")
    return found


def numbers(fields: Fields, name: str, most: int, what: str) -> list[int]:
    """A list of 1 to `most` sequences or delivery numbers of a request. Raises RequestError."""
    found = fields.get(name)
    if (
        not isinstance(found, list)
        or not 0 < len(found) <= most
        or not all(type(each) is int and 0 <= each <= NUMBER_MAX for each in found)
    ):
        raise unexpected(name, found, f"a list of 1 to {most} {what}")
    return found


def unexpected(name: str, found: object, expected: str) -> RequestError:
    """The error for a field of a request that has another value than `expected`."""
    return RequestError(conditions.INVALID_FIELD, f"{name} is {str(found)[:80]!a}; expected {expected}")


def check_waiting(waiting: int, most: int, what: str) -> None:
    """Raises RequestError if `most` requests are waiting for a thread."""
    if waiting >= most:
        raise RequestError(
            conditions.RESOURCE_LIMIT_EXCEEDED, f"{most} requests wait for {what} already; try again"
        )


def answer(peer: Peer, number: int, fields: Fields, blob: bytes = b"") -> None:
    """Answers a request of a peer that was not answered at once."""
    peer.out.append(frame(Kind.RESPONSE, number=number, body=encode_request(fields, blob)))


def error_of(error: RequestError) -> Fields:
    """The answer to a failed request."""
    return error_fields(error.condition, str(error))


def error_fields(condition: str, description: str) -> Fields:
    """The fields of an answer that is an error."""
    return {"error": {"condition": condition, "description": description}}


Waiters = list[tuple[Waiter, int]]
Refusals = list[tuple[NumberedLink, int, Refusal]]


class Unaccepted(NamedTuple):
    """Answers whose commit has ended here, and is not accepted."""

    lsn: int
    """Number of the record whose acceptance they wait for."""
    round: int
    """Number of the message whose answers they wait for, if that record was sent before their requests were
    applied: what an owner says of its state is only true if it has not been replaced meanwhile. 0: none."""
    waiters: Waiters
    refusals: Refusals


@dataclass(slots=True, eq=False, repr=False)
class Answers:
    """Answers to batches, settlements and requests whose records are not accepted yet."""

    _memory: Memory
    _position: "Position"
    rounds: "Stream | None" = None
    """To the other members of the shard, if it has any."""
    _unsynced: Waiters = field(default_factory=list)
    _committing: Waiters = field(default_factory=list)
    _refusals: Refusals = field(default_factory=list)
    """Refusals of batches that are partially in records that wait for a commit."""
    _refusals_committing: Refusals = field(default_factory=list)
    _unaccepted: deque[Unaccepted] = field(default_factory=deque)
    """Answers of ended commits, in their order; empty if the end of a commit is its acceptance."""
    is_committing: bool = False
    _begun_at: int = NUMBER_MAX
    """Number of the last record when the newest commit began."""
    _sent_before: int = NUMBER_MAX
    """Number of the last record that may have been sent to other members before this commit began."""
    failure: str | None = None
    """Why the state in memory can't be trusted, so that the process must end; None if it can."""

    def when_synced(self, waiter: Waiter, number: int) -> None:
        """Calls the waiter when all records so far are accepted; in this step if no record waits."""
        self._unsynced.append((waiter, number))

    def accept(self, producer: NumberedLink, number: int, durable: bool) -> None:
        """Accepts a batch: now, or with the commit that has its record.

        Above the memory mark transient batches also wait for a commit, which has the spilled messages, so
        that a disk that is slower than the senders slows them down.
        """
        memory = self._memory
        if durable or memory.resident + memory.flowing > memory.mark:
            self._unsynced.append((producer, number))
        else:
            producer.accept(number)

    def refuse(self, producer: NumberedLink, number: int, refusal: Refusal, durable: bool = False) -> None:
        """Refuses a batch: now, or with the commit that has the records of its stored messages."""
        if durable:
            self._refusals.append((producer, number, refusal))
            return
        producer.refuse(number, refusal)

    @property
    def is_awaited(self) -> bool:
        """Whether a producer waits for the gathered records, or the memory that they use is needed."""
        return bool(self._unsynced or self._refusals) or self._memory.above_mark

    @property
    def is_due(self) -> bool:
        """Whether an answer waits that the commit under way will not send."""
        return bool(self._unsynced or self._refusals) and self.failure is None

    def share(self, rounds: "Stream") -> None:
        """From now on the shard has other members, which may have all records so far."""
        self.rounds, self._begun_at = rounds, self._position.lsn

    def commit_begun(self) -> None:
        """Notes that a commit has begun with all records so far; their answers wait for it."""
        self.is_committing = True
        if self.rounds is not None:
            self._sent_before, self._begun_at = self._begun_at, self._position.lsn
        self._committing, self._unsynced = self._unsynced, []
        self._refusals_committing, self._refusals = self._refusals, []
        self._memory.commit_begun()

    def commit_ended(self) -> None:
        """Sends the answers of a commit that is on this disk, now or when its records are accepted."""
        self.is_committing = False
        self._memory.commit_ended()
        committing, self._committing = self._committing, []
        refusals, self._refusals_committing = self._refusals_committing, []
        if self._position.is_shared or self._unaccepted:
            # Also where no other member is required any longer: earlier answers leave first.
            self._wait(committing, refusals, is_new=self._position.synced_lsn > self._sent_before)
        elif committing or refusals:
            self._send(committing, refusals)

    def accepted(self) -> None:
        """Sends the answers whose records are accepted by now."""
        unaccepted = self._unaccepted
        while unaccepted and self._may_leave(unaccepted[0]):
            found = unaccepted.popleft()
            self._send(found.waiters, found.refusals)

    def _may_leave(self, found: Unaccepted) -> bool:
        if found.lsn >= self._position.accepted.next_lsn:
            return False
        return self.rounds is None or found.round <= self.rounds.heard

    def answer_requests(self) -> None:
        """Sends answers to requests, and to other shards that copy a queue from here."""
        others = [each for each in self._unsynced if not isinstance(each[0], NumberedLink)]
        if others:
            self._unsynced = [each for each in self._unsynced if isinstance(each[0], NumberedLink)]
            self._wait(others, [])

    def _wait(self, waiters: Waiters, refusals: Refusals, *, is_new: bool = False) -> None:
        """Keeps answers until they may leave.

        Args:
            is_new: the last record on this disk was sent to other members after all requests were applied.
        """
        if not (waiters or refusals):
            return
        # The acceptance of such a record is as good as a round (law 7 of ADR 73). That of an earlier one is
        # not: members may have acknowledged it, and then followed another owner, before the requests came.
        round = 0 if is_new or self.rounds is None else self.rounds.begin_round()
        self._unaccepted.append(Unaccepted(self._position.synced_lsn, round, waiters, refusals))
        self.accepted()

    def _send(self, waiters: Waiters, refusals: Refusals) -> None:
        if self._memory.is_stuck:
            # The batches are accepted, but their senders must not send more: they wait before all later ones.
            later = self._committing if self.is_committing else self._unsynced
            if self._unaccepted:
                later = self._unaccepted[0].waiters
            later[:0] = [each for each in waiters if isinstance(each[0], NumberedLink)]
            waiters = [each for each in waiters if not isinstance(each[0], NumberedLink)]
        for waiter, number in waiters:
            waiter.accept(number)
        for producer, number, refusal in refusals:
            producer.refuse(number, refusal)

    def fail(self, error: BaseException) -> None:
        """Stops all answers: after a failed write, only a restart finds out what is on disk.

        The same applies after an internal error that left a change applied in part.
        """
        if self.failure is None:
            self.failure = str(error)
        self._committing = []
        self._unsynced = []
        self._refusals = []
        self._refusals_committing = []
        self._unaccepted.clear()
