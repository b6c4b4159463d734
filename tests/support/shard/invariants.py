"""Invariants: laws that a machine satisfies after every step."""

from bisect import bisect_right
from itertools import pairwise

from lightrail.model import limits
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.reserved import Reservation
from lightrail.shard.queue.lines.consumers import bytes_of
from lightrail.shard.queue.lines.line import GONE, Line
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.order.groups import Groups
from lightrail.shard.queue.order.sessions import Sessions, may_be_session
from lightrail.shard.queue.order.unoffered import runs_of
from lightrail.shard.queue.values.runs import Run


def check(machine: Machine) -> None:
    """Raises AssertionError with the broken law and the numbers that break it."""
    contents = machine.contents
    _check_conservation(contents)
    _check_ready(contents)
    _check_consumers(contents)
    _check_locked_once(contents)
    _check_deadlines(contents)
    _check_groups(contents)
    _check_sessions(contents)
    _check_locks(contents)
    _check_bounds(contents)


def _check_conservation(contents: Contents) -> None:
    counters = contents.counters
    present = contents.ready.count + contents.delayed.count + contents.in_flight_count
    present += contents.aside.count + contents.states.count + contents.retries_count
    assert counters.arrived == present + counters.left, (
        f"{counters.arrived} arrived, but {present} are present and {counters.left} left: {counters}"
    )


def _check_ready(contents: Contents) -> None:
    _check_sums(contents, contents.ready)
    special = contents.special
    if special is not None and special.delays is not None:
        _check_sums(contents, special.delays.line)
        assert special.delays.line is contents.eviction.delayed
    if special is not None and special.singles and not special.loading.is_active:
        assert contents.ready.count == len(contents.ready), (
            "a run of several messages in an index of messages"
        )


