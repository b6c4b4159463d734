"""Histories: what a coordinator that was set back lacks is not taken for deleted, and can be put back."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.entries import HISTORY, Entry
from lightrail.cluster.history import History, Version, begin, doubt, restoring
from lightrail.cluster.memory import MemoryCoordinator

KEYS = st.sampled_from(["names/a", "names/b", "placement/a", "shards/0"])
STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete"]), KEYS), min_size=1, max_size=12)


class Store:
    """What etcd keeps: all revisions, and which of them are forgotten."""

    def __init__(self) -> None:
        self.states: list[dict[str, Entry]] = [{}]
        self.forgotten = 0

    @property
    def revision(self) -> int:
        return len(self.states) - 1

    def step(self, what: str, key: str, writer: str) -> None:
        there = dict(self.states[-1])
        old = there.pop(key, None)
        revision = len(self.states)
        if what == "put":
            created = old.created if old is not None else revision
            there[key] = Entry(key, f"{writer}{revision}", created, revision)
        self.states.append(there)

    def set_back(self, revision: int) -> None:
        del self.states[revision + 1 :]

    def then(self, revision: int) -> list[Version] | None:
        if revision < self.forgotten or revision > self.revision:
            return None
        return [(each.key, each.created, each.revision) for each in self.states[revision].values()]

    def doubted(self, known: dict[str, Entry], known_at: int) -> str:
        now = list(self.states[-1].values())
        return doubt(known, known_at, now, self.revision, self.then(known_at))


@given(STEPS, STEPS)
def test_what_continues_is_believed(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> None:
    store = Store()
    for what, key in before:
        store.step(what, key, "first")
    known, known_at = store.states[-1], store.revision
    for what, key in after:
        store.step(what, key, "first")
    assert store.doubted(known, known_at) == ""


@given(STEPS, STEPS, st.integers(1, 12), st.booleans())
def test_nothing_that_was_lost_is_taken_for_deleted(
    before: list[tuple[str, str]], after: list[tuple[str, str]], lost: int, forgets: bool
) -> None:
    store = Store()
    for what, key in before:
        store.step(what, key, "first")
    known, known_at = store.states[-1], store.revision
    back = max(0, known_at - lost)
    store.set_back(back)
    for what, key in after:
        store.step(what, key, "second")
    if forgets:
        store.forgotten = store.revision
    there = store.states[-1]
    gone = [
        key
        for key, each in known.items()
        if key not in there and each.revision > back and "shards" not in key
    ]
    if gone or store.revision < known_at:
        assert store.doubted(known, known_at)


def test_a_deletion_in_forgotten_times_is_believed_where_something_as_late_is_still_there() -> None:
    a, b = Entry("names/a", "1", 5, 5), Entry("names/b", "1", 3, 6)
    assert doubt({"names/a": a, "names/b": b}, 7, [b], 20, None) == ""
    said = doubt({"names/a": a, "names/b": b}, 7, [a], 20, None)
    assert said == "names/b of revision 6 is missing, and nothing proves that it was deleted"


def test_what_a_coordinator_has_of_a_time_that_is_known_gives_it_away() -> None:
    other = Entry("names/x", "1", 4, 4)
    assert (
        doubt({}, 7, [other], 20, None) == "it has names/x of revision 4, which did not exist at revision 7"
    )
    assert doubt({}, 7, [], 6, None) == "it is at revision 6, and revision 7 was seen before"
    assert doubt({}, 7, [], 8, [("names/x", 4, 4)]) == "at revision 7 it had a different names/x than before"


def test_an_entry_of_the_same_revision_with_another_value_is_of_another_history() -> None:
    """As of a process that started before and after the restore: it has registered at the same revision."""
    before, after = Entry("followers/0/a", "tcp://a:1", 3, 6), Entry("followers/0/a", "tcp://a:2", 3, 6)
    for then in (None, [("followers/0/a", 3, 6)]):
        assert doubt({before.key: before}, 6, [before], 9, then) == ""
        said = doubt({before.key: before}, 6, [after], 9, then)
        assert said == "it has followers/0/a of revision 6, which differs from that known at revision 6"


def test_what_is_put_back_overwrites_nothing_that_is_newer_and_deletes_nothing() -> None:
    def entry(key: str, value: str, created: int, revision: int) -> Entry:
        return Entry(key, value, created, revision)

    known = [
        entry("names/lost", "n", 60, 60),
        entry("placement/lost", '{"shard":1,"epoch":0}', 61, 61),
        entry("placement/moved", '{"shard":0,"epoch":9,"lost":8}', 20, 70),
        entry("names/changed", "new", 10, 80),
        entry("names/same", "s", 11, 11),
        entry("names/made", "ours", 62, 62),
        entry("shards/0", "process", 63, 63),
        entry(HISTORY, History("h").encode(), 5, 5),
    ]
    there = [
        entry("placement/moved", '{"shard":1,"epoch":8}', 20, 30),
        entry("names/changed", "old", 10, 12),
        entry("names/same", "s", 11, 11),
        entry("names/made", "theirs", 52, 52),
        entry("names/deleted", "d", 13, 13),
    ]
    plan = restoring({each.key: each for each in known}, there)
    assert plan.writes == [
        Write("names/changed", "new", 12),
        Write("names/lost", "n", 0),
        # The epoch stays, though the revision that makes the entry will be another one.
        Write("placement/lost", '{"shard":1,"epoch":61}', 0),
        Write("placement/moved", '{"shard":0,"epoch":9,"lost":8}', 30),
    ]
    assert (plan.kept, plan.again) == (["names/made"], ["names/deleted"])


def test_who_knows_what_was_put_back_goes_on_and_nobody_else() -> None:
    accepted = History("new", "old", True)
    assert accepted.continues(History("old"))
    assert not accepted.continues(History("new"))
    assert not accepted.continues(History())
    assert not History("new", "old").continues(History("old"))
    assert History.decode(Entry(HISTORY, accepted.encode(), 1, 1)) == accepted
    assert History.decode(None) == History()
    with pytest.raises(CoordinatorError, match="history can't be read"):
        History.decode(Entry(HISTORY, "x", 1, 1))


def test_a_new_history_is_named_after_the_one_before() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        for _ in range(2):
            await begin(coordinator)
        found = await coordinator.entry(HISTORY)
        assert found is not None
        second = json.loads(found.value or "")
        assert second["follows"]
        assert second["follows"] != second["id"]
        assert not second["accepted"]

    asyncio.run(story())
