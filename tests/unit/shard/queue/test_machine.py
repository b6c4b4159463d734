"""The queue machine, one behaviour per test: who gets what, and what becomes of it."""

from lightrail.model import limits
from lightrail.shard.queue.values.commands import Purge, Settle
from lightrail.shard.queue.values.effects import Deliver, Reason, Removed, Stored
from tests.support.shard.checked_queue import PlainBench, numbered, payloads


def test_messages_arrive_in_order_with_rising_numbers(bench: PlainBench) -> None:
    (stored,) = bench.put(b"a", b"b")
    assert isinstance(stored, Stored)
    assert (stored.run.sequence, stored.run.end) == (0, 2)
    bench.put(b"c")
    bench.consumer(1, credit=10)
    effects = bench.dispatch()
    assert payloads(effects) == [b"a", b"b", b"c"]
    assert [effect.first_number for effect in effects if isinstance(effect, Deliver)] == [0, 2]
    assert bench.machine.view.gauges[:2] == (0, 3)


def test_purge_takes_what_is_ready(bench: PlainBench) -> None:
    bench.put(*numbered(5))
    bench.consumer(1, credit=2)
    bench.dispatch()
    (removed,) = bench.do(Purge())
    assert isinstance(removed, Removed)
    assert (removed.first_sequence, removed.last_sequence, removed.reason) == (2, 5, Reason.PURGED)
    assert bench.machine.view.gauges[:2] == (0, 2)


def test_cost_is_per_run_not_per_message(bench: PlainBench) -> None:
    """A batch of 100,000 messages makes as few objects as one of ten."""
    bench.put(*[b"x"] * 100_000)
    bench.consumer(1, credit=100_000)
    assert len(bench.dispatch()) == 100_000 // limits.DELIVERY_SLICE_MESSAGES
    assert len(bench.do(Settle(1, 0, 100_000))) == 100_000 // limits.DELIVERY_SLICE_MESSAGES
