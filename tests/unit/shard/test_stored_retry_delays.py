"""Retry delays of messages on disk, after a restart, after a move, and when the policy changes."""

from collections.abc import Mapping, Sequence

import pytest

from lightrail.model.attempts import waiting
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    FAILED,
    Change,
    Conclude,
    Credit,
    Open,
    Outcome,
    OutcomeKind,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.values.effects import DeadLetter, Deliver, Returned
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.asides import IN_GROUPS, WAIT, at, evicted, failing, fetch
from tests.support.shard.checked_queue import Bench, Checked, PlainBench, delivered, numbered, payloads


def recovered(
    *runs: Run,
    policy: Policy = WAIT,
    now: int = 0,
    reserved: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> PlainBench:
    bench = PlainBench(policy=policy)
    bench.now = now
    bench.do(Restore(runs, runs[-1].end, reserved=reserved or {}))
    return bench


def test_messages_on_disk_wait_and_are_read_when_they_are_delivered() -> None:
    bench = failing(*numbered(4))
    bench.do(Settle(1, 0, 4, FAILED))
    evicted(bench)
    assert bench.machine.contents.resident_message_bytes == 0
    bench.now = 100
    effects = bench.do(Tick()) + bench.dispatch()
    fetch(bench, dict(enumerate(numbered(4))), effects)
    assert payloads(bench.dispatch()) == numbered(4)


def test_a_failed_delivery_on_disk_waits_without_being_read() -> None:
    bench = failing(*numbered(4))
    evicted(bench)
    (returned,) = bench.do(Settle(1, 0, 4, FAILED))
    assert isinstance(returned, Returned)
    assert bench.machine.contents.retries_count == 4


def test_one_of_a_group_on_disk_keeps_its_group() -> None:
    bench = Bench(IN_GROUPS)
    bench.put("group=a long enough to be worth it " + "x" * 200, "group=a 1")
    bench.consumer(1, credit=1)
    bench.get()
    evicted(bench)
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100))
    bench.now += 99
    assert bench.get() == []
    bench.now += 1
    messages = {0: b"group=a long enough to be worth it " + b"x" * 200, 1: b"group=a 1"}
    fetch(bench, messages, bench.dispatch())
    assert [text[:9] for text in bench.get()] == ["group=a l", "group=a 1"]


def test_an_expired_message_on_disk_is_read_for_its_dead_letter() -> None:
    bench = failing(b"m", expires_at_ms=60)
    bench.do(Settle(1, 0, 1, FAILED))
    evicted(bench)
    bench.now = 60
    found = fetch(bench, {0: b"m"}, bench.do(Tick()))
    assert [type(each) for each in found] == [DeadLetter]


def test_the_time_survives_a_restart() -> None:
    batch = batch_of([b"m0", b"m1"], durable=True, location=Location(1, 0, 9))
    bench = recovered(Run(batch, 0, 1, 0, waiting(2, 150)), Run(batch, 1, 2, 1, waiting(1, 40)), now=50)
    bench.consumer(1)
    effects = bench.dispatch()
    assert payloads(effects) == [b"m1"]
    assert [effect.run.attempts for effect in effects if isinstance(effect, Deliver)] == [1]
    assert at(bench, 149) == []
    assert at(bench, 150) == [b"m0"]


def test_after_a_restart_with_another_clock_nothing_waits_longer_than_the_policy_says() -> None:
    bench = recovered(Run(batch_of([b"m"]), 0, 1, 0, waiting(1, 1 << 40)), now=50)
    assert bench.machine.next_deadline_ms == 150


def test_a_queue_without_the_policy_restores_them_as_ready() -> None:
    bench = recovered(Run(batch_of([b"m"]), 0, 1, 0, waiting(1, 150)), policy=Policy())
    bench.consumer(1)
    assert payloads(bench.dispatch()) == [b"m"]


