"""Order by sequence, one behaviour per test: consumers that select, and others beside them."""

import pytest

from lightrail.shard.queue.order import order
from lightrail.shard.queue.values.commands import RELEASED, Credit, Detach, Fetched, Settle
from lightrail.shard.queue.values.effects import Drained, Fetch
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, Bench, delivered


class Selector:
    """Matches what contains a word, and counts how often it is asked."""

    def __init__(self, word: bytes) -> None:
        self.word = word
        self.looks = 0

    def __call__(self, message: bytes) -> bool:
        self.looks += 1
        return self.word in message


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(priorities=3), SORTED, LAST_VALUE, GROUPS, DELAY], ids=str
)
def test_a_consumer_gets_only_what_it_selects_and_looks_once(policy: Policy) -> None:
    bench = Bench(policy)
    bench.put("red 1", "blue 1", "red 2", "red 3", "blue 2")
    red = Selector(b"red")
    bench.consumer(1, selects=red)
    assert bench.get() == ["red 1", "red 2", "red 3"]
    assert red.looks == 5
    bench.put("blue 3", "red 4")
    assert bench.get() == ["red 4"]
    assert not bench.get()
    assert red.looks == 7
    bench.do(Settle(1, 0, 1, RELEASED))
    assert bench.get() == ["red 1"]
    assert red.looks == 8
    bench.consumer(2)
    assert bench.get(2) == ["blue 1", "blue 2", "blue 3"]


def test_a_selector_that_matches_nothing_costs_nothing_per_dispatch() -> None:
    bench = Bench(Policy())
    bench.put(*[f"m{index}" for index in range(1_000)])
    nothing = Selector(b"nothing")
    bench.consumer(1, selects=nothing)
    for _ in range(50):
        assert not bench.get()
    assert nothing.looks == 1_000


def test_selectors_look_at_a_bounded_number_of_messages_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "SELECTOR_LOOKS", 10)
    bench = Bench(Policy())
    bench.put(*[f"m{index}" for index in range(25)], "end")
    end = Selector(b"end")
    bench.consumer(1, selects=end)
    bench.do(Credit(1, 5, drain=True))
    assert not bench.dispatch()
    assert bench.machine.next_deadline_ms == 0
    assert not bench.dispatch()
    effects = bench.dispatch()
    assert delivered(effects) == ["end"]
    assert isinstance(effects[-1], Drained)
    assert bench.machine.next_deadline_ms is None


def test_others_take_from_the_head_beside_a_consumer_that_selects() -> None:
    bench = Bench(Policy())
    bench.put(*[f"m{index}" for index in range(6)], "red")
    bench.consumer(1, credit=1, selects=Selector(b"red"))
    bench.consumer(2, credit=3)
    effects = bench.dispatch()
    assert delivered(effects, 1) == ["red"]
    assert delivered(effects, 2) == ["m0", "m1", "m2"]
    bench.do(Detach(1))
    assert bench.machine.contents.deliveries.order is None


def test_a_browser_may_select() -> None:
    bench = Bench(Policy())
    bench.put("red 1", "blue 1", "red 2")
    red = Selector(b"red")
    bench.consumer(1, browse=True, selects=red)
    assert bench.get() == ["red 1", "red 2"]
    bench.put("red 3")
    assert bench.get() == ["red 3"]
    assert red.looks == 4


def test_a_selector_waits_for_what_is_on_disk() -> None:
    bench = Bench(Policy())
    bench.machine.contents.eviction.head_bytes = 0
    bench.put("red 1", "blue 1", durable=True, location=Location(1, 0, 50))
    bench.machine.footprint.evict(100)
    bench.consumer(1, selects=Selector(b"red"))
    assert [type(effect) for effect in bench.dispatch()] == [Fetch]
    again = batch_of([b"red 1", b"blue 1"], durable=True, location=Location(1, 0, 50))
    bench.do(Fetched(0, [Run(again, 0, 2, 0)]))
    assert bench.get() == ["red 1"]
