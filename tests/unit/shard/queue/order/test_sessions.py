"""Sessions of a queue with groups, one behaviour per test: who has one, and when its lock ends."""

from typing import Any

import pytest

from lightrail.model import conditions, limits
from lightrail.shard.queue.order.sessions import SESSION_ID_CHARACTERS_MAX
from lightrail.shard.queue.values.commands import (
    FAILED,
    Attach,
    Change,
    ConsumerOptions,
    Credit,
    Detach,
    Purge,
    RenewSession,
    Settle,
)
from lightrail.shard.queue.values.effects import (
    Effect,
    Refused,
    Returned,
    SessionAccepted,
    SessionLost,
    SessionRenewed,
)
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import GROUPS, NOT_HERE, Bench, delivered

TIMED = Policy(groups=True, lock_ms=50)


def accepted(effects: list[Effect]) -> list[tuple[int, str]]:
    return [(each.consumer, each.session) for each in effects if isinstance(each, SessionAccepted)]


def accept(bench: Bench, consumer: int, session: str) -> None:
    bench.consumer(consumer, session=session)
    assert accepted(bench.dispatch()) == [(consumer, session)]


def test_a_receiver_of_a_session_gets_the_messages_of_its_group_alone() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=b 1", "x", "group=a 2")
    bench.consumer(1, session="a")
    effects = bench.dispatch()
    assert accepted(effects) == [(1, "a")]
    assert delivered(effects) == ["group=a 1", "group=a 2"]
    bench.put("group=b 2", "group=a 3", "y")
    assert bench.get(1) == ["group=a 3"]


def test_a_session_without_messages_has_an_owner() -> None:
    bench = Bench(GROUPS)
    accept(bench, 1, "a")
    bench.consumer(2)
    bench.put("group=a 1", "group=b 1")
    effects = bench.dispatch()
    assert delivered(effects, 1) == ["group=a 1"]
    assert delivered(effects, 2) == ["group=b 1"]
    bench.do(Settle(1, 0, 1))
    assert bench.get() == []
    bench.put("group=a 2")
    assert bench.get(1) == ["group=a 2"]


@pytest.mark.parametrize("owner", [{"session": "a"}, {}])
def test_a_session_that_another_consumer_owns_can_not_be_locked(owner: dict[str, Any]) -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1")
    bench.consumer(1, **owner)
    bench.dispatch()
    (refused,) = bench.do(Attach(2, ConsumerOptions(session="a")))
    assert isinstance(refused, Refused)
    assert refused.condition == conditions.SESSION_CANNOT_BE_LOCKED
    bench.do(Detach(1))
    bench.consumer(3, session="a")
    assert bench.get(3) == ["group=a 1"]


def test_a_queue_without_groups_has_no_sessions() -> None:
    bench = Bench(Policy())
    (refused,) = bench.do(Attach(1, ConsumerOptions(any_session=True)))
    assert isinstance(refused, Refused)
    assert refused.condition == conditions.NOT_ALLOWED


def test_the_id_of_a_session_is_bounded() -> None:
    bench = Bench(GROUPS)
    longest = "s" * SESSION_ID_CHARACTERS_MAX
    accept(bench, 1, longest)
    (refused,) = bench.do(Attach(2, ConsumerOptions(session=longest + "s")))
    assert isinstance(refused, Refused)
    assert refused.condition == conditions.INVALID_FIELD


def test_the_next_available_session_is_the_one_that_has_waited_longest() -> None:
    bench = Bench(GROUPS)
    bench.put("group=b 1", "x", "group=a 1", "group=b 2")
    bench.consumer(1, any_session=True)
    bench.consumer(2, any_session=True)
    bench.consumer(3, any_session=True)
    effects = bench.dispatch()
    assert accepted(effects) == [(1, "b"), (2, "a")]
    assert delivered(effects, 1) == ["group=b 1", "group=b 2"]
    assert delivered(effects, 3) == []
    bench.put("group=c 1")
    effects = bench.dispatch()
    assert accepted(effects) == [(3, "c")]
    assert delivered(effects, 3) == ["group=c 1"]


def test_a_session_that_became_free_goes_to_who_waits() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=1, session="a")
    assert bench.get(1) == ["group=a 1"]
    bench.consumer(2, any_session=True)
    assert not accepted(bench.dispatch())
    bench.do(Detach(1))
    effects = bench.dispatch()
    assert accepted(effects) == [(2, "a")]
    assert delivered(effects, 2) == ["group=a 1", "group=a 2"]


def test_a_session_of_which_everything_was_purged_is_not_available() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1")
    bench.do(Purge())
    bench.consumer(1, any_session=True)
    assert not accepted(bench.dispatch())


