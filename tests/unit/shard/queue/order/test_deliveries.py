"""Deliveries, one behaviour per test: slices, copies, drains, and credit that counts bytes."""

import pytest

from lightrail.model import limits
from lightrail.shard.queue.values.commands import RELEASED, Credit, Detach, Outcome, OutcomeKind, Settle
from lightrail.shard.queue.values.effects import Deliver, Drained, Effect, Larger, Removed
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import (
    DELAY,
    GROUPS,
    LAST_VALUE,
    SORTED,
    Bench,
    PlainBench,
    numbered,
    payloads,
)

LARGE = limits.DELIVERY_SLICE_BYTES + 1
"""One of these is a whole turn."""
POLICIES = pytest.mark.parametrize(
    "policy", [Policy(), Policy(priorities=3), SORTED, LAST_VALUE, GROUPS, DELAY], ids=str
)


def large(*names: str) -> list[str]:
    return [name.ljust(LARGE) for name in names]


def names(found: list[str]) -> str:
    return " ".join(each.strip() for each in found)


@POLICIES
@pytest.mark.parametrize("browse", [False, True])
@pytest.mark.parametrize("selects", [False, True])
def test_a_turn_that_uses_the_bytes_up_is_the_last_until_the_next_credit(
    policy: Policy, browse: bool, selects: bool
) -> None:
    bench = Bench(policy)
    bench.put(*large("a", "b", "c", "d"))
    bench.consumer(1, browse=browse, selects=(lambda message: True) if selects else None)
    bench.do(Credit(1, 100, size=1))
    assert names(bench.get()) == "a"
    assert not bench.get()
    bench.do(Credit(1, 100, size=LARGE + 1))
    assert names(bench.get()) == "b c"
    assert not bench.get()
    bench.do(Credit(1, 100))
    assert names(bench.get()) == "d"


@POLICIES
def test_others_get_what_one_without_bytes_does_not(policy: Policy) -> None:
    bench = Bench(policy)
    bench.consumer(1, credit=0)
    bench.consumer(2, credit=0)
    bench.do(Credit(1, 100, size=1), Credit(2, 100, size=10 * LARGE))
    bench.put(*large("a", "b", "c", "d"))
    effects = bench.dispatch()
    assert [effect.consumer for effect in effects if isinstance(effect, Deliver)].count(1) == 1


def test_a_drain_ends_where_the_bytes_are_used_up() -> None:
    bench = Bench(Policy())
    bench.put(*large("a", "b"))
    bench.consumer(1)
    bench.do(Credit(1, 100, drain=True, size=1))
    effects = bench.dispatch()
    assert [effect for effect in effects if isinstance(effect, Drained)] == [Drained(1, 1)]


def test_what_comes_back_goes_out_with_the_next_credit() -> None:
    bench = Bench(Policy())
    bench.put(*large("a"))
    bench.consumer(1)
    bench.do(Credit(1, 100, size=1))
    assert names(bench.get()) == "a"
    bench.do(Settle(1, 0, 1, RELEASED))
    assert not bench.get()
    bench.do(Credit(1, 100, size=1))
    assert names(bench.get()) == "a"


# --- exact credit ----------------------------------------------------------------------------------------


def reported(effects: list[Effect]) -> list[Larger]:
    return [effect for effect in effects if isinstance(effect, Larger)]


@POLICIES
@pytest.mark.parametrize("browse", [False, True])
@pytest.mark.parametrize("selects", [False, True])
def test_exact_credit_is_never_exceeded_and_a_larger_message_is_reported(
    policy: Policy, browse: bool, selects: bool
) -> None:
    bench = Bench(policy)
    bench.put(*large("a", "b", "c"))
    bench.consumer(1, credit=0, browse=browse, selects=(lambda message: True) if selects else None)
    bench.do(Credit(1, 100, size=LARGE - 1, exact=True))
    assert reported(bench.dispatch()) == [Larger(1, 0, LARGE)]
    assert not bench.get()
    bench.do(Credit(1, 100, size=LARGE, exact=True))
    assert names(bench.get()) == "a"
    assert not bench.get()
    bench.do(Credit(1, 100, size=4 * LARGE, exact=True))
    assert names(bench.get()) == "b c"