def test_groups_wait_after_a_restart() -> None:
    bench = Bench(IN_GROUPS)
    batch = batch_of([b"group=a 0", b"group=a 1", b"group=b 2"], enqueued_at_ms=1_000)
    runs = [Run(batch, 0, 1, 0, waiting(1, 1_090)), Run(batch, 1, 3, 1)]
    bench.do(Restore(runs, 3))
    bench.consumer(1)
    assert bench.get() == ["group=b 2"]
    bench.now = 1_090
    assert bench.get() == ["group=a 0", "group=a 1"]


@pytest.mark.parametrize("policy", [WAIT, IN_GROUPS, Policy(retry_delay_ms=100, priorities=3)])
def test_messages_on_disk_wait_after_a_restart(policy: Policy) -> None:
    bench = Bench(policy)
    batch = batch_of([b"group=a 0", b"group=a 1"])
    on_disk = batch_of([])
    on_disk.data = on_disk.ends = None
    on_disk.count, on_disk.size, on_disk.location = 2, batch.size, Location(1, 0, 99)
    bench.do(Restore([Run(on_disk, 0, 2, 0, waiting(1, 1_100))], 2))
    bench.consumer(1)
    messages = {0: b"group=a 0", 1: b"group=a 1"}
    for _ in range(3):
        fetch(bench, messages, bench.dispatch())
    assert bench.machine.contents.retries_count == 2
    bench.now = 1_100
    found: list[str] = []
    for _ in range(6):
        effects = bench.dispatch()
        found += delivered(effects)
        fetch(bench, messages, effects)
    assert found == ["group=a 0", "group=a 1"]


def test_a_reserved_message_that_waited_once_is_reserved_after_a_restart() -> None:
    run = Run(batch_of([b"m"]), 0, 1, 0, waiting(1, 90))
    bench = recovered(run, now=50, reserved={-9: [(0, 1)]})
    assert bench.machine.contents.retries_count == 0
    (letter,) = bench.do(Conclude(-9, Outcome(OutcomeKind.REJECTED)))
    assert isinstance(letter, DeadLetter)
    assert letter.run.attempts == 1


def test_the_time_survives_a_move() -> None:
    copy = Machine("orders")
    bench = Checked(copy, 0)
    batch = batch_of([b"m0", b"m1"])
    runs = [Run(batch, 0, 1, 0, waiting(1, 90)), Run(batch, 1, 2, 1)]
    copy.apply(Restore(runs, 2, is_copy=True), 0)
    bench.do(Open(WAIT))
    bench.consumer(1)
    assert payloads(bench.dispatch()) == [b"m1"]
    assert at(bench, 89) == []
    assert at(bench, 90) == [b"m0"]


def test_without_the_policy_nothing_waits_any_longer() -> None:
    bench = failing(*numbered(2))
    bench.now = 1
    bench.do(Settle(1, 0, 2, FAILED), Change(Policy()))
    assert payloads(bench.dispatch()) == numbered(2)
    bench.do(Settle(1, 2, 4, FAILED))
    assert payloads(bench.dispatch()) == numbered(2)


def test_a_shorter_delay_counts_at_once_and_a_longer_one_with_the_next_failure() -> None:
    bench = failing(b"m")
    bench.do(Settle(1, 0, 1, FAILED), Change(Policy(retry_delay_ms=500)))
    assert bench.machine.next_deadline_ms == 100
    bench.do(Change(Policy(retry_delay_ms=30)))
    assert at(bench, 29) == []
    assert at(bench, 30) == [b"m"]
    bench.do(Settle(1, 1, 2, FAILED))
    # The locks of the former waits end nothing.
    bench.do(Change(Policy(retry_delay_ms=500)))
    assert at(bench, 59) == []
    assert at(bench, 60) == [b"m"]


def test_another_order_keeps_what_waits() -> None:
    bench = Bench(Policy(retry_delay_ms=100))
    bench.put("group=a 0", "group=a 1", "group=b 2")
    bench.consumer(1, credit=1)
    bench.get()
    bench.do(Settle(1, 0, 1, FAILED), Credit(1, 100), Change(IN_GROUPS))
    assert bench.get() == ["group=b 2"]
    bench.now += 100
    assert bench.get() == ["group=a 0", "group=a 1"]