@pytest.mark.parametrize("key", [7, "s" * (SESSION_ID_CHARACTERS_MAX + 1)])
def test_a_group_whose_id_is_none_of_a_session_is_not_available(key: int | str) -> None:
    bench = Bench(GROUPS)
    bench.put(f"group={key} 1")
    bench.consumer(1, any_session=True)
    assert not accepted(bench.dispatch())
    bench.consumer(2)
    assert bench.get(2) == [f"group={key} 1"]


def test_who_waits_no_longer_accepts_nothing() -> None:
    bench = Bench(GROUPS)
    bench.consumer(1, any_session=True)
    bench.do(Detach(1))
    bench.put("group=a 1")
    bench.consumer(2, any_session=True)
    assert accepted(bench.dispatch()) == [(2, "a")]


def test_deliveries_of_a_session_return_to_it_in_order() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2", "group=a 3")
    bench.consumer(1, credit=2, session="a")
    bench.dispatch()
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100))
    assert bench.get(1) == ["group=a 1", "group=a 3"]


def test_a_session_waits_while_its_owner_is_barred_from_the_first_message() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=1, session="a")
    bench.consumer(2)
    bench.dispatch()
    bench.do(Settle(1, 0, 1, NOT_HERE), Credit(1, 100))
    assert bench.get() + bench.get() == []
    bench.do(Detach(1))
    assert bench.get(2) == ["group=a 1", "group=a 2"]


# --- the lock of a session ---------------------------------------------------------------------------------


def test_when_the_lock_of_a_session_ends_its_receiver_is_detached_and_its_deliveries_have_failed() -> None:
    bench = Bench(TIMED)
    bench.put("group=a 1")
    bench.consumer(1, session="a")
    effects = bench.dispatch()
    assert [each.locked_ms for each in effects if isinstance(each, SessionAccepted)] == [50]
    assert bench.machine.next_deadline_ms == bench.now + 50
    bench.now += 49
    assert not bench.dispatch()
    bench.now += 1
    (returned, lost) = bench.dispatch()
    assert isinstance(returned, Returned)
    assert [run.attempts for run in returned.runs] == [1]
    assert lost == SessionLost(1)
    bench.consumer(2, session="a")
    assert bench.get(2) == ["group=a 1"]


def test_a_renewed_lock_lasts_for_its_full_time_again() -> None:
    bench = Bench(TIMED)
    accept(bench, 1, "a")
    bench.now += 40
    assert bench.do(RenewSession(1)) == [SessionRenewed(50)]
    bench.now += 49
    assert not bench.dispatch()
    bench.now += 1
    assert bench.dispatch() == [SessionLost(1)]
    assert bench.do(RenewSession(1)) == [SessionRenewed(None)]


def test_a_lock_that_has_ended_is_not_renewed() -> None:
    bench = Bench(TIMED)
    accept(bench, 1, "a")
    bench.now += 50
    assert bench.do(RenewSession(1)) == [SessionRenewed(None)]
    assert bench.dispatch() == [SessionLost(1)]


def test_a_shorter_lock_time_counts_from_the_next_renewal() -> None:
    bench = Bench(TIMED)
    accept(bench, 1, "a")
    bench.do(Change(Policy(groups=True, lock_ms=10)))
    bench.now += 30
    assert not bench.dispatch()
    assert bench.do(RenewSession(1)) == [SessionRenewed(10)]
    bench.now += 10
    assert bench.dispatch() == [SessionLost(1)]


def test_without_a_lock_time_a_session_is_locked_as_long_as_its_receiver_is_attached() -> None:
    bench = Bench(GROUPS)
    accept(bench, 1, "a")
    assert bench.machine.next_deadline_ms is None
    assert bench.do(RenewSession(1)) == [SessionRenewed(0)]
    assert bench.do(RenewSession(2)) == [SessionRenewed(None)]


def test_a_session_is_kept_when_the_policy_changes_and_ends_with_the_groups() -> None:
    bench = Bench(GROUPS)
    bench.put("group=a 1", "group=a 2")
    bench.consumer(1, credit=1, session="a")
    bench.consumer(2, any_session=True)
    bench.dispatch()
    bench.do(Change(Policy(groups=True, delay=True)), Credit(1, 2))
    assert bench.get(1) == ["group=a 2"]
    bench.put("group=b 1")
    assert accepted(bench.dispatch()) == [(2, "b")]
    effects = bench.do(Change(Policy()))
    assert [each for each in effects if isinstance(each, SessionLost)] == [SessionLost(1), SessionLost(2)]
    bench.consumer(3)
    assert bench.get(3) == ["group=a 1", "group=a 2", "group=b 1"]


def test_ends_of_locks_are_forgotten_with_their_receivers() -> None:
    bench = Bench(TIMED)
    for identity in range(2 * limits.STALE_ENTRIES_MIN):
        accept(bench, identity, "a")
        bench.do(Detach(identity))
        bench.dispatch()
    special = bench.machine.contents.special
    assert special is not None
    assert special.sessions is not None
    assert len(special.sessions._heap) <= limits.STALE_ENTRIES_MIN + 2