@POLICIES
def test_small_messages_before_a_larger_one_come_within_the_bytes(policy: Policy) -> None:
    bench = Bench(policy)
    bench.put(*[name.ljust(300) for name in "abcde"], *large("f"))
    bench.consumer(1, credit=0)
    bench.do(Credit(1, 100, size=1_024, exact=True))
    # More than half of the bytes were used: there will be credit without a report.
    effects = bench.dispatch()
    assert sum(effect.run.size for effect in effects if isinstance(effect, Deliver)) == 900
    assert not reported(effects)
    bench.do(Credit(1, 100, size=4_096, exact=True))
    effects = bench.dispatch()
    assert sum(effect.run.count for effect in effects if isinstance(effect, Deliver)) == 2
    assert reported(effects) == [Larger(1, 5, LARGE)]


def test_who_drains_gets_the_report_before_the_answer() -> None:
    bench = Bench(Policy())
    bench.put("a".ljust(600), *large("b"))
    bench.consumer(1, credit=0)
    bench.do(Credit(1, 100, drain=True, size=1_024, exact=True))
    effects = bench.dispatch()
    assert effects[-2:] == [Larger(1, 1, LARGE), Drained(1, 1)]


def test_others_get_the_message_that_was_too_large_for_one() -> None:
    bench = Bench(Policy())
    bench.consumer(1, credit=0)
    bench.consumer(2, credit=0)
    bench.do(Credit(1, 100, size=1_024, exact=True), Credit(2, 100, size=LARGE, exact=True))
    bench.put(*large("a"))
    effects = bench.dispatch()
    assert [effect.consumer for effect in effects if isinstance(effect, Deliver)] == [2]


# --- slices, drains, copies ------------------------------------------------------------------------------


def test_slices_are_bounded_by_messages_and_bytes(bench: PlainBench) -> None:
    bench.consumer(1, credit=5_000)
    bench.put(*[b"x"] * 2_000)
    counts = [effect.run.count for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert max(counts) == limits.DELIVERY_SLICE_MESSAGES
    assert sum(counts) == 2_000
    bench.put(*[b"x" * 100_000] * 10)
    sizes = [effect.run.size for effect in bench.dispatch() if isinstance(effect, Deliver)]
    assert max(sizes) <= limits.DELIVERY_SLICE_BYTES
    bench.put(b"x" * 1_000_000)
    assert len(payloads(bench.dispatch())) == 1


def test_drain_sends_what_is_there_and_takes_the_rest(bench: PlainBench) -> None:
    bench.put(b"a", b"b")
    bench.consumer(1, credit=0)
    bench.do(Credit(1, 10, drain=True))
    effects = bench.dispatch()
    assert payloads(effects) == [b"a", b"b"]
    assert effects[-1] == Drained(1, 2)
    bench.put(b"c")
    assert not bench.dispatch()
    bench.do(Credit(1, 3))
    assert payloads(bench.dispatch()) == [b"c"]


def test_a_drain_of_an_empty_queue_answers_at_once(bench: PlainBench) -> None:
    bench.consumer(1, credit=0)
    bench.do(Credit(1, 10, drain=True))
    assert bench.dispatch() == [Drained(1, 0)]


def test_a_browser_gets_copies(bench: PlainBench) -> None:
    bench.put(*numbered(5))
    bench.consumer(1, credit=3, browse=True)
    assert payloads(bench.dispatch()) == numbered(3)
    assert not bench.do(Settle(1, 0, 3, Outcome(OutcomeKind.REJECTED)))
    assert bench.machine.view.gauges[:2] == (5, 0)
    bench.do(Credit(1, 10))
    assert payloads(bench.dispatch()) == [b"m3", b"m4"]
    bench.put(b"new")
    assert payloads(bench.dispatch()) == [b"new"]
    bench.consumer(2)
    assert len(payloads(bench.dispatch(), 2)) == 6
    assert not bench.do(Detach(1))


def test_presettled_deliveries_are_gone_at_once(bench: PlainBench) -> None:
    bench.put(b"a", b"b")
    bench.consumer(1, presettled=True)
    effects = bench.dispatch()
    assert [type(effect) for effect in effects] == [Deliver, Removed]
    assert bench.machine.view.gauges[:2] == (0, 0)
    assert not bench.do(Detach(1))
