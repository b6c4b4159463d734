"""States of sessions: a message that nobody receives, and that is restored like all messages."""

from dataclasses import replace

import pytest

from lightrail.model.attempts import DEFERRED, STATE
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    Change,
    Enqueue,
    Fetched,
    LockDeferred,
    Peek,
    Purge,
    Restore,
    SetState,
    Tick,
)
from lightrail.shard.queue.values.effects import Effect, Fetch, LockedDeferred, Peeked, Reason
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard import invariants
from tests.support.shard.checked_queue import GROUPS, Bench, look, removed


def set_state(bench: Bench, session: str, text: str | None) -> list[Effect]:
    message = f"group={session} {text}".encode()
    batch = None if text is None else batch_of([message], durable=True, enqueued_at_ms=bench.now)
    return bench.do(SetState(session, batch))


def state(bench: Bench, session: str) -> str | None:
    run = bench.machine.locking.states.find(session)
    return None if run is None else run.messages()[0].decode().split()[1]


def test_a_new_state_replaces_the_former_one_and_is_removed() -> None:
    bench = Bench(GROUPS)
    assert state(bench, "a") is None
    assert set_state(bench, "a", "one") == []
    assert set_state(bench, "b", "other") == []
    assert removed(set_state(bench, "a", "two"), Reason.REPLACED) == [0]
    assert [state(bench, each) for each in "ab"] == ["two", "other"]
    assert removed(set_state(bench, "a", None), Reason.REPLACED) == [2]
    assert set_state(bench, "a", None) == []
    assert [state(bench, each) for each in "ab"] == [None, "other"]


def test_a_state_is_no_message_of_the_queue() -> None:
    bench = Bench(Policy(groups=True, max_age_ms=10))
    set_state(bench, "a", "one")
    bench.consumer(1)
    bench.consumer(2, session="a")
    bench.consumer(3, browse=True)
    bench.put("group=b 1")
    assert bench.get(1) == ["group=b 1"]
    assert bench.get(2) == bench.get(3) == []
    (locked,) = bench.do(LockDeferred(9, "k", [0], 50))
    assert locked == LockedDeferred([], 0)
    (peeked,) = bench.do(Peek(0, 5))
    assert isinstance(peeked, Peeked)
    assert peeked.runs == []
    gauges = bench.machine.view.gauges
    assert (gauges.ready, gauges.in_flight, gauges.deferred) == (0, 1, 0)
    bench.now += 10_000
    bench.do(Tick(), Purge())
    assert state(bench, "a") == "one"


def test_a_state_is_kept_when_the_policy_changes_and_comes_back_with_the_groups() -> None:
    bench = Bench(GROUPS)
    set_state(bench, "a", "one")
    bench.do(Change(Policy()))
    assert state(bench, "a") is None
    assert set_state(bench, "a", "two") == []
    bench.do(Change(GROUPS))
    bench.dispatch()
    assert state(bench, "a") == "one"


def restored(*states: tuple[str, str], evicted: bool) -> Bench:
    """A queue after a restart, with a message and these states."""
    runs = []
    messages = ["group=m x", *(f"group={session} {text}" for session, text in states)]
    for sequence, text in enumerate(messages):
        batch = batch_of([text.encode()], durable=True, location=Location(0, 100 * sequence, 50))
        if evicted:
            batch = replace(batch, data=None, ends=None)
        runs.append(Run(batch, 0, 1, sequence, DEFERRED | STATE if sequence else 0))
    bench = Bench(GROUPS)
    bench.machine = Machine("orders", GROUPS, look=look)
    bench.do(Restore(runs, len(runs)))
    return bench


def test_states_are_known_again_after_a_restart_and_outdated_ones_are_removed() -> None:
    bench = restored(("a", "one"), ("b", "other"), ("a", "two"), evicted=False)
    assert removed(bench.dispatch(), Reason.REPLACED) == [1]
    assert [state(bench, each) for each in "ab"] == ["two", "other"]
    assert removed(set_state(bench, "a", "three"), Reason.REPLACED) == [3]


@pytest.mark.parametrize("damaged", [False, True])
def test_states_on_disk_are_read_before_anything_is_delivered(damaged: bool) -> None:
    texts = ["group=m x", "group=a one", "group=b other", "group=a two"]
    bench = restored(("a", "one"), ("b", "other"), ("a", "two"), evicted=True)
    bench.consumer(1)
    got: list[Effect] = []
    for _ in range(9):
        effects = bench.dispatch()
        got += effects
        for each in effects:
            if isinstance(each, Fetch):
                run = each.run
                lost = damaged and run.sequence <= 2 < run.end
                runs = [
                    Run(
                        batch_of([texts[sequence].encode()], durable=True, location=run.batch.location),
                        *(0, 1, sequence, run.attempts),
                    )
                    for sequence in range(run.sequence, run.end)
                    if not (lost and sequence == 2)
                ]
                got += bench.do(Fetched(run.sequence, runs, lost))
    invariants.check(bench.machine)
    assert removed(got, Reason.REPLACED) == [1]
    assert removed(got, Reason.LOST) == ([2] if damaged else [])
    states = bench.machine.locking.states
    found = [states.find(each) for each in "ab"]
    assert [None if run is None else run.sequence for run in found] == [3, None if damaged else 2]
    bench.do(Enqueue(batch_of([b"group=m y"])))


def test_states_that_were_evicted_are_replaced() -> None:
    bench = Bench(GROUPS)
    message = b"group=a " + b"x" * 5_000
    location = Location(0, 0, 6_000)
    bench.do(SetState("a", batch_of([message], durable=True, location=location)))
    bench.machine.footprint.evict(1 << 20)
    invariants.check(bench.machine)
    run = bench.machine.locking.states.find("a")
    assert run is not None
    assert run.batch.evicted
    assert removed(set_state(bench, "a", "two"), Reason.REPLACED) == [0]
    assert state(bench, "a") == "two"


def test_the_cleaner_moves_a_state_to_another_segment() -> None:
    bench = Bench(GROUPS)
    location = Location(3, 0, 60)
    bench.do(SetState("a", batch_of([b"group=a one"], durable=True, location=location)))
    footprint = bench.machine.footprint
    (run,) = footprint.runs_in(3)
    assert run.is_state
    footprint.relocate([(run, Location(4, 0, 60))])
    invariants.check(bench.machine)
    assert footprint.runs_in(3) == []
    assert [each.attempts for each in footprint.runs_in(4)] == [DEFERRED | STATE]
    assert state(bench, "a") == "one"
