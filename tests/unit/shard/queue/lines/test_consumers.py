"""Consumers, one behaviour per test: who gets the next slice, and who may attach."""

from collections import Counter

from lightrail.shard.queue.values.commands import (
    Attach,
    Change,
    ConsumerOptions,
    Credit,
    Detach,
    Resume,
    Suspend,
)
from lightrail.shard.queue.values.effects import Deliver, Refused
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import PlainBench, numbered, payloads


def test_everybody_with_credit_gets_a_share(bench: PlainBench) -> None:
    for identity in range(4):
        bench.consumer(identity)
    bench.put(*numbered(100))
    effects = bench.dispatch()
    shares = Counter({identity: len(payloads(effects, identity)) for identity in range(4)})
    assert sum(shares.values()) == 100
    assert max(shares.values()) <= 26
    assert sum(isinstance(effect, Deliver) for effect in effects) <= 8


def test_single_messages_go_round(bench: PlainBench) -> None:
    for identity in range(3):
        bench.consumer(identity)
    order = []
    for message in numbered(6):
        bench.put(message)
        order += [effect.consumer for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert order == [0, 1, 2, 0, 1, 2]


def test_higher_priority_gets_everything_while_it_has_credit(bench: PlainBench) -> None:
    bench.consumer(1)
    bench.consumer(2, credit=4, priority=9)
    bench.put(*numbered(10))
    effects = bench.dispatch()
    assert payloads(effects, 2) == numbered(4)
    assert len(payloads(effects, 1)) == 6


def test_exclusive(bench: PlainBench) -> None:
    bench.consumer(1, exclusive=True)
    (refused,) = bench.do(Attach(2))
    assert isinstance(refused, Refused)
    assert refused.condition == "amqp:resource-locked"
    bench.consumer(3, browse=True)
    bench.do(Detach(1))
    bench.consumer(4)
    (refused,) = bench.do(Attach(5, ConsumerOptions(exclusive=True)))
    assert isinstance(refused, Refused)


def test_a_consumer_may_go_on_with_a_later_number(bench: PlainBench) -> None:
    bench.put(b"a")
    bench.consumer(1, credit=41, first=40)
    (effect,) = bench.dispatch()
    assert isinstance(effect, Deliver)
    assert effect.first_number == 40


def test_credit_is_an_absolute_limit(bench: PlainBench) -> None:
    bench.put(*numbered(10))
    bench.consumer(1, credit=3)
    assert payloads(bench.dispatch()) == numbered(3)
    bench.do(Credit(1, 3))
    assert not bench.dispatch()
    bench.do(Credit(1, 5))
    assert payloads(bench.dispatch()) == [b"m3", b"m4"]
    bench.do(Credit(1, 2))
    assert not bench.dispatch()


def test_a_suspended_consumer_keeps_its_deliveries_and_gets_no_others(bench: PlainBench) -> None:
    bench.consumer(1, credit=2)
    bench.put(*numbered(4))
    bench.dispatch()
    bench.do(Credit(1, 10), Suspend(1), Suspend(1))
    assert not bench.dispatch()
    consumers = bench.machine.contents.consumers
    assert (consumers.suspended, consumers.are_served) == (1, False)
    assert bench.machine.contents.in_flight_count == 2
    bench.do(Resume(1), Resume(1), Credit(1, 10))
    assert payloads(bench.dispatch(), 1) == numbered(4)[2:]
    assert (consumers.suspended, consumers.are_served) == (0, True)
    bench.do(Suspend(1), Detach(1))
    assert consumers.suspended == 0


def test_another_consumer_becomes_the_active_one_while_it_is_suspended(bench: PlainBench) -> None:
    bench.do(Change(Policy(single_active=True)))
    bench.consumer(1, credit=1)
    bench.put(*numbered(4))
    assert payloads(bench.dispatch(), 1) == numbered(1)
    bench.do(Suspend(1))
    assert not bench.dispatch()
    # One that attaches now is active at once, and stays it.
    bench.consumer(2, credit=1)
    bench.consumer(3, credit=9)
    assert payloads(bench.dispatch(), 2) == numbered(4)[1:2]
    bench.do(Resume(1), Credit(1, 10))
    assert not bench.dispatch()
    bench.do(Suspend(2))
    assert payloads(bench.dispatch(), 1) == numbered(4)[2:]
