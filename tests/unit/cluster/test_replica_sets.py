"""Replica sets: which changes the entry of a shard allows, and that each is guarded."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.cluster import replica_sets
from lightrail.cluster.coordinator import ConflictError, CoordinatorError
from lightrail.cluster.entries import Entry
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.replica_sets import (
    MEMBERS_MAX,
    PROMOTED_MAX,
    UNSEEN_EPOCHS,
    ReplicaSet,
    SetMember,
    SetRefusedError,
    first,
)

THREE = ReplicaSet(
    4, 7, "a", frozenset("ab"), {each: SetMember(f"host-{each}") for each in "abc"}, 3, 2, revision=9
)


def test_an_entry_is_read_as_it_was_written_and_fields_of_later_programs_are_ignored() -> None:
    entry = Entry("replicas/4", THREE.encode().replace("{", '{"later":{"x":1},', 1), 3, 9)
    found = ReplicaSet.decode(entry)
    assert (found, found.revision) == (THREE, 9)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        '{"epoch":1}',
        THREE.encode().replace('"owner":"a"', '"owner":"d"'),
        THREE.encode().replace('["a","b"]', '["a","d"]'),
    ],
)
def test_an_entry_that_contradicts_itself_is_an_error_with_its_key(value: str) -> None:
    with pytest.raises(CoordinatorError, match="replicas/4"):
        ReplicaSet.decode(Entry("replicas/4", value, 3, 9))


def test_a_take_over_changes_owner_and_epoch_and_never_the_set() -> None:
    found = THREE.taken_over("b", "elsewhere")
    assert (found.epoch, found.owner, found.in_sync) == (8, "b", THREE.in_sync)
    assert found.members["b"].host == "elsewhere"


def test_a_claim_after_etcd_was_set_back_has_nobody_in_sync_and_an_epoch_that_no_owner_had() -> None:
    found = THREE.reclaimed("c", "elsewhere", 9)
    assert (found.epoch, found.owner, found.in_sync) == (10 + UNSEEN_EPOCHS, "c", frozenset())
    assert found.members["c"].host == "elsewhere"
    assert ReplicaSet.decode(Entry(found.key, found.encode(), 1, 9)) == found
    # The next one goes on from there, with a journal of any epoch.
    again = found.reclaimed("a", "", 7)
    assert (again.epoch, again.owner, again.in_sync) == (11 + UNSEEN_EPOCHS, "a", frozenset())
    # The owner is in sync with the first member that it adds, or alone.
    assert again.added("b").in_sync == frozenset("ab")
    assert again.added("a").in_sync == frozenset("a")


def test_while_nobody_is_known_to_be_in_sync_each_member_may_have_everything() -> None:
    assert THREE.with_everything == frozenset("ab")
    assert THREE.reclaimed("c", "", 9).with_everything == frozenset("abc")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda found: found.reclaimed("c", "", 7), "a later epoch than 7 .* are known .a, b., found one of"),
        (lambda found: found.reclaimed("d", "", 9), "expected a member of shard 4 .a, b, c., found d"),
        (lambda found: found.taken_over("c", ""), "a member in sync .a, b."),
        (lambda found: found.removed("a"), "let another member take over first"),
        (lambda found: found.removed("b"), "at least 2 members of shard 4 in sync, found 1 without b"),
        (lambda found: found.added("d"), "found d: it has been removed"),
        (lambda found: found.joined("d", "host-d"), "fewer than 3 members"),
        (lambda found: found.left("b"), "out of sync"),
        (lambda found: found.sized(2, 3), "min_in_sync 3 and replicas 2"),
        (lambda found: found.sized(MEMBERS_MAX + 1, 2), f"replicas <= {MEMBERS_MAX}"),
        (lambda found: found.promoted("c", "a"), "to be named as lost, found b"),
        (lambda found: found.promoted("d", "ab"), "found d"),
        (lambda found: found.promoted("c", "abx"), "found x"),
        (lambda found: found.promoted("a", "b"), "found a, which is in sync: start it"),
        (lambda found: found.promoted("c", "abc"), "found c, which is lost"),
        (
            lambda found: replace(found, epoch=PROMOTED_MAX).promoted("c", "ab"),
            f"up to {PROMOTED_MAX}, found {PROMOTED_MAX + 1}",
        ),
        (lambda found: found.joined("d", "host-a"), "distinct hosts, found a on host-a already, in sync"),
        (lambda found: found.joined("d", "host-c", "c"), "found c on host-c already, running"),
    ],
)
def test_a_change_that_breaks_a_promise_is_refused_with_what_to_do(change: Any, expected: str) -> None:
    with pytest.raises(SetRefusedError, match=expected):
        change(THREE)


def test_a_promoted_member_alone_is_in_sync_and_later_owners_know_the_epoch_of_the_promotion() -> None:
    promoted = THREE.promoted("c", "ab")
    assert (promoted.epoch, promoted.owner, promoted.in_sync) == (8, "c", frozenset("c"))
    assert promoted.members == THREE.members
    later = promoted.taken_over("c", "host-c").sized(3, 1).added("b").taken_over("b", "host-b").removed("c")
    assert (later.epoch, later.promoted_in) == (10, 8)
    assert ReplicaSet.decode(Entry("replicas/4", later.encode(), 1, 1)).promoted_in == 8
    assert later.promoted("a", "b").promoted_in == 11
    # Etcd was set back: journals know later epochs, and owners that nobody asked may know later ones still.
    assert THREE.promoted("c", "ab", 9).promoted_in == 9 + 1 + UNSEEN_EPOCHS
    assert THREE.promoted("c", "ab", 7) == promoted
    # Programs that know no promotions wrote, and read, the same entry.
    assert "promoted" not in THREE.encode()


def test_a_new_directory_replaces_the_lost_one_of_its_host() -> None:
    assert THREE.joined("d", "host-c").members.keys() == set("abd")


def test_a_set_below_a_raised_minimum_shrinks_no_further() -> None:
    raised = THREE.sized(3, 3)
    assert raised.in_sync == THREE.in_sync
    with pytest.raises(SetRefusedError):
        raised.removed("b")
    assert raised.added("c").in_sync == frozenset("abc")


def test_a_member_withdraws_below_the_minimum_and_as_the_owner_and_not_as_the_last_one() -> None:
    assert THREE.handed_over("b").withdrawn("b") == replace(THREE, in_sync=frozenset("a"))
    found = THREE.withdrawn("a")
    assert (found.owner, found.epoch, found.in_sync) == ("a", THREE.epoch, frozenset("b"))
    assert found.taken_over("b", "host-b").in_sync == frozenset("b")
    assert THREE.withdrawn("c") == THREE
    with pytest.raises(SetRefusedError, match="expected another member of shard 4 in sync, found b alone"):
        found.withdrawn("b")


CHANGES = st.one_of(
    st.tuples(st.sampled_from(["taken_over", "joined"]), st.sampled_from("abcde"), st.sampled_from("xyz")),
    st.tuples(st.sampled_from(["removed", "added", "left", "withdrawn"]), st.sampled_from("abcde")),
    st.tuples(st.just("sized"), st.integers(0, MEMBERS_MAX + 1), st.integers(0, 4)),
)


@given(st.lists(CHANGES, max_size=25))
def test_no_sequence_of_changes_leaves_a_contradiction(changes: list[tuple[Any, ...]]) -> None:
    found = first(1, "a", "x", replicas=3, min_in_sync=1)
    for name, *arguments in changes:
        try:
            changed = getattr(found, name)(*arguments)
        except SetRefusedError:
            continue
        read = ReplicaSet.decode(Entry("replicas/1", changed.encode(), 1, 1))
        assert read == changed
        assert frozenset() < changed.in_sync <= changed.members.keys()
        assert changed.owner in changed.members
        if found.owner in found.in_sync and name != "withdrawn":
            assert changed.owner in changed.in_sync
        assert changed.epoch == found.epoch + (name == "taken_over")
        if len(changed.in_sync) < len(found.in_sync):
            assert name in ("removed", "withdrawn")
            assert name == "withdrawn" or len(changed.in_sync) >= found.min_in_sync
        found = changed


def test_of_two_changes_from_one_revision_one_fails() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        begun = first(1, "a", "x", replicas=2, min_in_sync=1)
        await coordinator.write([begun.write_of(begun.joined("b", "y").added("b"))])
        entry = await coordinator.entry(replica_sets.key_of(1))
        assert entry is not None
        found = ReplicaSet.decode(entry)
        await coordinator.write([found.write_of(found.taken_over("b", "y"))])
        with pytest.raises(ConflictError):
            await coordinator.write([found.write_of(found.removed("b"))])
        await coordinator.close()

    asyncio.run(run())


def test_a_registration_of_a_follower_is_below_its_shard() -> None:
    assert replica_sets.follower_key(4, "b") == "followers/4/b"


def test_a_hand_over_names_its_successor_until_somebody_owns() -> None:
    found = THREE.handed_over("b")
    assert (found.owner, found.epoch, found.in_sync) == (THREE.owner, THREE.epoch, THREE.in_sync)
    assert ReplicaSet.decode(Entry("replicas/4", found.encode(), 3, 9)).successor == "b"
    assert found.taken_over("b", "").successor == ""
    # Programs that know no hand-over read what they have always read.
    assert "successor" not in THREE.encode()
    for member in "acd":
        with pytest.raises(SetRefusedError, match=r"another member of shard 4 that is in sync \(b\), found"):
            THREE.handed_over(member)
