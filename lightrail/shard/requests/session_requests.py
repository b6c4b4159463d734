"""Requests to a shard about sessions: renews their locks, reads and sets their states, and lists them.

Every operation is drawn in docs/formats/wire.md. A state is read and set by the link that has the session.
While the groups of a queue are read after a restart, the answer is that the queue is loading.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from lightrail.amqp.messages import Message, read_body, write_message
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import DecodeError
from lightrail.journal.record import CONTINUED, Outcome, Settle
from lightrail.model import conditions, limits
from lightrail.model.attempts import DEFERRED, STATE
from lightrail.shard.effects.answers import (
    Fields,
    Operation,
    Reply,
    RequestError,
    answer,
    check_waiting,
    demand,
    error_fields,
    named,
    whole,
)
from lightrail.shard.effects.peers import Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Append, Record, size_of
from lightrail.shard.journal.store import Store, StoreBusyError, StoreError
from lightrail.shard.links.ingress.selection import index_full
from lightrail.shard.queue.order.sessions import Sessions
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.effects import Reason, Removed
from lightrail.shard.queue.values.policy import refusal_text, refuses_batches, room_for
from lightrail.shard.queue.values.runs import Batch, Run, batch_of
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import CallWhenSynced, Queue
from lightrail.shard.requests.lock_requests import consumer_of
from lightrail.shard.requests.peeking import recall

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links

LOADING: Fields = {"loading": True}


@dataclass(slots=True, eq=False, repr=False)
class SessionRequests:
    """Answers the requests about sessions of all peers.

    Args:
        wait: registers a waiter that is called when all records so far are on disk.
    """

    _queues: Queues
    _performer: Performer
    _links: "Links"
    _store: Store
    _memory: Memory
    _wait: CallWhenSynced
    _reading: int = 0
    """Number of requests for states that wait for the disk."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The operations for `Requests.add`."""
        return {
            "renew_session": self._renew,
            "session_state": self._state,
            "set_session_state": self._set_state,
            "sessions": self._list,
        }

    def _renew(self, peer: Peer, _number: int, fields: Fields, now_ms: int) -> Fields:
        """Renews the lock of the session of a link of the requesting frontend."""
        _, consumer = consumer_of(self._queues, peer, fields)
        return {"locked_ms": self._links.receiving.renew_session(consumer, now_ms)}

    def _list(self, _peer: Peer, _number: int, fields: Fields, _now_ms: int) -> Fields:
        """Ids of sessions with messages or a state, or of those whose state was set since a time."""
        queue = named(self._queues, fields)
        skip = whole(fields, "skip", 0, 1 << 31, 0)
        top = whole(fields, "top", 1, limits.SESSIONS_SHOWN_MAX, limits.SESSIONS_SHOWN_MAX)
        since_ms = fields.get("since_ms")
        if since_ms is not None:
            since_ms = whole(fields, "since_ms", -(1 << 62), 1 << 62, None)
        sessions = _sessions(queue)
        if sessions.loading:
            return LOADING
        return {"sessions": list(islice(_ids(sessions, since_ms), skip, skip + top))}

    # --- states ----------------------------------------------------------------------------------------

    def _state(self, peer: Peer, number: int, fields: Fields, _now_ms: int) -> Fields | None:
        """The state of a link's session, as the blob of the answer."""
        queue, session = self._session(peer, fields)
        if _sessions(queue).loading:
            return LOADING
        run = queue.view.state_of(session)
        if run is None:
            return {"found": False}
        check_waiting(self._reading, limits.PEEKS_MAX, "states from disk")
        self._reading += 1

        def came(rows: list[Fields], message: bytes) -> None:
            self._reading -= 1
            try:
                state = read_body(message) if rows else None
            except DecodeError:
                state = None
            if isinstance(state, bytes):
                answer(peer, number, {"found": True}, state)
            else:
                text = f"the state of the session {session!a:.80} can't be read from disk"
                answer(peer, number, error_fields(conditions.INTERNAL_ERROR, text))

        recall(queue, self._performer, [run], came)
        return None

    def _set_state(self, peer: Peer, number: int, fields: Fields, now_ms: int) -> Fields | None:
        """Sets or removes the state of a link's session; answered when that is on disk."""
        queue, session = self._session(peer, fields)
        state = _state_of(fields)
        if _sessions(queue).loading:
            return LOADING
        former = queue.view.state_of(session)
        if state is None:
            command = commands.SetState(session, None)
            self._performer.apply(queue, command, now_ms)
        else:
            self._store_state(queue, session, state, former, now_ms)
        self._wait(Reply(peer, number, {"stored": state is not None}), 0)
        return None

    def _store_state(self, queue: Queue, session: str, state: bytes, former: Run | None, now_ms: int) -> None:
        """Stores a state, and settles the former one in the same group of records."""
        durable = queue.view.policy.durable != "never" or queue.captured
        message = write_message(Message(Properties(group_id=session), body=state))
        batch = batch_of([message], durable=durable, enqueued_at_ms=now_ms)
        if former is None:
            if self._memory.index_is_full:
                demand(index_full(queue))
            _demand_room(queue, batch)
        settles = durable and former is not None and former.batch.durable
        if durable:
            record = Append(
                [(queue.id, queue.view.next_sequence)],
                *(0, 0, batch, 0, 1, DEFERRED | STATE),
                flags=CONTINUED if settles else 0,
            )
            records: list[Record] = [record]
            if settles and former is not None:
                replaced = [(former.sequence, former.end)]
                records.append(Settle(queue.id, replaced, Outcome.PURGED, str(Reason.REPLACED)))
            try:
                self._store.reserve(size_of(records), now_ms)
                batch.location, *_ = [self._store.append(each, now_ms) for each in records]
            except StoreBusyError:
                raise
            except StoreError as error:
                raise RequestError(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)) from None
            self._performer.messages_unsynced += 1
        for effect in queue.machine.apply(commands.SetState(session, batch), now_ms):
            if not (settles and isinstance(effect, Removed)):
                self._performer.perform(queue, [effect], now_ms)
            elif effect.batch.location is not None:
                self._store.release(effect.batch.location.segment, effect.size)
        self._performer.touch(queue)

    def _session(self, peer: Peer, fields: Fields) -> tuple[Queue, str]:
        """The queue and the session of the link that a request names. Raises RequestError."""
        queue, consumer = consumer_of(self._queues, peer, fields)
        attached = queue.view.consumer(consumer.id)
        session = None if attached is None else attached.options.session
        if session is None:
            raise RequestError(
                conditions.SESSION_LOCK_LOST, f"expected a link of {queue.name} that has a session"
            )
        return queue, session


