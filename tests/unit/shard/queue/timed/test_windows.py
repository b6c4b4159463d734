"""Duplicates: which messages of a batch are new, within the window and among each other."""

from collections.abc import Callable
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.shard.queue.timed.windows import DIGEST_BYTES, Duplicates, digest_of
from lightrail.shard.queue.values.commands import ACCEPTED, RELEASED, Enqueue, Settle, Tick
from lightrail.shard.queue.values.effects import DeadLetter, Reason, Removed
from lightrail.shard.queue.values.runs import Batch, batch_of
from tests.support.now import now
from tests.support.shard.checked_queue import PlainBench, payloads

HOUR_MS = 3_600_000


def test_a_tick_expires_on_time_also_behind_what_stays(bench: PlainBench) -> None:
    bench.put(b"stays")
    bench.put(b"late", expires_at_ms=200)
    bench.put(b"soon", expires_at_ms=100)
    assert bench.machine.next_deadline_ms == 100
    bench.now = 99
    assert not bench.do(Tick())
    bench.now = 100
    (effect,) = bench.do(Tick())
    assert isinstance(effect, DeadLetter)
    assert (effect.reason, effect.run.messages()) == (Reason.EXPIRED, [b"soon"])
    assert bench.machine.next_deadline_ms == 200
    bench.now = 200
    bench.consumer(1)
    effects = bench.dispatch()
    assert payloads(effects) == [b"stays"]
    assert any(isinstance(effect, DeadLetter) for effect in effects)
    assert bench.machine.next_deadline_ms is None


@pytest.mark.parametrize("hours", [1, 7])
def test_messages_that_were_delivered_leave_no_deadline_though_theirs_is_far_away(
    bench: PlainBench, hours: int
) -> None:
    """Nothing is due meanwhile, and no Tick comes; with one time to live, and with several in turn."""
    bench.consumer(1, credit=1_000_000)
    for index in range(8 * limits.STALE_ENTRIES_MIN):
        bench.put(b"x", expires_at_ms=index + HOUR_MS * (1 + index % hours))
        bench.dispatch()
        bench.do(Settle(1, index, index + 1, ACCEPTED))
        assert len(bench.machine.contents.deadlines.heap) <= limits.STALE_ENTRIES_MIN + 1


def test_a_deadline_that_was_forgotten_is_back_with_its_message(bench: PlainBench) -> None:
    bench.consumer(1, credit=2)
    bench.put(b"a", b"b", expires_at_ms=100)
    bench.dispatch()
    assert now(bench.machine.next_deadline_ms) is None
    bench.do(Settle(1, 0, 2, RELEASED))
    assert bench.machine.next_deadline_ms == 100
    bench.now = 100
    (expired,) = bench.do(Tick())
    assert isinstance(expired, DeadLetter)
    assert (expired.run.count, expired.reason) == (2, Reason.EXPIRED)


def test_what_is_in_flight_expires_when_it_comes_back(bench: PlainBench) -> None:
    bench.put(b"a", b"b", expires_at_ms=100)
    bench.consumer(1)
    bench.dispatch()
    bench.now = 150
    assert not bench.do(Tick(), Settle(1, 0, 1, RELEASED))
    (effect,) = bench.dispatch()
    assert isinstance(effect, DeadLetter)
    (removed,) = bench.do(Settle(1, 1, 2))
    assert isinstance(removed, Removed)


def test_settled_messages_leave_no_deadlines_behind(bench: PlainBench) -> None:
    bench.consumer(1, credit=1_000_000, presettled=True)
    for index in range(5_000):
        bench.machine.apply(Enqueue(batch_of([b"x"], expires_at_ms=1_000_000 + index)), index)
        bench.machine.dispatch(index)
    bench.now = 5_000
    bench.do(Tick())
    assert len(bench.machine.contents.deadlines.heap) < 1_000


def look(path: str) -> Callable[[bytes], Any]:
    """A message is its own id; `-` has none."""
    assert path == "message-id"
    return lambda message: None if message == b"-" else message.decode()


def batch(text: str) -> Batch:
    return batch_of([letter.encode() for letter in text])


def new(duplicates: Duplicates, text: str, now_ms: int) -> str:
    """The letters of a text that are no duplicates."""
    return "".join(text[each.at] for each in duplicates.fresh(batch(text), 0, len(text), now_ms))


def test_a_message_is_new_once_in_its_batch_and_in_the_window() -> None:
    duplicates = Duplicates(look)
    assert new(duplicates, "abca", 0) == "abc"
    duplicates.remember([digest_of("a"), digest_of("b")], 1_000)
    assert new(duplicates, "abc", 999) == "c"
    assert new(duplicates, "abc", 1_000) == "abc"
    assert len(duplicates) == 0


def test_a_message_without_an_id_is_always_new() -> None:
    duplicates = Duplicates(look)
    found = duplicates.fresh(batch("-a-"), 0, 3, 0)
    assert [(each.at, each.digest) for each in found] == [(0, None), (1, digest_of("a")), (2, None)]


def test_only_the_messages_that_were_asked_for_are_read() -> None:
    assert [each.at for each in Duplicates(look).fresh(batch("aab"), 1, 2, 0)] == [1]


def test_an_id_that_is_sent_again_later_is_remembered_until_its_later_time() -> None:
    duplicates = Duplicates(look)
    duplicates.remember([digest_of("a")], 1_000)
    duplicates.remember([digest_of("a")], 2_000)
    assert new(duplicates, "a", 1_500) == ""
    assert new(duplicates, "a", 2_000) == "a"


def test_no_more_ids_than_the_limit_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DUPLICATE_IDS_MAX", 3)
    duplicates = Duplicates(look)
    for id in "abcd":
        duplicates.remember([digest_of(id)], 5_000)
    assert len(duplicates) == 3
    assert new(duplicates, "abcd", 0) == "a"
    assert new(duplicates, "abcd", 5_000) == "abcd"
    assert len(duplicates) == 0


def test_what_a_store_kept_is_remembered_again() -> None:
    before, after = Duplicates(look), Duplicates(look)
    before.remember([digest_of("a"), digest_of("b")], 1_000)
    before.remember([digest_of("c")], 2_000)
    kept = list(before.groups())
    assert [(until_ms, len(column) // DIGEST_BYTES) for until_ms, column in kept] == [(1_000, 2), (2_000, 1)]
    after.restore(kept)
    assert new(after, "abcd", 500) == "d"
    assert new(after, "abcd", 1_000) == "abd"
