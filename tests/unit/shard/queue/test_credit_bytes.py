"""Credit counts bytes as well: who was sent so many gets no further turn before the next credit."""

import pytest

from lightrail.model import limits
from lightrail.shard.queue.commands import RELEASED, Credit, Settle
from lightrail.shard.queue.effects import Deliver, Drained, Effect, Larger
from lightrail.shard.queue.policy import Policy
from tests.support.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, Bench

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
