"""States: a message per session that keeps the state which receivers of the session set.

It has the session as its group-id. The bit `STATE` in its attempts makes it no message of the queue: it is
delivered and shown to nobody, and neither expires nor is purged. Like deferred messages (aside.py), states
are in flight at an internal consumer without a link, so that they are spilled, moved and restored like all
messages. A new state of a session replaces the former one.
"""

from dataclasses import dataclass

from lightrail.model.attempts import DEFERRED, STATE
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.removals import Removals, removed
from lightrail.shard.queue.order.sessions import StoredState
from lightrail.shard.queue.values.commands import SetState
from lightrail.shard.queue.values.effects import Effect, Reason
from lightrail.shard.queue.values.keys import key_of
from lightrail.shard.queue.values.runs import Run


@dataclass(slots=True, eq=False, repr=False)
class States:
    """Sets and reads the states of the sessions of one queue."""

    _contents: Contents
    _removals: Removals

    def find(self, session: str) -> Run | None:
        """The state of a session: one message, in memory or on disk; None if it has none.

        While the order of the queue is loading, states may be missing: see `Order.loading`.
        """
        sessions = self._contents.sessions
        stored = None if sessions is None else sessions.states.get(key_of(session))
        if stored is None:
            return None
        (run,) = self._contents.states.consumer.in_flight.between(stored.sequence, stored.sequence + 1)
        return run

    def apply(self, command: SetState, effects: list[Effect]) -> None:
        """Replaces the state of a session; the Removed of the former one is the only effect.

        Does nothing in a queue that is loading, or has no sessions.
        """
        contents, sessions = self._contents, self._contents.sessions
        if sessions is None or sessions.loading:
            return
        key = key_of(command.session)
        former = sessions.states.pop(key, None)
        batch = command.batch
        if batch is not None:
            sequence = contents.next_sequence
            contents.next_sequence = sequence + 1
            sessions.enqueued(sequence + 1)
            contents.counters.enqueued += 1
            contents.set_aside(Run(batch, 0, 1, sequence, DEFERRED | STATE))
            sessions.states[key] = StoredState(sequence, batch.enqueued_at_ms)
        if former is not None:
            self._remove(former.sequence, effects)

    def settle_outdated(self, effects: list[Effect]) -> None:
        """Removes former states whose removal was not stored before a crash."""
        sessions = self._contents.sessions
        if sessions is not None and sessions.outdated:
            for sequence in sessions.outdated:
                self._remove(sequence, effects)
            sessions.outdated.clear()

    def _remove(self, sequence: int, effects: list[Effect]) -> None:
        run = self._removals.take_state(sequence)
        if run is not None:
            self._contents.counters.replaced += 1
            effects.append(removed(run, Reason.REPLACED))
