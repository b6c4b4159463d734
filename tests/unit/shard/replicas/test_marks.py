"""A commit is accepted when the owner and all required members have it, never before, and in order."""

from lightrail.shard.replicas.marks import Marks


def ended(marks: Marks[str], *commits: tuple[int, str]) -> list[str]:
    for lsn, commit in commits:
        marks.ended(lsn, commit)
    return marks.take_accepted()


def test_without_other_members_a_commit_is_accepted_at_once() -> None:
    assert ended(Marks(), (3, "a"), (5, "b")) == ["a", "b"]


def test_the_last_of_the_required_members_accepts_a_commit() -> None:
    marks: Marks[str] = Marks(frozenset({"b", "c"}))
    assert ended(marks, (3, "a"), (5, "b"), (9, "c")) == []
    marks.synced("b", 9)
    assert marks.take_accepted() == []
    marks.synced("c", 5)
    assert marks.take_accepted() == ["a", "b"]
    marks.synced("c", 9)
    assert marks.take_accepted() == ["c"]
    assert marks.take_accepted() == []


def test_a_member_that_has_half_of_a_commit_does_not_accept_it() -> None:
    marks: Marks[str] = Marks(frozenset({"b"}))
    assert ended(marks, (3, "a"), (9, "b")) == []
    marks.synced("b", 8)
    assert marks.take_accepted() == ["a"]


def test_what_a_member_has_before_its_owner_waits_for_the_owner() -> None:
    marks: Marks[str] = Marks(frozenset({"b"}))
    marks.synced("b", 9)
    assert marks.take_accepted() == []
    assert ended(marks, (9, "a")) == ["a"]


def test_while_a_change_is_unknown_the_members_of_both_sets_are_required() -> None:
    marks: Marks[str] = Marks(frozenset({"b", "c"}))
    marks.synced("b", 9)
    marks.require({"b", "c"}, {"b"})
    assert ended(marks, (9, "a")) == []
    marks.require({"b"})
    assert marks.take_accepted() == ["a"]


def test_a_member_is_required_from_then_on_with_what_it_has() -> None:
    marks: Marks[str] = Marks()
    marks.synced("b", 3)
    assert ended(marks, (5, "a")) == ["a"]
    marks.require({"b"})
    assert ended(marks, (7, "b")) == []
    marks.synced("b", 7)
    assert marks.take_accepted() == ["b"]


def test_a_member_whose_disk_was_set_back_accepts_what_it_fetches_again() -> None:
    marks: Marks[str] = Marks(frozenset({"b", "c"}))
    marks.synced("b", 9)
    marks.synced("b", 4)
    marks.synced("c", 9)
    assert ended(marks, (9, "a")) == []
    marks.synced("b", 9)
    assert marks.take_accepted() == ["a"]
