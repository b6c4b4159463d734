"""Commands: a queue takes each of them also where it has nothing for it."""

from typing import get_args

import pytest

from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    RELEASED,
    Attach,
    Cancel,
    Change,
    Command,
    Conclude,
    Credit,
    Delete,
    Detach,
    Enqueue,
    Fetched,
    LockDeferred,
    Open,
    Peek,
    Purge,
    RenewByKeys,
    RenewDeliveries,
    RenewLock,
    RenewSession,
    Reserve,
    Restore,
    Resume,
    Return,
    SetState,
    Settle,
    SettleDeliveries,
    SettleDetached,
    SettleLocked,
    Suspend,
    Tick,
)
from lightrail.shard.queue.values.effects import (
    Effect,
    LockAnswer,
    LockedDeferred,
    Peeked,
    Renewed,
    SessionRenewed,
    SettledDeliveries,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.schedules import EnqueueUnder, Release, TakeNumbers, Withhold
from tests.support.shard.checked_queue import PlainBench

IDLE: list[tuple[Command, list[Effect]]] = [
    (Attach(1), []),
    (Detach(1), []),
    (Suspend(1), []),
    (Resume(1), []),
    (Credit(1, 10, drain=True), []),
    (Settle(1, 0, 10), []),
    (Reserve(-1, 1, 0, 10), []),
    (Conclude(-1, ACCEPTED), []),
    (Return(-1), []),
    (SettleDetached("key", 0, 10, ACCEPTED), []),
    (SettleLocked("key", 0), [LockAnswer(False, 0)]),
    (RenewLock("key", 0), [LockAnswer(False, 0)]),
    (RenewByKeys([("key", 0), ("key", 1)]), [Renewed([0, 0])]),
    (LockDeferred(7, "key", [0], 100), [LockedDeferred([], 0)]),
    (SettleDeliveries(1, [0], RELEASED), [SettledDeliveries([False])]),
    (RenewDeliveries(1, [0, 1]), [Renewed([0, 0])]),
    (RenewSession(1), [SessionRenewed(None)]),
    (SetState("session", None), []),
    (Tick(), []),
    (Purge(), []),
    (Cancel(0), []),
    (Delete(0, 10), []),
    (Change(Policy()), []),
    (Open(Policy()), []),
    (Peek(0, 10), [Peeked([], [])]),
    (Fetched(0, []), []),
    (Restore([], 7), []),
    (TakeNumbers(3), []),
    (Withhold([0, 1]), []),
    (Release([0, 1]), []),
]
"""Each command but Enqueue and EnqueueUnder, for an empty queue without consumers, and the answer."""


def test_every_command_is_tried() -> None:
    assert {type(command) for command, _ in IDLE} | {Enqueue, EnqueueUnder} == set(get_args(Command))


@pytest.mark.parametrize(("command", "answer"), IDLE, ids=lambda each: type(each).__name__)
def test_a_command_that_finds_nothing_changes_nothing(
    bench: PlainBench, command: Command, answer: list[Effect]
) -> None:
    assert bench.do(command) == answer
    assert bench.machine.view.gauges[:4] == (0, 0, 0, 0)
    assert not bench.dispatch()
