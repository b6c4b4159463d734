"""The view of etcd's entries: who follows it ends with exactly what is there, whatever it was fed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster.entries import Entry, News
from lightrail.cluster.etcd.view import View

KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("unseen"), st.booleans()),
        st.tuples(st.just("look"), st.integers(0, 2)),
    ),
    max_size=60,
)


class Follower:
    """What a process keeps of the news."""

    def __init__(self) -> None:
        self.known: dict[str, Entry] = {}
        self.revision = 0

    def look(self, view: View) -> None:
        news = view.news(self.revision)
        if news is None:
            return
        if news.whole:
            self.known = {}
        for entry in news.entries:
            self.known.pop(entry.key, None)
            if entry.value is not None:
                self.known[entry.key] = entry
        self.revision = news.revision


@given(STEPS, st.integers(1, 8))
def test_followers_end_with_what_is_there(steps: list[tuple[str, object]], changes_max: int) -> None:
    there: dict[str, Entry] = {}
    revision = 1
    view = View(changes_max)
    view.take_list([], revision)
    followers = [Follower() for _ in range(3)]
    seen = True
    for step, what in steps:
        if step == "look":
            followers[int(str(what))].look(view)
        elif step == "unseen":
            if not seen:
                # Away in between: everything is listed again.
                view.take_list(list(there.values()), revision)
            seen = bool(what)
        else:
            key = str(what)
            old = there.pop(key, None)
            revision += 1
            created = old.created if old is not None else revision
            if step == "put":
                there[key] = Entry(key, f"v{revision}", created, revision)
            if seen:
                value = there[key].value if step == "put" else None
                view.take_changes([(key, value, created if value else 0, revision)], revision)
    view.take_list(list(there.values()), revision)
    for follower in followers:
        follower.look(view)
        assert follower.known == there
        assert view.news(follower.revision) is None


def test_what_vanished_between_two_lists_is_a_deletion() -> None:
    view = View()
    view.take_list([Entry("a", "1", 2, 2), Entry("b", "1", 3, 3)], 3)
    assert view.take_list([Entry("b", "2", 3, 5)], 6) == [Entry("b", "2", 3, 5), Entry("a", None, 2, 6)]
    assert view.news(3) == News(6, [Entry("b", "2", 3, 5), Entry("a", None, 2, 6)], False)
    assert view.news(0) == News(6, [Entry("b", "2", 3, 5)], True)


def test_a_list_that_is_older_than_what_is_known_deletes_nothing() -> None:
    view = View()
    view.take_list([Entry("a", "1", 2, 8), Entry("b", "1", 9, 9)], 9)
    assert view.take_list([Entry("a", "0", 2, 2)], 3) == []
    assert view.news(9) is None
    assert view.news(0) == News(9, [Entry("a", "1", 2, 8), Entry("b", "1", 9, 9)], True)


@pytest.mark.parametrize("revision", [3, 8, 9, 10, 40])
def test_a_list_that_begins_a_new_history_is_read_as_a_whole_by_everybody(revision: int) -> None:
    view = View()
    view.take_list([Entry("a", "1", 8, 8)], 8)
    view.take_changes([("b", "1", 9, 9)], 9)
    view.take_list([Entry("a", "0", 2, 2)], revision, new_history=True)
    for since in (8, 9):
        found = view.news(since)
        assert found is not None
        assert (found.entries, found.whole) == ([Entry("a", "0", 2, 2)], True)
        # What followers are given goes on rising, so none takes the new history for what it has seen.
        assert found.revision > 9
        assert view.news(found.revision) is None
        before = found.revision
    view.take_changes([("c", "1", revision + 1, revision + 1)], revision + 1)
    assert view.news(before) == News(before + 1, [Entry("c", "1", revision + 1, revision + 1)], False)


def test_changes_that_are_forgotten_are_made_up_for_by_everything() -> None:
    view = View(2)
    view.take_list([], 1)
    for revision in range(2, 6):
        view.take_changes([("a", str(revision), 2, revision)], revision)
    assert view.news(2) == News(5, [Entry("a", "5", 2, 5)], True)
    assert view.news(4) == News(5, [Entry("a", "5", 2, 5)], False)
