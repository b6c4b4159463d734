"""Live spans against a plain dictionary of messages."""

import random

from lightrail.model import limits
from lightrail.shard.journal.batches import lay_over
from lightrail.shard.journal.live import LiveSpans
from lightrail.shard.queue.values.runs import Run, batch_of

PLAIN = (1, 4, 0, 0)


def as_messages(live: LiveSpans) -> dict[int, tuple[int, int]]:
    messages = {}
    before = -1
    for span in live.spans():
        assert before <= span.first < span.last
        before = span.last
        for sequence in range(span.first, span.last):
            messages[sequence] = (span.segment, span.attempts)
    return messages


def test_spans_say_what_a_dictionary_of_messages_says() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        live = LiveSpans()
        model: dict[int, tuple[int, int]] = {}
        following, offset = 0, 0
        for _ in range(300):
            count = chance.randint(1, 6)
            what = chance.random()
            if what < 0.5:
                segment = offset // 1_000
                live.add(following, following + count, segment, offset, offset + 30, count * 5, 0, PLAIN, 1)
                model.update({following + index: (segment, 0) for index in range(count)})
                following += count
                offset += 30
                continue
            first = chance.randint(0, following) if chance.random() < 0.5 else min(model, default=0)
            if what < 0.7:
                live.remove(first, first + count)
                for sequence in range(first, first + count):
                    model.pop(sequence, None)
            elif what < 0.85:
                live.set_attempts(first, first + count, seed)
                for sequence in range(first, first + count):
                    if sequence in model:
                        model[sequence] = (model[sequence][0], seed)
            elif first + count <= following:
                live.add(first, first + count, 77, offset, offset + 30, count * 5, 2, PLAIN, 1)
                model.update(dict.fromkeys(range(first, first + count), (77, 2)))
                offset += 30
            assert as_messages(live) == model
            low = chance.randint(0, following)
            found = live.overlapping(low, low + 3)
            assert {span.first for span in found} == {
                span.first for span in live.spans() if span.first < low + 3 and span.last > low
            }


def test_neighbours_are_joined_up_to_a_bound() -> None:
    live = LiveSpans()
    for number in range(10_000):
        live.add(number, number + 1, 1, number * 1_000, number * 1_000 + 1_000, 900, 0, PLAIN, 1)
    spans = live.spans()
    assert 9 <= len(spans) <= 11
    assert all(span.end - span.offset <= limits.SPAN_BYTES_MAX for span in spans)
    assert sum(span.size for span in spans) == 9_000_000
    other = (1, 9, 0, 0)
    live.add(10_000, 10_001, 1, 10_000_000, 10_000_010, 9, 0, other, 1)
    assert len(live.spans()) == len(spans) + 1


def test_settlements_from_the_head_leave_nothing_behind() -> None:
    live = LiveSpans()
    for number in range(5_000):
        live.add(number * 2, number * 2 + 1, 1, number, number + 1, 9, 0, PLAIN, 1)
    for number in range(4_990):
        live.remove(number * 2, number * 2 + 1)
    assert len(live.spans()) == 10
    assert len(live._spans) < 4_000


def test_runs_that_are_laid_over_others() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        runs: list[Run] = []
        model: dict[int, bytes] = {}
        for number in range(12):
            first, count = chance.randint(0, 20), chance.randint(1, 8)
            bodies = [f"{number}/{index}".encode() for index in range(count)]
            lay_over(runs, Run(batch_of(bodies), 0, count, first))
            model.update({first + index: body for index, body in enumerate(bodies)})
            found = [
                (run.sequence + index, body) for run in runs for index, body in enumerate(run.messages())
            ]
            assert found == sorted(model.items())
