"""Requests of frontends and gateways to a shard: figures, peeking, purging.

Every operation is drawn in docs/formats/wire.md. An operation that changes a queue is answered when its
commit is on disk, like a batch; one that reads from disk is answered when the reader thread has finished.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import (
    NUMBER_MAX,
    Fields,
    Operation,
    Reply,
    RequestError,
    answer,
    check_waiting,
    error_fields,
    error_of,
    name_of,
    named,
    numbers,
    whole,
)
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.links.idle import USES
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.shard.requests.peeking import delete, peek
from lightrail.wire.bodies import decode_request
from lightrail.wire.frames import HEADER_SIZE, Part, WireError

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

KEPT_SHOWN_MAX: Final[int] = 100
"""Queues stored and not served whose names a shard reports; the others are counted."""
PEEK_MESSAGES_MAX: Final[int] = 1_000
PEEK_BYTES_DEFAULT: Final[int] = 1024 * 1024
DELETED_AT_ONCE_MAX: Final[int] = 4_000
"""Messages that one request deletes, as in Azure Service Bus."""
CONSUMERS_SHOWN_MAX: Final[int] = 1_000
"""Consumers in the figures of one queue."""
COLUMNS: Final = (
    "ready",
    "delayed",
    "deferred",
    "in_flight",
    "bytes",
    "resident",
    "consumers",
    "arrived",
    "delivered",
    "left",
)
"""Fields of a queue in the answer to `queues`."""


class Requests:
    """Answers the requests of all peers.

    Args:
        wait: registers a waiter that is called when all records so far are on disk.
    """

    __slots__ = ("_links", "_operations", "_peeks", "_performer", "_queues", "_wait")

    def __init__(self, queues: Queues, performer: Performer, links: "Links", wait: CallWhenSynced) -> None:
        self._queues = queues
        self._performer = performer
        self._links = links
        self._wait = wait
        self._peeks = 0
        """Number of peeks that wait for the disk."""
        self._operations: dict[str, Operation] = {
            "queue": self._queue,
            "queues": self._many,
            "kept": self._kept,
            "peek": self._peek,
            "purge": self._purge,
            "cancel": self._cancel,
            "delete": self._delete,
            "retire": self._retire,
        }

    def add(self, operations: Mapping[str, Operation]) -> None:
        """Adds operations that other objects answer."""
        self._operations.update(operations)

    def receive(self, peer: Peer, number: int, part: Part, now_ms: int, failed: str | None) -> None:
        """Answers one REQUEST, now or later; with an error if the store has `failed`.

        Its blob, if it has one, is the field "blob". Raises StoreBusyError if nothing has changed, and it has
        to be received again. After any other error the caller finds out whether the state can be trusted, and
        if so, answers with `fail`.
        """
        try:
            if failed is not None:
                raise RequestError(
                    conditions.INTERNAL_ERROR, f"the store failed, the shard starts again: {failed}"
                )
            fields, blob = decode_request(memoryview(part)[HEADER_SIZE:])
            if blob:
                fields["blob"] = blob
            operation = self._operations.get(str(fields.get("op")))
            if operation is None:
                known = ", ".join(sorted(self._operations))
                raise RequestError(
                    conditions.NOT_IMPLEMENTED,
                    f"the operation {str(fields.get('op'))[:80]!a} is not known; there are {known}",
                )
            if fields["op"] in USES:
                self._links.idle.requested(name_of(fields), now_ms)
            found = operation(peer, number, fields, now_ms)
        except WireError as error:
            found = error_fields(conditions.DECODE_ERROR, str(error))
        except RequestError as error:
            found = error_of(error)
        if found is None:
            return
        if self._performer.held_turns.position.is_shared:
            # An owner that was replaced and does not know it answers from a state that is no longer true.
            self._wait(Reply(peer, number, found), 0)
        else:
            answer(peer, number, found)

    def fail(self, peer: Peer, number: int) -> None:
        """Answers a request that caused an internal error."""
        answer(peer, number, error_fields(conditions.INTERNAL_ERROR, "internal error; see the shard's log"))

    # --- figures ---------------------------------------------------------------------------------------

    def _queue(self, peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """All figures of one queue.

        With `closes_without`, a list of `links` and `messages`, and `revision`, the caller deletes the node
        of the queue at that revision if it has none of these: then the queue is closed, see closings.py.
        """
        queue = named(self._queues, fields)
        view = queue.view
        gauges = view.gauges
        closes_without = fields.get("closes_without")
        if closes_without and not self._has(queue, closes_without):
            opened = self._queues.get(queue.name, now_ms)
            if opened is None:
                raise RequestError(
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    f"this shard has no room for {queue.name}, to close it",
                )
            queue = opened
            self._links.closings.close(
                queue, now_ms, peer, fields.get("revision"), to_messages="messages" in closes_without
            )
        consumers: list[Fields] = []
        for each in view.attached:
            if len(consumers) == CONSUMERS_SHOWN_MAX:
                break
            found = self._performer.links.get(each.id)
            link = None if found is None else found.consumer
            consumers.append(
                {
                    "label": "" if found is None else found.opened.label,
                    "frontend": "" if link is None else link.peer.frontend,
                    "since_ms": 0 if link is None else link.since_ms,
                    "credit": each.limit - each.next,
                    "held": sum(run.count for run in each.in_flight.runs[each.in_flight.head :]),
                    "browse": each.options.browse,
                    "exclusive": each.options.exclusive,
                    "priority": each.options.priority,
                }
            )
        return {
            "queue": queue.name,
            "ready": gauges.ready,
            "delayed": gauges.delayed,
            "deferred": gauges.deferred,
            "in_flight": gauges.in_flight,
            "parked": queue.parked_count,
            "promised": queue.promised_messages,
            "bytes": gauges.bytes,
            "resident": gauges.resident_bytes,
            "captured": queue.captured,
            "delays": view.policy.delay,
            "next_sequence": view.next_sequence,
            "counters": asdict(view.counters),
            "consumer_count": gauges.consumers,
            "producer_count": self._links.sending.count(queue),
            "consumers": consumers,
        }

    def _retire(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Lets a queue without messages leave; the caller deletes its name at this revision, or keeps it."""
        revision = whole(fields, "revision", 1, NUMBER_MAX, None)
        found = named(self._queues, fields)
        queue = self._queues.get(found.name, now_ms)
        if queue is None or not self._links.retiring.retire_empty(queue, revision, now_ms):
            return {"retired": False}
        self._wait(Reply(peer, number, {"retired": True}), 0)
        return None

    def _has(self, queue: Queue, what: Sequence[str]) -> bool:
        """Whether a queue has links, or messages, if they are listed."""
        gauges = queue.view.gauges
        links = gauges.consumers + self._links.sending.count(queue)
        messages = gauges.ready + gauges.delayed + gauges.deferred + gauges.in_flight
        messages += queue.parked_count + queue.promised_messages
        return bool(links and "links" in what) or bool(messages and "messages" in what)

    def _many(self, _peer: Peer, _number: int, fields: Fields, _now_ms: int) -> Fields:
        """Figures of many queues: those of a list, or all of them in pages."""
        wanted = fields.get("names")
        if wanted is not None:
            if not isinstance(wanted, list) or len(wanted) > limits.QUEUES_SHOWN_MAX:
                raise RequestError(
                    conditions.INVALID_FIELD,
                    f"names is expected to be a list of at most {limits.QUEUES_SHOWN_MAX} names",
                )
            found = [self._queues.find(name) for name in wanted if isinstance(name, str)]
            return _brief([queue for queue in found if queue is not None and queue.is_serving], None)
        after = fields.get("after", "")
        if not isinstance(after, str):
            raise RequestError(
                conditions.INVALID_FIELD, "after is expected to be the last name of the page before"
            )
        limit = whole(fields, "limit", 1, limits.QUEUES_SHOWN_MAX, limits.QUEUES_SHOWN_MAX)
        later = (queue for queue in self._queues if queue.is_serving and queue.name > after)
        page = nsmallest(limit + 1, later, key=lambda queue: queue.name)
        return _brief(page[:limit], page[limit - 1].name if len(page) > limit else None)

    def _kept(self, _peer: Peer, _number: int, _fields: Fields, _now_ms: int) -> Fields:
        """The number of queues that are kept and not served, and some of them."""
        found = self._queues.kept()
        shown = nsmallest(KEPT_SHOWN_MAX, found, key=lambda queue: queue.name)
        return {
            "count": len(found),
            "queues": [{"queue": each.name, "messages": each.view.held} for each in shown],
        }

    # --- messages --------------------------------------------------------------------------------------

    def _peek(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> Fields | None:
        """Messages without locking them."""
        queue = named(self._queues, fields)
        start = whole(fields, "from", 0, NUMBER_MAX, 0)
        count = whole(fields, "count", 1, PEEK_MESSAGES_MAX, 100)
        size = whole(fields, "bytes", 1, limits.PEEK_BYTES_MAX, PEEK_BYTES_DEFAULT)
        check_waiting(self._peeks, limits.PEEKS_MAX, "messages from disk")
        self._peeks += 1

        def seen(found: Fields, blob: bytes) -> None:
            self._peeks -= 1
            answer(peer, number, found, blob)

        peek(queue, self._performer, start, count, size, seen)
        return None

    def _purge(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Removes all messages but those in flight."""
        queue = named(self._queues, fields)
        before = queue.view.counters.purged
        self._performer.apply(queue, commands.Purge(), now_ms)
        reply = Reply(peer, number, {"purged": queue.view.counters.purged - before})
        self._performer.leaving.when_left(queue, lambda: self._wait(reply, 0))

    def _cancel(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Removes delayed messages before their time; skips messages that are not, or no longer, delayed.

        All stay if one of them is cancelled by a prepared transaction, whose commit has to find it.
        """
        queue = named(self._queues, fields)
        sequences = numbers(fields, "sequences", PEEK_MESSAGES_MAX, "sequences")
        withheld = next((each for each in sequences if queue.view.is_withheld(each)), None)
        if withheld is not None:
            raise RequestError(
                conditions.RESOURCE_LOCKED,
                f"a transaction that waits for its decision cancels message {withheld} of {queue.name}; "
                "nothing was cancelled, try again after the decision",
            )
        before = queue.view.counters.cancelled
        for sequence in sequences:
            self._performer.apply(queue, commands.Cancel(sequence), now_ms)
        self._wait(Reply(peer, number, {"cancelled": queue.view.counters.cancelled - before}), 0)

    def _delete(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> None:
        """Removes the first ready messages that were enqueued before a time."""
        queue = named(self._queues, fields)
        count = whole(fields, "count", 1, DELETED_AT_ONCE_MAX, DELETED_AT_ONCE_MAX)
        before_ms = whole(fields, "before_ms", 0, NUMBER_MAX, NUMBER_MAX)
        check_waiting(self._peeks, limits.PEEKS_MAX, "messages from disk")
        self._peeks += 1

        def done(deleted: int) -> None:
            self._peeks -= 1
            self._wait(Reply(peer, number, {"deleted": deleted}), 0)

        delete(queue, self._performer, count, before_ms, done)

    # --- helpers ---------------------------------------------------------------------------------------


def _brief(queues: list[Queue], next_: str | None) -> Fields:
    rows = {}
    for queue in queues:
        gauges, counters = queue.view.gauges, queue.view.counters
        rows[queue.name] = [
            gauges.ready,
            gauges.delayed,
            gauges.deferred,
            gauges.in_flight,
            gauges.bytes,
            gauges.resident_bytes,
            gauges.consumers,
            counters.arrived,
            counters.delivered,
            counters.left,
        ]
    return {"columns": COLUMNS, "queues": rows, "next": next_}
