"""Duplicates: which messages of a batch are new, within the window and among each other."""

from collections.abc import Callable
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.shard.queue.timed.duplicates import DIGEST_BYTES, Duplicates, digest_of
from lightrail.shard.queue.values.runs import Batch, batch_of


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
