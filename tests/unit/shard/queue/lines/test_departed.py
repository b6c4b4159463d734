"""Which of the detached consumers eviction looks at: those that may have messages in memory."""

from lightrail.model.links import Ending, LockEnding
from lightrail.shard.queue.lines.departed import resident
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    ACCEPTED,
    Attach,
    Change,
    ConsumerOptions,
    Credit,
    Detach,
    Enqueue,
    SettleLocked,
)
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, batch_of

LINKS = 1_000


def ended_links() -> Machine:
    """Each has one locked message, which is on disk."""
    machine = Machine("q", Policy(lock_ms=100))
    for number in range(LINKS):
        batch = batch_of([b"message"], durable=True)
        batch.location = Location(1, 100 * number, 100)
        machine.apply(Enqueue(batch), 0)
        options = ConsumerOptions(lock_key=f"key {number}", lock_ends=LockEnding.BY_TIME)
        machine.apply(Attach(number, options), 0)
        machine.apply(Credit(number, 1), 0)
        machine.dispatch(0)
        machine.apply(Detach(number, Ending.BY_CLIENT), 0)
    return machine


def looked_at(machine: Machine) -> int:
    return len(list(resident(machine.contents.consumers)))


def test_eviction_looks_no_more_at_ended_links_whose_messages_are_on_disk_alone() -> None:
    machine = ended_links()
    assert looked_at(machine) == LINKS
    while machine.footprint.evict(1 << 20):
        pass
    assert machine.footprint.in_flight_bytes == 0
    assert looked_at(machine) == 0
    assert len(machine.contents.consumers.departed) == LINKS
    assert machine.apply(SettleLocked("key 7", 0, ACCEPTED), 0)[-1].found  # type: ignore[union-attr]
    # Another arrangement of the queue may have them in memory again.
    machine.apply(Change(Policy(lock_ms=100, priorities=3)), 0)
    assert looked_at(machine) == len(machine.contents.consumers.departed) == LINKS - 1


def test_nothing_is_kept_of_ended_links_whose_messages_are_settled() -> None:
    machine = ended_links()
    for number in range(LINKS):
        machine.apply(SettleLocked(f"key {number}", 0, ACCEPTED), 0)
    assert not machine.contents.consumers.departed.in_memory
    assert not machine.contents.consumers.departed


def test_a_link_that_opens_again_is_looked_at() -> None:
    machine = ended_links()
    while machine.footprint.evict(1 << 20):
        pass
    options = ConsumerOptions(lock_key="key 7", lock_ends=LockEnding.BY_TIME, first=1)
    machine.apply(Attach(LINKS, options), 0)
    assert [each.id for each in resident(machine.contents.consumers)] == [LINKS]
