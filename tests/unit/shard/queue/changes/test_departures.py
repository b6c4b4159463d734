"""Departures: locks under a key outlive their link, and what counts when they end is whose fault it was."""

from typing import Any

import pytest

from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.values.commands import (
    Attach,
    Change,
    ConsumerOptions,
    Credit,
    Detach,
    RenewLock,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.values.effects import DeadLetter, LockAnswer
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import Bench

LOCKED = Policy(lock_ms=100, max_delivery_count=1)


def held(policy: Policy = LOCKED, count: int = 3, **options: Any) -> Bench:
    """Consumer 1 has messages 0 ... count-1, locked under `key` until 1100."""
    bench = Bench(policy)
    bench.put(*(f"group=a {number}" for number in range(count)))
    bench.consumer(1, lock_key="key", **{"lock_ends": LockEnding.BY_TIME, **options})
    assert len(bench.get(1)) == count
    return bench


def buried(bench: Bench) -> list[int]:
    """Sequences of what becomes a dead letter now."""
    runs = [effect.run for effect in bench.do(Tick()) if isinstance(effect, DeadLetter)]
    return [sequence for run in runs for sequence in range(run.sequence, run.end)]


def texts(*numbers: int) -> list[str]:
    return [f"group=a {number}" for number in numbers]


@pytest.mark.parametrize("ending", Ending)
def test_only_an_outcome_or_time_ends_a_lock_whatever_ended_the_link(ending: Ending) -> None:
    bench = held()
    assert not bench.do(Detach(1, ending))
    bench.consumer(2)
    assert bench.get() == []
    assert LockAnswer(True, 0) in bench.do(SettleLocked("key", 1))
    bench.now = 1_099
    assert bench.do(Tick()) == []
    assert bench.machine.view.gauges.in_flight == 2


@pytest.mark.parametrize("ending", Ending)
def test_an_end_after_that_of_the_link_counts_for_the_oldest_of_a_client_that_failed(ending: Ending) -> None:
    bench = held()
    bench.do(Detach(1, ending))
    bench.consumer(2)
    bench.now = 1_100
    dead = buried(bench)
    assert dead == ([0] if ending is Ending.FAILED else [])
    assert bench.get(2) == texts(*range(len(dead), 3))
    assert bench.machine.contents.counters.locks_expired == 3


def test_an_end_counts_if_the_lock_was_renewed_since_the_link_ended() -> None:
    bench = held()
    bench.do(RenewLock("key", 2))
    bench.do(Detach(1))
    assert bench.do(RenewLock("key", 1)) == [LockAnswer(True, 1_100)]
    bench.now = 1_100
    assert buried(bench) == [1]


def test_locks_of_gateways_count_whatever_became_of_their_link() -> None:
    bench = held(lock_ends=LockEnding.ALWAYS_BY_TIME)
    bench.do(Detach(1))
    bench.now = 1_100
    assert buried(bench) == [0, 1, 2]


def test_locks_that_end_with_their_link_return_at_once_and_have_their_key_until_then() -> None:
    bench = held(lock_ends=LockEnding.BY_LINK)
    assert LockAnswer(True, 0) in bench.do(SettleLocked("key", 1))
    bench.do(Detach(1))
    bench.consumer(2)
    assert bench.get(2) == texts(0, 2)
    assert bench.do(SettleLocked("key", 0)) == [LockAnswer(False, 0)]


def test_a_client_whose_lock_has_ended_settles_no_message_of_another_one() -> None:
    bench = held(count=1)
    bench.do(Detach(1))
    bench.now = 1_100
    bench.consumer(2, lock_key="other", lock_ends=LockEnding.BY_TIME)
    assert bench.get(2) == texts(0)
    assert bench.do(SettleLocked("key", 0)) == [LockAnswer(False, 0)]
    assert LockAnswer(True, 0) in bench.do(SettleLocked("other", 0))


def test_what_a_link_that_opens_again_does_not_know_was_never_sent_and_comes_with_new_ends() -> None:
    bench = held()
    bench.do(Detach(1, Ending.BY_BROKER))
    bench.now = 1_050
    bench.do(
        Attach(2, ConsumerOptions(lock_key="key", lock_ends=LockEnding.BY_TIME, first=1)),
        Credit(2, 9),
    )
    assert bench.get(2) == texts(1, 2)
    # The former ends of numbers 1 and 2 are over.
    bench.now = 1_100
    assert buried(bench) == [0]
    assert bench.machine.view.gauges.in_flight == 2
    assert bench.machine.next_deadline_ms == 1_150
    bench.do(Settle(2, 1, 3))
    assert bench.machine.view.held == 0


def test_ends_that_were_given_stay_when_the_lock_time_changes_or_is_removed() -> None:
    bench = held()
    bench.do(Change(Policy(lock_ms=10)))
    bench.do(Detach(1))
    bench.now = 1_099
    assert bench.do(Tick()) == []
    bench.do(Change(Policy()))
    assert bench.do(Tick()) == []
    bench.now = 1_100
    bench.consumer(2)
    assert bench.get(2) == texts(0, 1, 2)


def test_a_queue_that_loses_its_lock_time_keeps_locks_with_an_end_beyond_the_link() -> None:
    bench = held(count=2)
    bench.do(Change(Policy()))
    bench.put("group=b 9")
    assert bench.get(1) == ["group=b 9"]
    bench.do(Detach(1))
    bench.consumer(2)
    # The message that came without a lock time had no end.
    assert bench.get(2) == ["group=b 9"]
    bench.now = 1_100
    assert bench.get(2) == texts(0, 1)


def test_a_queue_that_gets_a_lock_time_again_ends_no_lock_earlier_than_told() -> None:
    bench = held(count=1)
    bench.do(Change(Policy()), Change(Policy(lock_ms=5)))
    bench.now = 1_099
    assert bench.do(Tick()) == []
    bench.now = 1_100
    assert bench.get(1) == texts(0)


def test_renewals_have_the_present_lock_time_also_when_the_link_has_ended() -> None:
    bench = held()
    bench.do(Detach(1), Change(Policy(lock_ms=60_000)))
    assert bench.do(RenewLock("key", 0)) == [LockAnswer(True, 61_000)]


def test_a_group_goes_on_behind_the_messages_that_an_ended_link_has_locked() -> None:
    bench = held(Policy(groups=True, lock_ms=100), count=1)
    bench.do(Detach(1))
    bench.put("group=a 1", "group=b 2")
    bench.consumer(2, lock_ms=500)
    assert bench.get(2) == ["group=b 2"]
    bench.now = 1_100
    assert bench.get(2) == texts(0, 1)


def test_a_message_that_expires_while_it_is_locked_can_be_settled_and_is_not_delivered_again() -> None:
    bench = Bench(Policy(lock_ms=100))
    bench.put("short", "lived", expires_at_ms=1_010)
    bench.consumer(1, lock_key="key", lock_ends=LockEnding.BY_TIME)
    assert bench.get(1) == ["short", "lived"]
    bench.do(Detach(1))
    bench.now = 1_050
    assert LockAnswer(True, 0) in bench.do(SettleLocked("key", 0))
    bench.now = 1_100
    bench.consumer(2)
    assert bench.get(2) == []
    assert bench.machine.view.held == 0


def test_links_without_a_key_return_everything_beside_links_that_have_one() -> None:
    bench = held()
    bench.put("plain")
    bench.consumer(3)
    bench.do(Credit(1, 0))
    assert bench.get(3) == ["plain"]
    bench.do(Detach(3))
    bench.consumer(4)
    assert bench.get(4) == ["plain"]


def test_a_session_ends_with_its_link() -> None:
    bench = Bench(Policy(groups=True, lock_ms=100))
    bench.put("group=a 0")
    bench.consumer(1, lock_key="key", lock_ends=LockEnding.BY_TIME, session="a")
    assert bench.get(1) == texts(0)
    assert LockAnswer(False, 0) in bench.do(SettleLocked("key", 5))
    bench.do(Detach(1))
    bench.consumer(2, session="a")
    assert bench.get(2) == texts(0)