def _check_sums(contents: Contents, ready: Ready) -> None:
    runs = ready.waiting()
    _check_line(ready)
    for run in runs:
        assert run.end <= contents.next_sequence, f"{run} reaches beyond {contents.next_sequence}"
    for key, run in zip(ready.keys[ready.head :], ready.runs[ready.head :], strict=True):
        assert run is GONE or key == run.sequence, "a key is not the sequence of its run"
    if isinstance(ready, Sparse):
        assert ready.holes == sum(run is GONE for run in ready.runs[ready.head :])
        assert not runs or ready.runs[ready.head] is not GONE, "the head is a hole"
        shares = [limits.RUN_BYTES * run.count // run.batch.count for run in runs if not run.batch.evicted]
        assert ready.batch_bytes == sum(shares)
    assert ready.count == sum(run.count for run in runs)
    assert ready.bytes == sum(run.size for run in runs)
    evicted = [run for run in runs if run.batch.data is None]
    assert ready.evicted_runs == len(evicted)
    assert ready.evicted_bytes == sum(run.size for run in evicted)
    assert ready.barred_runs == sum(bool(run.barred) for run in runs)
    assert all(run.batch.location is not None for run in evicted), "an evicted run without a location"
    assert all(run.count == run.batch.count or run.batch.ends is not None for run in evicted), (
        "a part of an evicted batch, of unknown size"
    )


def _check_consumers(contents: Contents) -> None:
    count = size = evicted = evicted_size = 0
    consumers = contents.consumers
    for consumer in consumers.by_id.values():
        assert consumer.limit >= consumer.next, f"consumer {consumer.id} has negative credit"
        _check_line(consumer.in_flight)
        for key, run in zip(consumer.in_flight.keys, consumer.in_flight.runs, strict=True):
            if run.count:
                assert key + run.count <= consumer.next, f"delivery {key} was never sent to {consumer.id}"
                count += run.count
                size += run.size
        ring = consumer.ring
        if ring is None:
            assert not len(consumer.in_flight), "a browser has deliveries in flight"
        else:
            assert ring in consumers.rings
            assert consumer.waits == (consumer.limit > consumer.next and not consumer.standby)
            assert list(ring.turn).count(consumer) == consumer.waits
        assert consumer.draining == (consumer in consumers.draining)
    for consumer in consumers.departed.values():
        _check_line(consumer.in_flight)
        count += sum(run.count for run in consumer.in_flight.runs)
        size += sum(run.size for run in consumer.in_flight.runs)
        assert len(consumer.in_flight), "a departed consumer without locked deliveries is kept"
        is_returning = not (consumer.keeps_locks or consumer.session_of is not None)
        assert (
            isinstance(consumer, Reservation)
            or is_returning
            or (contents.locks.by_key[consumer.options.lock_key] is consumer)
        )
    count += _check_ended_links(contents)
    size += 0 if consumers.packed is None else sum(run.size for run in consumers.packed.in_flight.runs)
    for apart in contents.set_apart:
        assert apart.count == sum(run.count for run in apart)
        _check_line(apart.consumer.in_flight)
    assert contents.retries is None or consumers.retries is contents.retries.consumer
    assert all(run.waits and not run.is_deferred for run in contents.retries or ())
    assert all(run.is_deferred and not run.is_state for run in contents.aside)
    assert contents.states.count == sum(run.count for run in contents.states)
    assert all(run.is_state for run in contents.states)
    assert consumers.states is contents.states.consumer or not contents.states.count
    assert consumers.aside is contents.aside.consumer or not contents.aside.count
    count += sum(run.count for run in contents.deferred)
    size += sum(run.size for run in contents.deferred)
    assert contents.in_flight_count == count
    count += contents.aside.count + contents.states.count + contents.retries_count
    size += sum(run.size for run in (*contents.aside, *contents.states, *(contents.retries or ())))
    assert contents.deliveries.bytes == size
    for consumer in consumers:
        for run in consumer.in_flight.runs[consumer.in_flight.head :]:
            if run.batch.data is None:
                assert run.batch.location is not None, "an evicted delivery without a location"
                evicted += run.count
                evicted_size += run.size
            else:
                key = consumer.in_flight.keys[consumer.in_flight.runs.index(run)]
                keyed = contents.special is not None and contents.special.keys.are_read
                assert key >= consumer.in_flight.evicted_to or keyed, "a delivery that nobody would evict"
    deliveries = contents.deliveries
    runs, doubt = sum(map(runs_of, consumers)), max(deliveries.run_count.tolerance, 0)
    assert abs(deliveries.runs - runs) <= doubt
    assert contents.deliveries.evicted_count == evicted
    assert contents.deliveries.evicted_bytes == evicted_size
    _check_deferred(contents)
    competing = [each for each in consumers.by_id.values() if each.ring is not None]
    assert consumers.attached_bytes == sum(bytes_of(each.options) for each in consumers.by_id.values())
    assert consumers.competing == len(competing) == sum(ring.members for ring in consumers.rings)
    assert not consumers.exclusive or len(competing) == 1
    active = [each for each in competing if not each.standby]
    linked = [each for each in competing if not each.suspended]
    assert len(active) == ((1 if linked else 0) if consumers.single_active else len(competing))
    assert consumers.suspended == sum(each.suspended for each in consumers.by_id.values())


def _check_ended_links(contents: Contents) -> int:
    """Each packed delivery is of one ended link; returns how many there are."""
    ended, packed = contents.locks.ended, contents.consumers.packed
    assert not contents.locks._to_pack, "a command has not packed what it unpacked"
    assert (packed is None) == (not ended.by_key)
    assert not ended.by_key.keys() & contents.locks.by_key.keys()
    parts = sorted((part.sequence, part.length) for link in ended.by_key.values() for part in link.parts)
    assert all(length > 0 for _, length in parts)
    sequences = [sequence + at for sequence, length in parts for at in range(length)]
    runs = [] if packed is None else packed.in_flight.runs[packed.in_flight.head :]
    assert sequences == [each for run in runs for each in range(run.sequence, run.end)]
    assert ended.count == len(sequences)
    assert ended._firsts == [sequence for sequence, _ in parts]
    for link in ended.by_key.values():
        for part in link.parts:
            last = part.sequence + part.length - 1
            assert ended.end_of(part.sequence) == ended.end_of(last) == part.until_ms
    for key, link in ended.by_key.items():
        assert (link.until_ms, key) in ended._heap, "nobody ends its locks"
        assert link.until_ms == min(part.until_ms for part in link.parts) > 0
        assert all(part.number + part.length <= link.next for part in link.parts)
    if packed is not None:
        _check_line(packed.in_flight)
        first_ms = min(link.until_ms for link in ended.by_key.values())
        assert 0 < ended.wakes_ms <= first_ms
        assert (ended.wakes_ms, packed.id, 0, 0) in contents.locks.heap
    return ended.count


def _check_deferred(contents: Contents) -> None:
    """Deliveries that wait for their outcome are on disk, and the first one is being fetched."""
    deferred = contents.deferred
    assert (contents.consumers.deferred is deferred.consumer) == bool(len(deferred))
    assert all(run.batch.data is None for run in deferred)
    line = deferred.consumer.in_flight
    assert line.keys[line.head :] == [run.sequence for run in deferred]
    assert sum(run.count for run in deferred) == sum(each.left for each in deferred._by_first.values())
    firsts = deferred._firsts
    assert firsts == sorted(deferred._by_first)
    for run in deferred:
        among = bisect_right(firsts, run.sequence)
        assert among == bisect_right(firsts, run.end - 1), f"{run} would have two outcomes"
    if len(deferred):
        assert any(run.sequence in contents.eviction.fetching for run in deferred), "nobody asked for it"


def _check_locked_once(contents: Contents) -> None:
    ranges = [(run.sequence, run.end) for run in contents.waiting()]
    for consumer in contents.consumers:
        ranges += [(run.sequence, run.end) for run in consumer.in_flight.runs[consumer.in_flight.head :]]
    ranges.sort()
    for (_, end), (start, _) in pairwise(ranges):
        assert end <= start, f"the message with sequence {start} is there twice"


def _check_deadlines(contents: Contents) -> None:
    assert not any(run.is_aside for run in contents.waiting()), "a message is ready that is set aside"
    delays = None if contents.special is None else contents.special.delays
    # They expire when they are due at the earliest, and leave the queue then.
    scheduled = set() if delays is None else delays.scheduled
    for run in contents.expiring():
        expires_at_ms = run.batch.expires_at_ms
        if expires_at_ms is None or run.sequence in contents.eviction.fetching or run.sequence in scheduled:
            continue
        covered = {
            sequence
            for time, first, last in contents.deadlines.heap
            if time <= expires_at_ms
            for sequence in range(max(first, run.sequence), min(last, run.end))
        }
        assert covered or run.batch.data is None, f"nobody will expire {run}"
        if run.batch.data is not None:
            assert len(covered) == run.count, f"nobody will expire some of {run}"


def _check_groups(contents: Contents) -> None:
    """Messages without a group, or of a group without an owner, are offered to all; others to the owner."""
    order = contents.deliveries.order
    if not isinstance(order, Groups) or order.loading:
        return
    for group in order.groups.values():
        assert group.in_flight >= 0
        assert group.foreign >= 0
        assert group.owner is not None or not group.in_flight, "messages with an owner who is none"
        assert group.owner is None or group.owner in contents.consumers.by_id, "the owner has left"


def _check_sessions(contents: Contents) -> None:
    """Each session is with one consumer, which has no messages of other groups; none is overlooked."""
    order = contents.deliveries.order
    bound = [each for each in contents.consumers.by_id.values() if each.options.is_session]
    if not isinstance(order, Sessions):
        assert not bound, "a consumer has a session of a queue without groups"
        return
    sessions = {group.owner: group for group in order.groups.values() if group.is_session}
    assert set(sessions) == {each.id for each in bound if each.options.session is not None}
    for consumer in bound:
        assert not consumer.lock_ms
        assert consumer.id not in sessions or list(order._owned[consumer.id]) == [sessions[consumer.id]]
    for group in order._free:
        assert group.owner is None, "an available session has an owner"
    if not (order.loading or order._touched):
        for group in order.groups.values():
            is_available = group.owner is None and group.ready and not group.foreign
            assert not is_available or group in order._free or not may_be_session(group), "it is overlooked"
    if not order.loading:
        stored = sorted([*order.outdated, *(each.sequence for each in order.states.values())])
        assert stored == [each for run in contents.states for each in range(run.sequence, run.end)]
    assert set(order._ends) <= set(sessions)
    ends = {identity: min(end for end, each in order._heap if each == identity) for identity in order._ends}
    assert all(end_ms <= order._ends[identity] for identity, end_ms in ends.items()), "a lock without an end"


def _check_locks(contents: Contents) -> None:
    """Each delivery with a timed lock has an entry that ends it."""
    heap = contents.locks.heap
    for consumer in contents.consumers:
        ranges = sorted((first, last) for _, identity, first, last in heap if identity == consumer.id)
        line = consumer.in_flight
        for key, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True):
            is_departed = consumer.departed and consumer.ends is not None and consumer.session_of is None
            is_locked = consumer.lock_ms or consumer is contents.consumers.retries or is_departed
            for number in range(key, key + run.count) if is_locked else ():
                assert any(first <= number < last for first, last in ranges), f"{number} is locked for ever"


def _check_bounds(contents: Contents) -> None:
    policy = contents.policy
    if policy.overflow == "discard_existing" and contents.ready.count:
        waiting = contents.ready.runs[contents.ready.head].sequence in contents.eviction.fetching
        assert policy.max_length is None or contents.held <= policy.max_length or waiting
        assert policy.max_bytes is None or contents.held_bytes <= policy.max_bytes or waiting


def _check_line(line: Line) -> None:
    assert len(line.keys) == len(line.runs)
    assert 0 <= line.head <= len(line.runs)
    end = -1
    for key, run in zip(line.keys[line.head :], line.runs[line.head :], strict=True):
        if run is GONE:
            continue
        assert key >= end, f"key {key} lies in the run before it"
        _check_run(run)
        end = key + run.count


def _check_run(run: Run) -> None:
    batch = run.batch
    assert 0 <= run.first < run.last <= batch.count, f"{run} is no part of its batch"
    assert run.attempts >= 0
    assert batch.data is None or batch.ends is not None
    if batch.ends is not None:
        assert len(batch.ends) == batch.count
        assert batch.ends[-1] == batch.size
    if batch.data is not None:
        assert batch.base + batch.size <= len(batch.data)
