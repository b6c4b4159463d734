"""Timed locks, bounds and who is active against a model with one object per message, in random histories.

The model knows of each message who holds it under which number and until when. After every step the machine
must hold exactly that, want its next tick no later than the first lock runs out, and be within its bounds.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lightrail.model import limits
from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    FAILED,
    RELEASED,
    Attach,
    Change,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    Outcome,
    RenewByKeys,
    RenewDeliveries,
    RenewLock,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.effects import (
    DeadLetter,
    Deliver,
    Effect,
    LockAnswer,
    Reason,
    Refused,
    Removed,
    Renewed,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run, batch_of
from tests.model.histories import SOAK_S, checked, soak
from tests.support.shard import invariants

COUNT_MAX = 3
LENGTH_MAX = 12


@dataclass
class Message:
    attempts: int = 0
    holder: int | None = None
    number: int = 0
    until_ms: int | None = None


@dataclass
class Link:
    options: ConsumerOptions
    next: int
    limit: int
    order: int


class LockModel(RuleBasedStateMachine):
    """Rules are what links, gateways and time may do."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(patch.object(limits, "DELIVERY_SLICE_MESSAGES", 4))
        self.stack.enter_context(patch.object(limits, "STALE_ENTRIES_MIN", 2))
        self.policy = Policy(
            max_delivery_count=COUNT_MAX, max_length=LENGTH_MAX, overflow="discard_existing", lock_ms=40
        )
        self.machine = Machine("orders", self.policy)
        self.now = 1_000
        self.live: dict[int, Message] = {}
        self.links: dict[int, Link] = {}
        self.keys: dict[str, int] = {}
        self.next_of: dict[int, int] = {}
        """By consumer that left: the delivery number behind its last."""
        """The consumer that each key stands for, attached or not."""
        self.lock_ms: dict[int, int] = {}
        self.departures: dict[int, set[int]] = {}
        """By consumer that left, and whose locks end by time: deliveries whose end counts."""
        self.options: dict[int, ConsumerOptions] = {}
        self.active: int | None = None
        self.sequence = 0
        self.identity = 0

    def teardown(self) -> None:
        self.stack.close()

    # --- what the model expects ------------------------------------------------------------------------

    def held(self, identity: int) -> list[tuple[int, int]]:
        return sorted((m.number, s) for s, m in self.live.items() if m.holder == identity)

    def returned(self, sequence: int, *, failed: bool) -> int | None:
        """A message returns to the queue; its attempts, or None if it becomes a dead letter."""
        message = self.live[sequence]
        message.holder = message.until_ms = None
        message.attempts += failed
        if failed and message.attempts >= COUNT_MAX:
            del self.live[sequence]
            return None
        return message.attempts

    def pass_time(self) -> set[int]:
        """Removes the messages whose locks have expired too often."""
        dead = set()
        for sequence, message in list(self.live.items()):
            ran_out = message.until_ms is not None and message.until_ms <= self.now
            counting = self.departures.get(-1 if message.holder is None else message.holder)
            failed = counting is None or message.number in counting
            if ran_out and self.returned(sequence, failed=failed) is None:
                dead.add(sequence)
        self.forget_keys()
        return dead

    def forget_keys(self) -> None:
        """The key of a departed consumer ends with its last locked message."""
        for key, identity in list(self.keys.items()):
            if identity not in self.links and not self.held(identity):
                del self.keys[key]

    def choose(self) -> None:
        """With a single active consumer: who is it now."""
        if self.active not in self.links:
            waiting = sorted((-link.options.priority, link.order) for link in self.links.values())
            self.active = next(
                (i for i, link in self.links.items() if (-link.options.priority, link.order) in waiting[:1]),
                None,
            )

    def perform(self, effects: list[Effect], dead: set[int]) -> list[Effect]:
        """Checks what was buried; returns the rest but Returned, which the comparison covers."""
        rest: list[Effect] = []
        buried: set[int] = set()
        for effect in effects:
            if isinstance(effect, DeadLetter):
                assert effect.reason is Reason.MAX_DELIVERY_COUNT
                buried |= sequences(effect.run)
            elif isinstance(effect, Deliver):
                self.deliver(effect)
            elif isinstance(effect, LockAnswer | Removed | Refused | Renewed):
                rest.append(effect)
        assert buried == dead
        return rest

    def deliver(self, effect: Deliver) -> None:
        link = self.links[effect.consumer]
        assert not self.policy.single_active or effect.consumer == self.active
        for sequence in sorted(sequences(effect.run)):
            message = self.live[sequence]
            assert message.holder is None
            assert effect.run.attempts == message.attempts
            assert link.next < link.limit
            assert sequence == min(s for s, m in self.live.items() if m.holder is None)
            message.holder, message.number = effect.consumer, link.next
            lock_ms = self.lock_ms[effect.consumer]
            message.until_ms = self.now + lock_ms if lock_ms else None
            link.next += 1

    def dispatch(self) -> None:
        dead = self.pass_time()
        rest = self.perform(self.machine.dispatch(self.now), dead)
        assert not rest
        waiting = [link for i, link in self.links.items() if link.next < link.limit]
        if self.policy.single_active:
            waiting = [link for i, link in self.links.items() if i == self.active and link.next < link.limit]
        assert not waiting or all(message.holder is not None for message in self.live.values())

    # --- rules -----------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 7))
    def enqueue(self, count: int) -> None:
        batch = batch_of([b"x"] * count)
        _, *rest = self.machine.apply(Enqueue(batch), self.now)
        for _ in range(count):
            self.live[self.sequence] = Message()
            self.sequence += 1
        ready = sorted(s for s, m in self.live.items() if m.holder is None)
        expected = set(ready[: max(len(self.live) - LENGTH_MAX, 0)])
        gone: set[int] = set()
        for effect in rest:
            assert isinstance(effect, Removed)
            assert effect.reason is Reason.DISCARDED
            gone |= set(range(effect.first_sequence, effect.last_sequence))
        assert gone == expected
        for sequence in gone:
            del self.live[sequence]
        self.dispatch()

    @precondition(lambda self: len(self.links) < 4)
    @rule(
        lock_ms=st.sampled_from([0, 10, 30]),
        key=st.sampled_from(["", "", "a", "b"]),
        priority=st.sampled_from([0, 0, 5]),
        first=st.sampled_from([0, 0, 1, 2, 500]),
        credit=st.integers(0, 9),
        lock_ends=st.sampled_from(LockEnding),
        counts=st.booleans(),
    )
    def attach(
        self,
        lock_ms: int,
        key: str,
        priority: int,
        first: int,
        credit: int,
        lock_ends: LockEnding,
        counts: bool,
    ) -> None:
        """A link that opens again under its key has lost what it does not know of."""
        identity = self.identity
        self.identity += 1
        options = ConsumerOptions(
            priority=priority,
            default_outcome=FAILED if counts else RELEASED,
            first=first,
            lock_ms=lock_ms,
            lock_key=key,
            lock_ends=lock_ends,
        )
        effects = self.machine.apply(Attach(identity, options), self.now)
        former = self.keys.get(key) if key else None
        if former is not None:
            by_time = lock_ends is LockEnding.ALWAYS_BY_TIME
            if former in self.links or (by_time and first < self.next_of[former]):
                (effect,) = effects
                assert isinstance(effect, Refused)
                return
            for sequence, message in self.live.items():
                if message.holder == former and message.number >= first:
                    self.returned(sequence, failed=False)
                elif message.holder == former:
                    message.holder = identity
        assert not effects
        if key:
            self.keys[key] = identity
        self.links[identity] = Link(options, first, first + credit, identity)
        self.options[identity] = options
        self.lock_ms[identity] = lock_ms or self.policy.lock_ms or 0
        self.choose()
        self.machine.apply(Credit(identity, first + credit), self.now)
        self.dispatch()

    @precondition(lambda self: self.links)
    @rule(data=st.data(), more=st.integers(0, 9))
    def credit(self, data: st.DataObject, more: int) -> None:
        identity = data.draw(st.sampled_from(sorted(self.links)))
        link = self.links[identity]
        link.limit = link.next + more
        self.machine.apply(Credit(identity, link.limit), self.now)
        self.dispatch()

    @precondition(lambda self: self.links)
    @rule(data=st.data(), outcome=st.sampled_from([ACCEPTED, RELEASED, FAILED]))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        """By the link: also numbers whose lock expired long ago, which changes nothing."""
        identity = data.draw(st.sampled_from(sorted(self.links)))
        link = self.links[identity]
        first = data.draw(st.integers(link.options.first, link.next))
        last = first + data.draw(st.integers(1, 6))
        effects = self.machine.apply(Settle(identity, first, last, outcome), self.now)
        self.settled([s for n, s in self.held(identity) if first <= n < last], outcome, effects)
        self.dispatch()

    def settled(self, chosen: list[int], outcome: Outcome, effects: list[Effect]) -> list[Effect]:
        dead: set[int] = set()
        expected: set[int] = set()
        for sequence in chosen:
            if outcome is ACCEPTED:
                del self.live[sequence]
                expected.add(sequence)
            elif self.returned(sequence, failed=outcome is FAILED) is None:
                dead.add(sequence)
        rest = self.perform(effects, dead)
        removed: set[int] = set()
        for effect in rest:
            if isinstance(effect, Removed):
                removed |= set(range(effect.first_sequence, effect.last_sequence))
        assert removed == expected
        return [effect for effect in rest if not isinstance(effect, Removed)]

    @rule(
        data=st.data(), key=st.sampled_from(["a", "b"]), outcome=st.sampled_from([ACCEPTED, RELEASED, FAILED])
    )
    def settle_by_key(self, data: st.DataObject, key: str, outcome: Outcome) -> None:
        dead = self.pass_time()
        held = dict(self.held(self.keys[key])) if key in self.keys else {}
        number = data.draw(st.sampled_from([*held, 77]))
        effects = self.machine.apply(SettleLocked(key, number, outcome), self.now)
        buried = [effect for effect in effects if isinstance(effect, DeadLetter)]
        early = [effect for effect in buried if sequences(effect.run) <= dead]
        self.perform(list(early), dead)
        rest = self.settled(
            [held[number]] if number in held else [], outcome, [e for e in effects if e not in early]
        )
        assert rest == [LockAnswer(number in held, 0)]
        self.forget_keys()
        self.dispatch()

    @rule(data=st.data(), key=st.sampled_from(["a", "b"]))
    def renew(self, data: st.DataObject, key: str) -> None:
        dead = self.pass_time()
        identity = self.keys.get(key, -1)
        held = dict(self.held(identity))
        number = data.draw(st.sampled_from([*held, 77]))
        rest = self.perform(self.machine.apply(RenewLock(key, number), self.now), dead)
        lock_ms = self.lock_ms.get(identity, 0)
        if number in held and lock_ms:
            self.live[held[number]].until_ms = self.now + lock_ms
            self.count(identity, number)
            assert rest == [LockAnswer(True, self.now + lock_ms)]
        else:
            assert rest == [LockAnswer(False, 0)]
        self.dispatch()

    @rule(data=st.data(), count=st.integers(1, 4))
    def renew_by_token(self, data: st.DataObject, count: int) -> None:
        """Several locks at once, of links that are attached or have ended."""
        dead = self.pass_time()
        held = [(key, number) for key, each in self.keys.items() for number, _ in self.held(each)]
        locks = [data.draw(st.sampled_from([*held, ("c", 0)])) for _ in range(count)]
        (answer,) = self.perform(self.machine.apply(RenewByKeys(locks), self.now), dead)
        assert isinstance(answer, Renewed)
        for (key, number), locked_ms in zip(locks, answer.locked_ms, strict=True):
            if (key, number) not in held:
                assert locked_ms == 0
                continue
            identity = self.keys[key]
            assert locked_ms == self.lock_ms[identity]
            self.live[dict(self.held(identity))[number]].until_ms = self.now + self.lock_ms[identity]
            self.count(identity, number)
        self.dispatch()

    @precondition(lambda self: self.links)
    @rule(data=st.data(), count=st.integers(1, 4))
    def renew_by_link(self, data: st.DataObject, count: int) -> None:
        """Several at once, also numbers that the link does not hold (any more)."""
        dead = self.pass_time()
        identity = data.draw(st.sampled_from(sorted(self.links)))
        held = dict(self.held(identity))
        lock_ms = self.lock_ms[identity]
        numbers = [data.draw(st.sampled_from([*held, 77])) for _ in range(count)]
        (answer,) = self.perform(self.machine.apply(RenewDeliveries(identity, numbers), self.now), dead)
        assert isinstance(answer, Renewed)
        for number, locked_ms in zip(numbers, answer.locked_ms, strict=True):
            if number not in held:
                assert locked_ms == 0
            elif lock_ms:
                assert locked_ms == lock_ms
                self.live[held[number]].until_ms = self.now + lock_ms
            else:
                assert locked_ms is None
        self.dispatch()

    def count(self, identity: int, number: int) -> None:
        """The lock of a link that has ended was renewed: its end counts."""
        if identity in self.departures:
            self.departures[identity].add(number)

    @precondition(lambda self: self.links)
    @rule(data=st.data(), ending=st.sampled_from(Ending))
    def detach(self, data: st.DataObject, ending: Ending) -> None:
        identity = data.draw(st.sampled_from(sorted(self.links)))
        link = self.links.pop(identity)
        self.next_of[identity] = link.next
        effects = self.machine.apply(Detach(identity, ending), self.now)
        held = self.held(identity)
        fails = bool(held) and ending is Ending.FAILED and link.options.default_outcome is FAILED
        if link.options.lock_key and link.options.lock_ends is not LockEnding.BY_LINK:
            assert not effects
            if link.options.lock_ends is LockEnding.BY_TIME:
                self.departures[identity] = {held[0][0]} if fails else set()
        elif fails:
            buried = [effect for effect in effects if isinstance(effect, DeadLetter)]
            self.settled([held[0][1]], FAILED, list(buried))
            self.settled([s for _, s in held[1:]], RELEASED, [e for e in effects if e not in buried])
        else:
            self.settled([s for _, s in held], RELEASED, effects)
        self.forget_keys()
        self.choose()
        self.dispatch()

    @rule(passes_ms=st.sampled_from([1, 5, 10, 30, 100]), ticks=st.booleans())
    def time_passes(self, passes_ms: int, ticks: bool) -> None:
        self.now += passes_ms
        if ticks:
            effects = self.machine.apply(Tick(), self.now)
            assert not self.perform(effects, self.pass_time())
        self.dispatch()

    @rule(single=st.booleans(), lock_ms=st.sampled_from([20, 40, 60]))
    def policy_changes(self, single: bool, lock_ms: int) -> None:
        """The ends of locks stay; renewals and next deliveries have the new time, also without a link."""
        self.policy = Policy(
            max_delivery_count=COUNT_MAX,
            max_length=LENGTH_MAX,
            overflow="discard_existing",
            lock_ms=lock_ms,
            single_active=single,
        )
        if single and not self.machine.contents.policy.single_active:
            self.active = None
        self.machine.apply(Change(self.policy), self.now)
        self.lock_ms = {each: options.lock_ms or lock_ms for each, options in self.options.items()}
        self.choose()
        self.dispatch()

    # --- after every step ------------------------------------------------------------------------------

    @invariant()
    def laws_hold(self) -> None:
        invariants.check(self.machine)

    @invariant()
    def machine_and_model_agree(self) -> None:
        ready = {(s, run.attempts) for run in self.machine.contents.ready.waiting() for s in sequences(run)}
        assert ready == {(s, m.attempts) for s, m in self.live.items() if m.holder is None}
        found = []
        for consumer in self.machine.view.holders():
            line = consumer.in_flight
            for key, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True):
                found += [(consumer.id, key + at, run.sequence + at) for at in range(run.count)]
        expected = [(m.holder, m.number, s) for s, m in self.live.items() if m.holder is not None]
        assert sorted(found) == sorted(expected, key=lambda each: (each[0] or 0, each[1], each[2]))

    @invariant()
    def a_tick_comes_in_time(self) -> None:
        until = [m.until_ms for m in self.live.values() if m.until_ms is not None]
        due = self.machine.next_deadline_ms
        assert not until or (due is not None and due <= min(until))
        assert until or due is None


def sequences(run: Run) -> set[int]:
    return set(range(run.sequence, run.end))


TestLocks = checked(LockModel)


@pytest.mark.soak
def test_many_histories() -> None:
    soak(LockModel, SOAK_S)


if __name__ == "__main__":
    pytest.main([__file__])
