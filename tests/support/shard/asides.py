"""Queues with messages that are deferred, or that wait after a failure, in memory and on disk."""

from lightrail.shard.queue.values.commands import Enqueue, Fetched, Outcome, OutcomeKind, Settle, Tick
from lightrail.shard.queue.values.effects import Effect
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.shard.checked_queue import Bench, Checked, PlainBench, payloads

DEFER = Outcome(OutcomeKind.MODIFIED, defers=True)


def on_disk(policy: Policy, **attributes: object) -> Bench:
    """Two deferred messages that are only on disk."""
    bench = Bench(policy)
    messages = [f"key={number} group=a " + "x" * 2_000 for number in range(2)]
    batch = batch_of(
        [message.encode() for message in messages],
        durable=True,
        enqueued_at_ms=bench.now,
        location=Location(1, 0, 5_000),
        **attributes,  # type: ignore[arg-type]
    )
    bench.do(Enqueue(batch))
    bench.consumer(1)
    bench.dispatch()
    bench.do(Settle(1, 0, 2, DEFER))
    bench.machine.footprint.evict(10_000)
    assert bench.machine.contents.deliveries.evicted_count == 2
    return bench


WAIT = Policy(max_delivery_count=4, retry_delay_ms=100, retry_growth=2, retry_delay_max_ms=250)


IN_GROUPS = Policy(groups=True, retry_delay_ms=100)


def failing(*messages: bytes, policy: Policy = WAIT, **attributes: object) -> PlainBench:
    """A queue whose consumer 1 has got the messages, and more credit."""
    bench = PlainBench(policy=policy)
    bench.put(*messages, **attributes)
    bench.consumer(1)
    bench.dispatch()
    return bench


def at(bench: Checked, now: int) -> list[bytes]:
    bench.now = now
    return payloads(bench.do(Tick()) + bench.dispatch())


def evicted(bench: Checked) -> None:
    for run in bench.machine.contents.runs():
        run.batch.location = run.batch.location or Location(1, run.sequence, 1)
    bench.machine.footprint.evict(1 << 20)


def fetch(bench: Checked, messages: dict[int, bytes], effects: list[Effect]) -> list[Effect]:
    """Answers the fetches among these effects."""
    found: list[Effect] = []
    for effect in effects:
        run = getattr(effect, "run", None)
        if type(effect).__name__ == "Fetch" and run is not None:
            batch = batch_of([messages[each] for each in range(run.sequence, run.end)])
            batch.expires_at_ms = run.batch.expires_at_ms
            found += bench.do(Fetched(run.sequence, [Run(batch, 0, run.count, run.sequence)]))
    return found


def outcome(text: str) -> Outcome:
    return Outcome(OutcomeKind.MODIFIED, delivery_failed=True, annotations=text.encode())
