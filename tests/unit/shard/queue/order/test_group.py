"""A group is small, and has nothing and nobody when it is made."""

import tracemalloc

from lightrail.model import limits
from lightrail.shard.queue.order.group import NOTHING, Group
from tests.support.shard.checked_queue import GROUPS, Bench


def test_a_new_group_has_no_owner_and_offers_nothing() -> None:
    group = Group("a")
    assert (group.owner, group.ready, group.in_flight, group.foreign) == (None, [], 0, 0)
    assert (group.offered, group.refused) == (NOTHING, False)
    assert NOTHING < 0, "it is below every sequence"


def test_a_group_takes_no_more_memory_than_its_queue_counts_for_it() -> None:
    count = 2_000
    bench = Bench(GROUPS)
    bench.put("group=first")
    before = bench.machine.footprint.sizes()[1][0]
    tracemalloc.start()
    groups = [Group((4, f"group {number}")) for number in range(count)]
    for number, group in enumerate(groups):
        group.ready.append(1_000 + number)
    found = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    bench.put("group=second")
    counted = bench.machine.footprint.sizes()[1][0] - before - limits.SINGLE_BYTES
    assert found / count <= counted
