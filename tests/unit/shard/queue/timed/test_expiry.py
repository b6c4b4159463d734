"""Deadlines, one behaviour per test: messages expire in time, and entries of others do not pile up."""

import pytest

from lightrail.model import limits
from lightrail.shard.queue.values.commands import ACCEPTED, RELEASED, Enqueue, Settle, Tick
from lightrail.shard.queue.values.effects import DeadLetter, Reason, Removed
from lightrail.shard.queue.values.runs import batch_of
from tests.support.now import now
from tests.support.shard.checked_queue import PlainBench, payloads

HOUR_MS = 3_600_000


def test_a_tick_expires_on_time_also_behind_what_stays(bench: PlainBench) -> None:
    bench.put(b"stays")
    bench.put(b"late", expires_at_ms=200)
    bench.put(b"soon", expires_at_ms=100)
    assert bench.machine.next_deadline_ms == 100
    bench.now = 99
    assert not bench.do(Tick())
    bench.now = 100
    (effect,) = bench.do(Tick())
    assert isinstance(effect, DeadLetter)
    assert (effect.reason, effect.run.messages()) == (Reason.EXPIRED, [b"soon"])
    assert bench.machine.next_deadline_ms == 200
    bench.now = 200
    bench.consumer(1)
    effects = bench.dispatch()
    assert payloads(effects) == [b"stays"]
    assert any(isinstance(effect, DeadLetter) for effect in effects)
    assert bench.machine.next_deadline_ms is None


@pytest.mark.parametrize("hours", [1, 7])
def test_messages_that_were_delivered_leave_no_deadline_though_theirs_is_far_away(
    bench: PlainBench, hours: int
) -> None:
    """Nothing is due meanwhile, and no Tick comes; with one time to live, and with several in turn."""
    bench.consumer(1, credit=1_000_000)
    for index in range(8 * limits.STALE_ENTRIES_MIN):
        bench.put(b"x", expires_at_ms=index + HOUR_MS * (1 + index % hours))
        bench.dispatch()
        bench.do(Settle(1, index, index + 1, ACCEPTED))
        assert len(bench.machine.contents.deadlines.heap) <= limits.STALE_ENTRIES_MIN + 1


def test_a_deadline_that_was_forgotten_is_back_with_its_message(bench: PlainBench) -> None:
    bench.consumer(1, credit=2)
    bench.put(b"a", b"b", expires_at_ms=100)
    bench.dispatch()
    assert now(bench.machine.next_deadline_ms) is None
    bench.do(Settle(1, 0, 2, RELEASED))
    assert bench.machine.next_deadline_ms == 100
    bench.now = 100
    (expired,) = bench.do(Tick())
    assert isinstance(expired, DeadLetter)
    assert (expired.run.count, expired.reason) == (2, Reason.EXPIRED)


def test_what_is_in_flight_expires_when_it_comes_back(bench: PlainBench) -> None:
    bench.put(b"a", b"b", expires_at_ms=100)
    bench.consumer(1)
    bench.dispatch()
    bench.now = 150
    assert not bench.do(Tick(), Settle(1, 0, 1, RELEASED))
    (effect,) = bench.dispatch()
    assert isinstance(effect, DeadLetter)
    (removed,) = bench.do(Settle(1, 1, 2))
    assert isinstance(removed, Removed)


def test_settled_messages_leave_no_deadlines_behind(bench: PlainBench) -> None:
    bench.consumer(1, credit=1_000_000, presettled=True)
    for index in range(5_000):
        bench.machine.apply(Enqueue(batch_of([b"x"], expires_at_ms=1_000_000 + index)), index)
        bench.machine.dispatch(index)
    bench.now = 5_000
    bench.do(Tick())
    assert len(bench.machine.contents.deadlines.heap) < 1_000
