"""Groups of messages, one behaviour per test: one consumer at a time has a group, in its order."""

from lightrail.shard.queue.values.commands import FAILED, Change, Credit, Detach, Settle, Tick
from lightrail.shard.queue.values.effects import DeadLetter
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import GROUPS, NOT_HERE, Bench, delivered


def test_a_group_is_with_one_consumer_at_a_time() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=b 1", "group=a 2", "group=b 2")
    bench.consumer(1)
    bench.consumer(2)
    effects = bench.dispatch()
    assert delivered(effects, 1) == ["group=a 1", "group=a 2"]
    assert delivered(effects, 2) == ["group=b 1", "group=b 2"]
    bench.put("group=a 3", "group=b 3")
    effects = bench.dispatch()
    assert delivered(effects, 1) == ["group=a 3"]
    assert delivered(effects, 2) == ["group=b 3"]


def test_an_owner_without_credit_keeps_its_group() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=1)
    bench.consumer(2)
    assert bench.get() == ["group=a 1"]
    bench.do(Settle(1, 0, 1))
    assert not bench.get()
    bench.do(Credit(1, 2))
    assert bench.get(1) == ["group=a 2"]


def test_a_group_with_nothing_left_goes_to_anybody() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=1)
    assert bench.get(1) == ["group=a 1"]
    bench.do(Settle(1, 0, 1))
    bench.dispatch()
    bench.put("group=a 2")
    assert bench.get(2) == ["group=a 2"]


def test_a_group_is_handed_over_when_its_owner_leaves_and_its_order_is_kept() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2", "group=a 3")
    bench.consumer(1, credit=2)
    bench.consumer(2)
    assert bench.get() == ["group=a 1", "group=a 2"]
    bench.do(Detach(1))
    assert bench.get(2) == ["group=a 1", "group=a 2", "group=a 3"]


def test_the_next_ones_of_a_group_wait_for_the_one_that_came_back() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2", "group=a 3")
    bench.consumer(1, credit=2)
    bench.dispatch()
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100))
    assert bench.get() == ["group=a 1", "group=a 3"]


def test_an_owner_that_is_barred_gives_its_group_up() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=1)
    bench.dispatch()
    bench.do(Settle(1, 0, 1, NOT_HERE), Credit(1, 100))
    bench.consumer(2)
    assert bench.get() + bench.get() == ["group=a 1", "group=a 2"]
    assert bench.machine.contents.consumers.by_id[2].in_flight.runs


def test_groups_are_spread_over_consumers_with_credit() -> None:
    bench = Bench(GROUPS)
    bench.put(*[f"group={index % 6} {index}" for index in range(60)])
    for identity in range(3):
        bench.consumer(identity)
    effects = bench.dispatch()
    assert [len(delivered(effects, identity)) for identity in range(3)] == [20, 20, 20]


def test_messages_without_a_group_go_to_anybody() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "x", "y", "z")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=10)
    bench.dispatch()
    assert bench.machine.contents.ready.count == 0


def test_a_group_of_which_everything_expired_is_offered_again() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1")
    bench.put("group=a 2", expires_at_ms=1_050)
    bench.consumer(1, credit=1)
    bench.consumer(2)
    assert bench.get() == ["group=a 1"]
    bench.now = 1_050
    bench.do(Settle(1, 0, 1))
    assert [type(effect) for effect in bench.dispatch()] == [DeadLetter]
    bench.put("group=a 3")
    assert bench.get(2) == ["group=a 3"]


def test_groups_respect_what_others_hold_from_before() -> None:
    bench = Bench(Policy())
    bench.put("group=a 1", "group=a 2", "group=a 3")
    bench.consumer(1, credit=1)
    bench.consumer(2, credit=1)
    bench.dispatch()
    bench.do(Change(GROUPS), Credit(1, 9), Credit(2, 9))
    assert not bench.get()
    bench.do(Settle(2, 0, 1))
    assert bench.get(1) == ["group=a 3"]


def test_a_group_of_which_the_rest_expired_is_left_by_an_owner_without_credit() -> None:
    bench = Bench(GROUPS)
    bench.consumer(1, credit=0, presettled=True)
    bench.put("group=a 1")
    bench.put("group=a 2", expires_at_ms=1_010)
    bench.now = 1_010
    bench.do(Tick(), Credit(1, 1))
    assert bench.get() == ["group=a 1"]
    bench.consumer(2)
    bench.put("group=a 3")
    assert bench.get(2) == ["group=a 3"]


def test_an_owner_gets_what_follows_a_message_that_it_was_barred_from_and_that_expired() -> None:
    bench = Bench(GROUPS)
    bench.consumer(1)
    bench.put("group=a 1")
    bench.put("group=a 2", expires_at_ms=1_010)
    bench.dispatch()
    bench.do(Settle(1, 1, 2, NOT_HERE))
    assert bench.get() == []
    bench.now = 1_010
    bench.do(Tick())
    bench.put("group=a 3")
    assert bench.get(1) == ["group=a 3"]
