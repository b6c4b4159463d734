"""View: what others read of a queue agrees with its messages, and nobody else looks behind it."""

import ast
from pathlib import Path

import lightrail.shard
from lightrail.shard.queue.values.effects import Reason
from lightrail.shard.queue.values.policy import Policy
from tests.support.shard.checked_queue import DELAY, Bench, PlainBench
from tests.support.shard.mixed_queue import POLICIES, mixed, sequences

SHARD = Path(lightrail.shard.__file__).parent
BEHIND = {"contents", "outcomes", "locking", "_contents"}
"""What a machine keeps for itself."""


def reaches_behind(tree: ast.AST) -> list[int]:
    """Lines that read what is behind the door of a machine, or write what a view or its counters show."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in BEHIND:
            if ast.unparse(node.value).rpartition(".")[2].lstrip("_") == "machine":
                found.append(node.lineno)
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                words = ast.unparse(target).split(".")[:-1]
                if isinstance(target, ast.Attribute) and {"view", "counters"} & {*words}:
                    found.append(node.lineno)
    return found


def test_no_other_module_of_the_shard_reaches_behind_a_machine() -> None:
    modules = [path for path in SHARD.rglob("*.py") if SHARD / "queue" not in path.parents]
    assert len(modules) > 50
    found = {path.name: reaches_behind(ast.parse(path.read_text())) for path in modules}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_search_for_reaches_finds_them() -> None:
    for line in (
        "queue.machine.contents.ready",
        "machine.outcomes.returning",
        "queue.view.counters.refused += 1",
        "view.seen_to = 4",
    ):
        assert reaches_behind(ast.parse(line)) == [1], line
    assert reaches_behind(ast.parse("self.contents = archiver.contents; queue.view.held")) == []


@POLICIES
def test_runs_and_sums_agree_wherever_messages_are(policy: Policy) -> None:
    bench = mixed(policy)
    view = bench.machine.view
    assert sequences(view.runs) == [0, 1, 2, 3]
    assert sequences([run for run, _, _ in view.locked_runs(0, 4)]) == [0]
    assert (view.held, view.held_bytes, view.next_sequence) == (4, 37, 4)
    assert view.ready.count == sum(len(sequences(line.waiting())) for line in view.lines[:1])
    assert (view.deliveries.seen_to, view.in_flight_count, view.consumer_ids) == (1, 1, [1])
    assert view.reads_messages == policy.examines


def test_what_never_was_in_the_queue_is_counted_and_remembered(bench: PlainBench) -> None:
    machine = bench.machine
    machine.not_stored(refused=3, duplicates=2, dropped=1)
    counters = machine.view.counters
    assert (counters.refused, counters.duplicates, counters.dropped) == (3, 2, 1)
    assert (machine.view.held, machine.view.ids) == (0, [])
    assert Reason.PURGED not in counters.discarded


def test_only_deliveries_under_a_timed_lock_count_as_locked() -> None:
    bench = Bench(Policy())
    bench.put("a", "b", "c")
    bench.consumer(1, credit=2, lock_ms=50)
    bench.consumer(2, credit=1)
    bench.dispatch()
    assert bench.machine.view.locked_count == 2


def test_a_message_that_is_delayed_says_until_when() -> None:
    bench = Bench(DELAY)
    bench.put("delay=50 a", "b")
    delayed, ready = bench.machine.contents.delayed.waiting()[0], bench.machine.contents.ready.waiting()[0]
    assert bench.machine.view.due_ms(delayed) == bench.now + 50
    assert bench.machine.view.due_ms(ready) is None
