"""Requests to a shard about locked messages: settles and renews them by their locks or their deliveries.

Every operation is drawn in docs/formats/wire.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
    named,
    numbers,
    unexpected,
    whole,
)
from lightrail.shard.effects.peers import Consumer, Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.effects import LockAnswer, LockedDeferred, Renewed, SettledDeliveries
from lightrail.shard.queue.values.policy import disabled_text
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.shard.requests.peeking import recall

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

DEFERRED_LOCK_MS: Final[int] = 60_000
"""How long a deferred message is locked for who asks for it, where the queue has no lock_duration: no link
would end the lock of a client that has died."""
DEFERRED_RECEIVED_MAX: Final[int] = 500
"""Deferred messages that one request receives."""


@dataclass(slots=True, eq=False, repr=False)
class LockRequests:
    """Answers the requests about locks of all peers.

    Args:
        wait: registers a waiter that is called when all records so far are on disk.
    """

    _queues: Queues
    _performer: Performer
    _links: "Links"
    _wait: CallWhenSynced
    _receiving: int = 0
    """Number of requests for deferred messages that wait for the disk."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The operations for `Requests.add`."""
        return {
            "are_locked": self._are_locked,
            "receive_deferred": self._receive_deferred,
            "renew": self._renew,
            "renew_locks": self._renew_locks,
            "renew_deliveries": self._renew_deliveries,
            "return_unsent": self._return_unsent,
            "settle": self._settle,
            "settle_locks": self._settle_locks,
            "settle_deliveries": self._settle_deliveries,
        }

    # --- by the key of a lock --------------------------------------------------------------------------

    def _settle(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Settles a locked message by its key, from any gateway; answered when that is on disk."""
        queue = named(self._queues, fields)
        outcome = _outcome(fields)
        command = commands.SettleLocked(
            *_lock(fields), outcome, whole(fields, "sequence", 0, NUMBER_MAX, None)
        )
        deferred = queue.view.deferred_number
        answer = self._ask(queue, command, now_ms)
        self._answer_on_disk(queue, Reply(peer, number, {"found": answer.found}), deferred)

    def _renew(self, _peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """Renews the lock of a message: its full time begins again."""
        queue = named(self._queues, fields)
        command = commands.RenewLock(*_lock(fields), whole(fields, "sequence", 0, NUMBER_MAX, None))
        answer = self._ask(queue, command, now_ms)
        return {"found": answer.found, "locked_until_ms": answer.until_ms}

    def _settle_locks(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Settles messages by their locks, whatever became of their links; answered when that is on disk."""
        queue = named(self._queues, fields)
        outcome = _outcome(fields)
        locks = _locks(fields)
        deferred = queue.view.deferred_number
        found = [self._ask(queue, commands.SettleLocked(*lock, outcome), now_ms).found for lock in locks]
        self._answer_on_disk(queue, Reply(peer, number, {"found": found}), deferred)

    def _are_locked(self, _peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """Whether messages are locked now, without another effect."""
        queue = named(self._queues, fields)
        locks = _locks(fields)
        self._performer.apply(queue, commands.Tick(), now_ms)
        return {"found": [_is_locked(queue, key, number, now_ms) for key, number in locks]}

    def _renew_locks(self, _peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """Renews locks, whatever became of the links."""
        queue = named(self._queues, fields)
        found = self._performer.apply(queue, commands.RenewByKeys(_locks(fields)), now_ms)
        (answer,) = [effect for effect in found if isinstance(effect, Renewed)]
        return {"locked_ms": answer.locked_ms}

    def _return_unsent(self, _peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """Returns deliveries of links that have ended, from a number on: they did not reach their process."""
        queue = named(self._queues, fields)
        for key, number in _locks(fields):
            holder = queue.view.holder_of(key)
            if holder is not None and holder.departed:
                returned = commands.SettleDetached(key, number, holder.next, commands.RELEASED)
                self._performer.apply(queue, returned, now_ms)
        return {}

    # --- by the deliveries of a link -------------------------------------------------------------------

    def _renew_deliveries(self, peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """Renews the locks of deliveries of a link of the requesting frontend."""
        queue, consumer, wanted = self._deliveries(peer, fields)
        found = self._performer.apply(queue, commands.RenewDeliveries(consumer.id, wanted), now_ms)
        (answer,) = [effect for effect in found if isinstance(effect, Renewed)]
        return {"locked_ms": answer.locked_ms}

    def _settle_deliveries(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> None:
        """Settles deliveries of a link of the requesting frontend; answered when that is on disk."""
        queue, consumer, wanted = self._deliveries(peer, fields)
        outcome = _outcome(fields)
        deferred = queue.view.deferred_number
        found = self._performer.apply(queue, commands.SettleDeliveries(consumer.id, wanted, outcome), now_ms)
        (answer,) = [effect for effect in found if isinstance(effect, SettledDeliveries)]
        self._answer_on_disk(queue, Reply(peer, number, {"found": answer.found}), deferred)

    def _deliveries(self, peer: Peer, fields: Fields) -> tuple[Queue, Consumer, list[int]]:
        """The queue, the consumer and the delivery numbers that a request names."""
        queue, consumer = consumer_of(self._queues, peer, fields)
        return queue, consumer, numbers(fields, "numbers", limits.LOCKS_RENEWED_MAX, "delivery numbers")

    # --- deferred messages -----------------------------------------------------------------------------

    def _receive_deferred(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Locks deferred messages by their sequences, all or none, and answers with them."""
        queue = named(self._queues, fields)
        if queue.view.policy.receive_disabled:
            raise RequestError(conditions.ENTITY_DISABLED, disabled_text("received from"))
        sequences = numbers(fields, "sequences", DEFERRED_RECEIVED_MAX, "sequences")
        key = fields.get("key")
        if not isinstance(key, str) or not key or "-" in key:
            raise unexpected("key", key, "a text without -")
        session_of = None
        if "link" in fields:
            _, receiver = consumer_of(self._queues, peer, fields)
            session_of = receiver.id
        check_waiting(self._receiving, limits.PEEKS_MAX, "deferred messages from disk")
        command = commands.LockDeferred(
            self._links.receiving.next_number(), key, sequences, DEFERRED_LOCK_MS, session_of
        )
        found = self._performer.apply(queue, command, now_ms)
        (locked,) = [effect for effect in found if isinstance(effect, LockedDeferred)]
        if not locked.runs:
            return {"messages": [], "locked_until_ms": 0}
        self._receiving += 1

        def came(messages: list[Fields], blob: bytes) -> None:
            self._receiving -= 1
            answer(peer, number, {"messages": messages, "locked_until_ms": locked.until_ms}, blob)

        recall(queue, self._performer, locked.runs, came)
        return None

    # --- helpers ---------------------------------------------------------------------------------------

    def _ask(self, queue: Queue, command: commands.Command, now_ms: int) -> LockAnswer:
        found = self._performer.apply(queue, command, now_ms)
        (answer,) = [effect for effect in found if isinstance(effect, LockAnswer)]
        return answer

    def _answer_on_disk(self, queue: Queue, reply: Reply, deferred: int) -> None:
        """Answers when the settlement is on disk; `deferred`: see `Queue.answer_when_applied`."""
        if not queue.answer_when_applied(reply, 0, deferred):
            self._wait(reply, 0)


def consumer_of(queues: Queues, peer: Peer, fields: Fields) -> tuple[Queue, Consumer]:
    """The queue and the consumer of the requesting frontend that a request names. Raises RequestError."""
    queue = named(queues, fields)
    link = whole(fields, "link", 0, NUMBER_MAX, None)
    consumer = peer.consumers.get(link)
    if consumer is None or consumer.queue is not queue:
        # The queue is being created or declared again; a later request will find it.
        raise RequestError(conditions.MOVED, f"no consumer of {queue.name} has the number {link} here now")
    return queue, consumer


def _is_locked(queue: Queue, key: str, number: int, now_ms: int) -> bool:
    holder, sessions = queue.view.holder_of(key), queue.view.sessions
    if holder is None or not holder.in_flight.between(number, number + 1):
        return False
    return sessions is None or sessions.has_lock(holder, now_ms)


def _lock(fields: Fields) -> tuple[str, int]:
    """Key and delivery number of a lock with the text KEY-NUMBER."""
    found = fields.get("lock")
    key, dash, number = found.rpartition("-") if isinstance(found, str) else ("", "", "")
    if not (dash and key and number.isascii() and number.isdigit() and len(number) <= 20):
        raise unexpected("lock", found, "KEY-NUMBER")
    return key, int(number)


def _locks(fields: Fields) -> list[tuple[str, int]]:
    """Keys and delivery numbers of locks with the texts KEY-NUMBER."""
    found = fields.get("locks")
    if not isinstance(found, list) or not 0 < len(found) <= limits.LOCKS_RENEWED_MAX:
        raise unexpected("locks", found, f"a list of 1 to {limits.LOCKS_RENEWED_MAX} texts KEY-NUMBER")
    return [_lock({"lock": each}) for each in found]


def _outcome(fields: Fields) -> commands.Outcome:
    """The outcome of a locked message."""
    name = fields.get("outcome", "accepted")
    kinds = {kind.name.lower(): kind for kind in commands.OutcomeKind}
    if not isinstance(name, str) or name not in kinds:
        raise unexpected("outcome", name, f"one of {', '.join(kinds)}")
    try:
        annotations = bytes.fromhex(fields.get("annotations") or "")
    except (ValueError, TypeError):
        raise RequestError(
            conditions.INVALID_FIELD, "annotations is expected to be an encoded map in hex"
        ) from None
    return commands.Outcome(
        kinds[name],
        str(fields.get("condition", "")),
        str(fields.get("description", "")),
        bool(fields.get("delivery_failed", False)),
        bool(fields.get("undeliverable_here", False)),
        annotations or None,
        bool(fields.get("deferred", False)),
    )
