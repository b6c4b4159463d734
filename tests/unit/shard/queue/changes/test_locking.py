"""Locking: single deliveries that requests settle and renew, and what the requests are answered."""

from lightrail.shard.queue.values.commands import RELEASED, SettleDeliveries, SettleLocked
from lightrail.shard.queue.values.effects import LockAnswer, Reason, SettledDeliveries
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import PlainBench, payloads, removed


def test_deliveries_are_settled_one_by_one_wherever_they_lie_in_their_run() -> None:
    bench = PlainBench()
    bench.put(b"a", b"b", b"c")
    bench.consumer(1, 3)
    bench.dispatch()
    effects = bench.do(SettleDeliveries(1, [1, 0, 1, 7], RELEASED))
    assert effects[-1] == SettledDeliveries([True, True, False, False])
    bench.consumer(2)
    assert payloads(bench.dispatch(), 2) == [b"a", b"b"]


def test_what_a_request_settles_leaves_the_queue() -> None:
    bench = PlainBench()
    bench.put(b"a", b"b")
    bench.consumer(1, 2)
    bench.dispatch()
    effects = bench.do(SettleDeliveries(1, [1], SettleLocked("", 0).outcome))
    assert removed(effects, Reason.ACCEPTED) == [1]
    assert effects[-1] == SettledDeliveries([True])


def test_a_lock_that_has_expired_is_ended_before_its_message_is_settled() -> None:
    bench = PlainBench(policy=Policy(lock_ms=10))
    bench.put(b"a", b"b")
    bench.consumer(1, 2, lock_key="key")
    bench.dispatch()
    bench.now += 10
    assert bench.do(SettleLocked("key", 0))[-1] == LockAnswer(False, 0)
    assert bench.do(SettleDeliveries(1, [0, 1], RELEASED)) == [SettledDeliveries([False, False])]