def _sessions(queue: Queue) -> Sessions:
    """The sessions of a queue. Raises RequestError."""
    sessions = queue.view.sessions
    if sessions is None:
        raise RequestError(
            conditions.NOT_ALLOWED, f"{queue.name} has no sessions: they need a policy with groups"
        )
    return sessions


def _ids(sessions: Sessions, since_ms: int | None) -> Iterator[str]:
    """Ids of sessions with messages or a state, or of those whose state was set after a time."""
    if since_ms is not None:
        return (str(key[1]) for key, each in sessions.states.items() if each.set_at_ms > since_ms)
    return sessions.ids()


def _state_of(fields: Fields) -> bytes | None:
    """The state in a request: in hex, or null. Raises RequestError."""
    given = fields.get("state")
    if given is None:
        return None
    try:
        state = bytes.fromhex(given)
    except (ValueError, TypeError):
        raise RequestError(conditions.INVALID_FIELD, "state is expected to be in hex, or null") from None
    if len(state) > limits.SESSION_STATE_BYTES_MAX:
        raise RequestError(
            conditions.INVALID_FIELD,
            f"the state has {len(state)} bytes; expected at most {limits.SESSION_STATE_BYTES_MAX}",
        )
    return state


def _demand_room(queue: Queue, batch: Batch) -> None:
    """Raises RequestError if another state is beyond the bounds of the queue."""
    policy, held, held_bytes = queue.view.policy, queue.held, queue.held_bytes
    if refuses_batches(policy) and not room_for(policy, held, held_bytes, batch, 0):
        raise RequestError(
            conditions.RESOURCE_LIMIT_EXCEEDED, refusal_text(policy, queue.name, held, held_bytes)
        )
