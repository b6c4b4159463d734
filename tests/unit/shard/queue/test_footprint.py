"""Footprint: what leaves memory is still found, and the sizes agree with what is in memory."""

from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location
from tests.support.shard.checked_queue import Bench
from tests.support.shard.mixed_queue import POLICIES, mixed, sequences


@POLICIES
def test_what_leaves_memory_is_still_found_and_counted(policy: Policy) -> None:
    bench = mixed(policy)
    footprint, view = bench.machine.footprint, bench.machine.view
    footprint.head_bytes = 0
    before = footprint.sizes()[0]
    assert footprint.evict(1 << 40) > 0
    assert footprint.sizes()[0] < before
    assert view.held_bytes == view.gauges.bytes == 37
    assert sequences(footprint.runs_in(1)) == [0, 1, 2]


@POLICIES
def test_messages_are_found_by_the_segment_that_has_them(policy: Policy) -> None:
    footprint = mixed(policy).machine.footprint
    assert sequences(footprint.runs_in(1)) == [0, 1, 2]
    assert sequences(footprint.runs_in(2)) == [3]
    footprint.relocate([(run, Location(5, 0, 40)) for run in footprint.runs_in(2)])
    assert footprint.runs_in(2) == []
    assert sequences(footprint.runs_in(5)) == [3]


def test_consumers_are_reported_to_their_users_once() -> None:
    bench = Bench(Policy())
    footprint = bench.machine.footprint
    assert footprint.take_changed_users() is None
    bench.consumer(1)
    bench.consumer(2)
    ((user, size),) = (footprint.take_changed_users() or {}).items()
    assert size == footprint.sizes()[1][2] == sum(each for _, each in footprint.users)
    assert {each for each, _ in footprint.users} == {user}
    assert footprint.take_changed_users() is None
