"""Commands for schedules of transactions: each is one of the commands of a queue."""

from typing import get_args

from lightrail.shard.queue.values.commands import Command
from lightrail.shard.queue.values.schedules import ScheduleCommand


def test_a_queue_applies_each_of_them() -> None:
    assert set(get_args(ScheduleCommand)) <= set(get_args(Command))
