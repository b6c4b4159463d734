"""Sessions against a model with one list per group, in random histories.

The model knows who has which session and until when. After every step the machine must agree, deliver each
message of a group in its order to the owner alone, and leave no session that somebody waits for.
"""

from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lightrail.model import conditions, limits
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    RELEASED,
    Attach,
    Change,
    Command,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Purge,
    RenewSession,
    Restore,
    SetState,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import (
    Deliver,
    Effect,
    Fetch,
    Refused,
    Removed,
    SessionAccepted,
    SessionLost,
    SessionRenewed,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.model.histories import SOAK_S, checked, soak
from tests.support.shard import invariants
from tests.support.shard.checked_queue import annotated, look

GROUPS = ["a", "b", "c"]
LOCK_MS = 40


class SessionModel(RuleBasedStateMachine):
    """Rules are what clients and time may do."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(patch.object(limits, "DELIVERY_SLICE_MESSAGES", 2))
        self.stack.enter_context(patch.object(limits, "STALE_ENTRIES_MIN", 2))
        self.policy = Policy(groups=True, lock_ms=LOCK_MS)
        self.machine = Machine("orders", self.policy, annotate=annotated, look=look)
        self.now = 1_000
        self.sequence = 0
        self.identity = 0
        self.group_of: dict[int, str] = {}
        self.texts: dict[int, bytes] = {}
        """Messages by sequence."""
        self.states: dict[str, int] = {}
        """By group: the sequence of its state."""
        self.waiting: dict[str, list[int]] = {each: [] for each in GROUPS}
        """By group: sequences of messages that are ready, rising."""
        self.flight: dict[int, list[tuple[int, int]]] = {}
        """By consumer: number and sequence of its unsettled deliveries."""
        self.session: dict[int, str] = {}
        self.until: dict[int, int] = {}
        self.seeking: list[int] = []
        self.plain: set[int] = set()
        """Consumers without a session."""
        self.mine: dict[str, int] = {}
        """Groups that one of them owns."""

    def teardown(self) -> None:
        self.stack.close()

    def owner(self, group: str) -> int | None:
        for identity, session in self.session.items():
            if session == group:
                return identity
        return self.mine.get(group)

    def forget_empty(self) -> None:
        """A plain consumer owns a group until none of its messages is ready or in flight."""
        flying = {self.group_of[sequence] for runs in self.flight.values() for _, sequence in runs}
        for group in GROUPS:
            if not self.waiting[group] and group not in flying:
                self.mine.pop(group, None)

    def gone(self, identity: int) -> None:
        for _, sequence in self.flight.pop(identity, []):
            self.waiting[self.group_of[sequence]].append(sequence)
            self.waiting[self.group_of[sequence]].sort()
        self.session.pop(identity, None)
        self.until.pop(identity, None)
        self.plain.discard(identity)
        self.mine = {group: each for group, each in self.mine.items() if each != identity}
        if identity in self.seeking:
            self.seeking.remove(identity)

    def see(self, effects: list[Effect]) -> list[Effect]:
        """Follows effects in their order; the rest is returned."""
        rest: list[Effect] = []
        for effect in effects:
            if isinstance(effect, SessionLost):
                assert self.until[effect.consumer] <= self.now
                self.gone(effect.consumer)
            elif isinstance(effect, SessionAccepted):
                if effect.consumer in self.seeking:
                    assert effect.consumer == self.seeking.pop(0)
                    assert self.owner(effect.session) is None
                    assert self.waiting[effect.session]
                    self.session[effect.consumer] = effect.session
                self.until[effect.consumer] = self.now + LOCK_MS
            elif isinstance(effect, Deliver):
                self.deliver(effect)
            elif isinstance(effect, Refused | SessionRenewed):
                rest.append(effect)
        return rest

    def read(self, run: Run) -> list[Run]:
        """The messages of a run on disk."""
        return [
            Run(
                batch_of([self.texts[each]], durable=True, location=Location(0, 100 * each, 100)),
                *(0, 1, each, run.attempts),
            )
            for each in range(run.sequence, run.end)
        ]

    def deliver(self, effect: Deliver) -> None:
        for index in range(effect.run.count):
            sequence = effect.run.sequence + index
            group = self.group_of[sequence]
            assert self.owner(group) in (None, effect.consumer)
            if effect.consumer in self.session:
                assert self.session[effect.consumer] == group
            else:
                self.mine[group] = effect.consumer
            assert self.waiting[group].pop(0) == sequence
            number = effect.first_number + index
            self.flight.setdefault(effect.consumer, []).append((number, sequence))

    def do(self, command: Command) -> list[Effect]:
        effects = self.see(self.machine.apply(command, self.now))
        invariants.check(self.machine)
        return effects

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 3))
    def put(self, group: str, count: int) -> None:
        for _ in range(count):
            self.group_of[self.sequence] = group
            self.waiting[group].append(self.sequence)
            self.sequence += 1
        messages = [f"group={group} x".encode()] * count
        first = self.sequence - count
        self.texts.update((first + index, message) for index, message in enumerate(messages))
        location = Location(0, 100 * first, 100)
        self.do(Enqueue(batch_of(messages, durable=True, enqueued_at_ms=self.now, location=location)))

    @rule(group=st.sampled_from(GROUPS))
    def accept(self, group: str) -> None:
        self.identity += 1
        self.forget_empty()
        owner = self.owner(group)
        found = self.do(Attach(self.identity, ConsumerOptions(session=group, default_outcome=RELEASED)))
        if owner is None:
            assert not found
            self.session[self.identity] = group
            self.do(Credit(self.identity, 1 << 20))
        else:
            (refused,) = found
            assert isinstance(refused, Refused)
            assert refused.condition == conditions.SESSION_CANNOT_BE_LOCKED

    @rule()
    def seek(self) -> None:
        self.identity += 1
        self.do(Attach(self.identity, ConsumerOptions(any_session=True, default_outcome=RELEASED)))
        self.do(Credit(self.identity, 1 << 20))
        self.seeking.append(self.identity)

    @precondition(lambda self: len(self.plain) < 2)
    @rule(credit=st.integers(0, 4))
    def attach(self, credit: int) -> None:
        self.identity += 1
        self.plain.add(self.identity)
        self.do(Attach(self.identity, ConsumerOptions(default_outcome=RELEASED, lock_ms=1 << 20)))
        self.do(Credit(self.identity, credit))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        known = [*self.session, *self.seeking, *self.plain]
        if known:
            identity = data.draw(st.sampled_from(known))
            self.do(Detach(identity))
            self.gone(identity)

    @rule(data=st.data(), accepts=st.booleans())
    def settle(self, data: st.DataObject, accepts: bool) -> None:
        held = [(identity, *each) for identity, runs in self.flight.items() for each in runs]
        if not held:
            return
        identity, number, sequence = data.draw(st.sampled_from(held))
        self.flight[identity].remove((number, sequence))
        self.do(Settle(identity, number, number + 1, ACCEPTED if accepts else RELEASED))
        if not accepts:
            self.waiting[self.group_of[sequence]].append(sequence)
            self.waiting[self.group_of[sequence]].sort()

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if not self.until:
            return
        identity = data.draw(st.sampled_from(list(self.until)))
        (answer,) = self.do(RenewSession(identity))
        assert isinstance(answer, SessionRenewed)
        if self.until[identity] > self.now:
            assert answer.locked_ms == LOCK_MS
            self.until[identity] = self.now + LOCK_MS
        else:
            assert answer.locked_ms is None

    @rule(wait_ms=st.integers(1, LOCK_MS))
    def pass_time(self, wait_ms: int) -> None:
        self.now += wait_ms
        self.do(Tick())

    @rule()
    def purge(self) -> None:
        self.do(Purge())
        for waiting in self.waiting.values():
            waiting.clear()

    @rule(group=st.sampled_from(GROUPS), text=st.sampled_from(["one", "two", None]))
    def set_state(self, group: str, text: str | None) -> None:
        batch = None
        if text is not None:
            # Where the journal has it: a state may leave memory.
            location = Location(0, 100 * self.sequence, 100)
            message = self.texts[self.sequence] = f"group={group} {text}".encode()
            batch = batch_of([message], durable=True, enqueued_at_ms=self.now, location=location)
            self.sequence += 1
        former = self.states.pop(group, None)
        effects = self.machine.apply(SetState(group, batch), self.now)
        removed = [each.first_sequence for each in effects if isinstance(each, Removed)]
        assert removed == ([] if former is None else [former])
        if text is not None:
            self.states[group] = self.sequence - 1
        invariants.check(self.machine)

    @rule(bytes_wanted=st.integers(1, 1 << 10))
    def evict(self, bytes_wanted: int) -> None:
        self.machine.footprint.evict(bytes_wanted)
        invariants.check(self.machine)

    @rule(loses=st.booleans())
    def restart(self, loses: bool) -> None:
        """The shard starts again without consumers, perhaps also without messages; evicted ones are read."""
        self.dispatch()
        runs = sorted(self.machine.contents.runs(), key=lambda run: run.sequence)
        for identity in [*self.session, *self.seeking, *self.plain]:
            self.gone(identity)
        kept = [run for run in runs if run.is_state or not loses]
        for waiting in self.waiting.values() if loses else ():
            waiting.clear()
        self.machine = Machine("orders", self.policy, annotate=annotated, look=look)
        self.do(Restore(kept, self.sequence))
        self.dispatch()

    @rule(delay=st.booleans())
    def change(self, delay: bool) -> None:
        is_arranged_again = delay != self.policy.delay
        self.policy = Policy(groups=True, lock_ms=LOCK_MS, delay=delay)
        self.do(Change(self.policy))
        if is_arranged_again:
            # Who has nothing of a group in flight no longer owns it, unless it is a session.
            self.mine = {
                self.group_of[sequence]: identity
                for identity, runs in self.flight.items()
                for _, sequence in runs
                if identity in self.plain
            }
        self.dispatch()

    @rule()
    def dispatch(self) -> None:
        for _ in range(6):
            self.forget_empty()
            effects = self.machine.dispatch(self.now)
            assert not self.see(effects)
            invariants.check(self.machine)
            for effect in effects:
                if isinstance(effect, Fetch):
                    self.do(Fetched(effect.run.sequence, self.read(effect.run)))
        states = self.machine.locking.states
        for group in GROUPS:
            run = states.find(group)
            assert (None if run is None else run.sequence) == self.states.get(group)
            if run is not None and run.batch.data is not None:
                assert run.messages() == [self.texts[run.sequence]]
        for identity, until_ms in self.until.items():
            assert until_ms > self.now, f"the lock of {identity} has ended"
        for group, waiting in self.waiting.items():
            owner = self.owner(group)
            assert not (owner in self.session and waiting), "the owner of a session does not get its messages"
            assert not (owner is None and waiting and self.seeking), "an available session is not accepted"

    @invariant()
    def the_next_end_is_known(self) -> None:
        if self.until:
            due_ms = self.machine.next_deadline_ms
            assert due_ms is not None
            assert due_ms <= min(self.until.values())


TestSessions = checked(SessionModel)


@pytest.mark.soak
def test_many_histories() -> None:
    soak(SessionModel, SOAK_S)
