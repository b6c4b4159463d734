"""Loading: after a restart a queue that reads its messages delivers none before it has read all."""

from lightrail.shard.queue.values.commands import Fetched, Restore
from lightrail.shard.queue.values.effects import Fetch
from lightrail.shard.queue.values.runs import Location, Run, batch_of
from tests.support.now import now
from tests.support.shard.checked_queue import SORTED, Bench


def test_a_queue_that_reads_messages_waits_for_all_of_them_after_a_restart() -> None:
    bench = Bench(SORTED)
    gone = batch_of([b"key=1", b"key=5"], durable=True, location=Location(1, 0, 50))
    lost = batch_of([b"key=0"], durable=True, location=Location(2, 0, 50))
    runs = [
        Run(batch_of([b"key=3"]), 0, 1, 0),
        Run(batch_of([b"key=1", b"key=5"], durable=True, location=Location(1, 0, 50)), 0, 2, 1),
        Run(lost, 0, 1, 3),
    ]
    for run in runs[1:]:
        run.batch.data = run.batch.ends = None
    bench.do(Restore(runs, 4))
    assert now(bench.machine.next_deadline_ms) == 0
    bench.consumer(1)
    bench.put("key=2")
    fetches = bench.dispatch()
    assert [effect.run.sequence for effect in fetches if isinstance(effect, Fetch)] == [1, 3]
    assert bench.machine.next_deadline_ms is None
    bench.do(Fetched(1, [Run(gone, 0, 2, 1)]))
    assert not bench.dispatch()
    bench.do(Fetched(3, [], damaged=True))
    assert bench.get() == ["key=1", "key=2", "key=3", "key=5"]


def test_after_a_restart_each_message_expires_in_its_time_wherever_it_lay_beside_others() -> None:
    bench = Bench(SORTED)

    def batches() -> list[Run]:
        return [
            Run(
                batch_of(
                    [b"key=1"], durable=True, location=Location(1, 50 * n, 50), expires_at_ms=1_010 + 10 * n
                ),
                *(0, 1, n),
            )
            for n in range(2)
        ]

    runs = batches()
    for run in runs:
        run.batch.data = run.batch.ends = None
    bench.do(Restore(runs, 2))
    bench.now = 1_010
    fetches = [effect.run for effect in bench.dispatch() if isinstance(effect, Fetch)]
    assert [(run.sequence, run.end) for run in fetches] == [(0, 2)]
    bench.do(Fetched(0, batches()))
    bench.dispatch()
    assert bench.machine.contents.counters.expired == 1
    assert bench.machine.next_deadline_ms == 1_020
    bench.now = 1_020
    bench.dispatch()
    assert bench.machine.contents.counters.expired == 2
