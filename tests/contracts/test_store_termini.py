"""Termini and receivers that stores keep over restarts, on the journal and SQLite, and their cleaning."""

from pathlib import Path
from typing import Any

import pytest

from lightrail.journal.record import (
    DeliveryRun,
    Queue,
    QueueEvent,
    ReceiverChange,
    ReceiverEvent,
    Terminus,
    TerminusEvent,
)
from lightrail.model import limits
from lightrail.shard.journal import small_records
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store
from lightrail.shard.queue.values.runs import batch_of
from tests.contracts.stores import ALL, DURABLE, Make, again, commit, declare, opened, sqlite
from tests.support.shard.fake_files import FakeFiles

LINKS = [bytes([number]) * 16 for number in range(3)]


def change(store: Store, event: TerminusEvent, *tags: bytes, link: int = 0, queue: int = 1) -> None:
    user = "ann" if event is TerminusEvent.BEGUN else ""
    store.append(Terminus(queue, LINKS[link], event, 2, 60_000, tags, user=user), 1_000)


@DURABLE
def test_termini_come_back_as_long_as_they_and_their_queue_are_there(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    declare(store, 2)
    for link in range(3):
        change(store, TerminusEvent.BEGUN, link=link)
    change(store, TerminusEvent.STORED, b"a", b"b", b"c")
    change(store, TerminusEvent.SETTLED, b"b", b"unknown")
    change(store, TerminusEvent.STORED, b"a")
    change(store, TerminusEvent.STORED, b"x", link=1)
    change(store, TerminusEvent.ENDED, link=1)
    change(store, TerminusEvent.BEGUN, b"y", queue=2)
    store, recovered = again(store, make, tmp_path)
    assert [sorted(queue.termini) for queue in recovered.queues] == [
        [(LINKS[0], 2, 60_000, [b"c", b"a"], "ann"), (LINKS[2], 2, 60_000, [], "ann")],
        [(LINKS[0], 2, 60_000, [b"y"], "ann")],
    ]
    change(store, TerminusEvent.STORED, b"d")
    store.append(Queue(QueueEvent.DELETED, 2, ""), 1_000)
    declare(store, 2)
    store, recovered = again(store, make, tmp_path)
    found = [sorted(queue.termini) for queue in recovered.queues]
    kept = [(LINKS[0], 2, 60_000, [b"c", b"a", b"d"], "ann"), (LINKS[2], 2, 60_000, [], "ann")]
    assert found == [kept, []]
    store.close()


@DURABLE
def test_only_ends_of_termini_are_not_synced_for_themselves(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    commit(store)
    for event, synced in (
        (TerminusEvent.BEGUN, True),
        (TerminusEvent.STORED, True),
        (TerminusEvent.SETTLED, True),
        (TerminusEvent.ENDED, False),
    ):
        change(store, event, b"a")
        begun = store.begin_commit()
        assert begun.synced == synced, event
        begun.perform()
        store.end_commit(begun)
    store.close()


@DURABLE
def test_of_a_terminus_the_latest_tags_come_back(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSETTLED_TAGS_MAX", 2)
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    change(store, TerminusEvent.STORED, b"a", b"b", b"c")
    change(store, TerminusEvent.STORED, b"d")
    monkeypatch.setattr(limits, "UNSETTLED_TAGS_MAX", 10)
    store, recovered = again(store, make, tmp_path)
    (terminus,) = recovered.queues[0].termini
    assert terminus.tags[-2:] == [b"c", b"d"]
    assert make is not sqlite or len(terminus.tags) == 2
    store.close()


@DURABLE
def test_a_terminus_of_an_unknown_queue_is_refused(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    with pytest.raises(ValueError, match="was not declared"):
        change(store, TerminusEvent.BEGUN)
    store.close()


def test_termini_are_written_again_before_their_segment_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those with so many tags that it takes several turns."""
    monkeypatch.setattr(small_records, "TERMINI_MOVED_TAGS", 5)
    files = FakeFiles()
    journal = Journal(files, "c", 0, segment_bytes=1_500)
    journal.recover(0)
    declare(journal, 1)
    tags = {link: [b"%d-%d" % (link, number) for number in range(4)] for link in range(3)}
    for link in range(3):
        change(journal, TerminusEvent.BEGUN, link=link)
        change(journal, TerminusEvent.STORED, *tags[link], link=link)
    change(journal, TerminusEvent.SETTLED, tags[0].pop(0))
    journal.flush()
    calls = 0
    for _ in range(3):
        journal.seal(1)
        journal.flush()
        segments = len(journal.segments())
        while len(journal.segments()) == segments:
            journal.drop(journal.segments()[0].number, 1)
            journal.flush()
            calls += 1
    assert calls == 6
    journal.append(Append([(1, 0)], 0, 0, batch_of([b"m"], durable=True), 0, 1))
    journal.flush()
    journal = Journal(files.after_crash(0, "none"), "c", 0, segment_bytes=1_500)
    recovered = journal.recover(ALL)
    assert recovered.queues[0].termini == [(LINKS[link], 2, 60_000, tags[link], "ann") for link in range(3)]
    journal.close()


def clean(journal: Journal) -> int:
    """Drops segments as long as the journal wants it; returns how many."""
    count = 0
    while (oldest := journal.oldest_to_clean()) is not None:
        before = len(journal.segments())
        journal.drop(oldest, 1)
        journal.flush()
        count += before - len(journal.segments())
        assert count < 50, "it never ends"
    return count


def test_termini_that_fill_many_segments_are_live_and_not_written_again_for_ever() -> None:
    files = FakeFiles()
    journal = Journal(files, "c", 0, segment_bytes=1_500)
    journal.recover(0)
    declare(journal, 1)
    digits = [number.to_bytes(16, "little") for number in range(100)]
    for link in digits:
        journal.append(Terminus(1, link, TerminusEvent.BEGUN, 2, 60_000, [b"a" * 32]), 1)
        journal.flush()
    clean(journal)
    for _ in range(5):
        journal.seal(1)
        journal.flush()
        clean(journal)
    live = journal.usage().live_bytes
    assert len(journal.segments()) > 5
    assert live > 100 * 60
    journal.flush()
    journal = Journal(files.after_crash(0, "none"), "c", 0, segment_bytes=1_500)
    recovered = journal.recover(ALL)
    assert len(recovered.queues[0].termini) == 100
    assert journal.usage().live_bytes == live
    for link in digits:
        journal.append(Terminus(1, link, TerminusEvent.ENDED, 2, 60_000), 1)
    journal.flush()
    clean(journal)
    assert journal.usage().live_bytes == 0
    assert len(journal.segments()) < 3
    journal.close()


def test_a_deleted_queue_releases_the_bytes_of_its_termini() -> None:
    journal = Journal(FakeFiles(), "c", 0, segment_bytes=1_500)
    journal.recover(0)
    declare(journal, 1)
    change(journal, TerminusEvent.STORED, b"a")
    assert journal.usage().live_bytes > 0
    journal.append(Queue(QueueEvent.DELETED, 1, ""))
    assert journal.usage().live_bytes == 0
    journal.close()


def receive(
    store: Store, event: ReceiverEvent, *runs: DeliveryRun, link: int = 0, queue: int = 1, **fields: Any
) -> None:
    store.append(ReceiverChange(queue, LINKS[link], event, runs=runs, **fields), 1_000)


@DURABLE
def test_receivers_come_back_as_long_as_they_and_their_queue_are_there(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    declare(store, 2)
    for link in range(3):
        receive(store, ReceiverEvent.BEGUN, link=link, opening=b"{}")
    receive(store, ReceiverEvent.DELIVERED, (0, 10, 5), next=5)
    receive(store, ReceiverEvent.DELIVERED, (5, 15, 3), next=8)
    receive(store, ReceiverEvent.SETTLED, (1, 11, 1), (4, 14, 2), next=8)
    receive(store, ReceiverEvent.DELIVERED, (8, 11, 1), next=9)
    receive(store, ReceiverEvent.DELIVERED, (0, 1, 1), link=1, next=1)
    receive(store, ReceiverEvent.ENDED, link=1)
    receive(store, ReceiverEvent.DELIVERED, (0, 1, 1), link=1, next=1)
    receive(store, ReceiverEvent.BEGUN, (3, 4, 5), queue=2, opening=b"{2}", next=8)
    store, recovered = again(store, make, tmp_path)
    first = (LINKS[0], 9, b"{}", [(0, 10, 1), (2, 12, 2), (6, 16, 2), (8, 11, 1)])
    assert [sorted(queue.receivers) for queue in recovered.queues] == [
        [first, (LINKS[2], 0, b"{}", [])],
        [(LINKS[0], 8, b"{2}", [(3, 4, 5)])],
    ]
    receive(store, ReceiverEvent.BEGUN, link=2, opening=b"{other}")
    store.append(Queue(QueueEvent.DELETED, 2, ""), 1_000)
    declare(store, 2)
    store, recovered = again(store, make, tmp_path)
    found = [sorted(queue.receivers) for queue in recovered.queues]
    assert found == [[first, (LINKS[2], 0, b"{other}", [])], []]
    store.close()


@DURABLE
def test_only_the_beginning_and_the_deliveries_of_receivers_are_synced(make: Make, tmp_path: Path) -> None:
    store, _ = opened(make, tmp_path)
    declare(store, 1)
    commit(store)
    for event, synced in (
        (ReceiverEvent.BEGUN, True),
        (ReceiverEvent.DELIVERED, True),
        (ReceiverEvent.SETTLED, False),
        (ReceiverEvent.ENDED, False),
    ):
        receive(store, event, (0, 0, 1))
        begun = store.begin_commit()
        assert begun.synced == synced, event
        begun.perform()
        store.end_commit(begun)
    store.close()


def test_receivers_are_written_again_before_their_segment_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(small_records, "TERMINI_MOVED_TAGS", 2)
    files = FakeFiles()
    journal = Journal(files, "c", 0, segment_bytes=1_500)
    journal.recover(0)
    declare(journal, 1)
    for link in range(3):
        receive(journal, ReceiverEvent.BEGUN, (0, 10 * link, 5), link=link, opening=b"{}", next=5)
    receive(journal, ReceiverEvent.SETTLED, (0, 0, 2))
    journal.flush()
    live = journal.usage().live_bytes
    assert live > 0
    for _ in range(3):
        journal.seal(1)
        journal.flush()
        segments = len(journal.segments())
        while len(journal.segments()) == segments:
            journal.drop(journal.segments()[0].number, 1)
            journal.flush()
    journal = Journal(files.after_crash(0, "none"), "c", 0, segment_bytes=1_500)
    recovered = journal.recover(ALL)
    assert recovered.queues[0].receivers == [
        (LINKS[0], 5, b"{}", [(2, 2, 3)]),
        (LINKS[1], 5, b"{}", [(0, 10, 5)]),
        (LINKS[2], 5, b"{}", [(0, 20, 5)]),
    ]
    for link in range(3):
        receive(journal, ReceiverEvent.ENDED, link=link)
    assert journal.usage().live_bytes == 0
    journal.close()
