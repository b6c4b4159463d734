"""Taking over: which journals are compared before a claim, and before the first segment."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.replica_sets import UNSEEN_EPOCHS, ReplicaSet, SetMember
from lightrail.shard.replicas.candidate import Choice
from lightrail.shard.replication import taking_over
from lightrail.shard.replication.taking_over import TakingOver
from lightrail.telemetry.process import CannotServeError
from lightrail.wire.replication import Reach

MEMBERS = {each: SetMember(f"host-{each}") for each in "abc"}
OLDER = ReplicaSet(0, 2, "a", frozenset("a"), MEMBERS, 3, 2, revision=10)
"""What an etcd that was set back says to members whose journals are of epoch 3."""
OWN = Reach(3, 9)


class World:
    """Member "b", with others that answer by `reaches`; each pause lets one more of `later` answer."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, entry: ReplicaSet, reaches: Mapping[str, Reach]
    ) -> None:
        self.entry = entry
        self.reaches = dict(reaches)
        self.later: dict[str, Reach] = {}
        self.asked: list[tuple[set[str], int]] = []
        self.waited: list[str] = []
        process = SimpleNamespace(wait_for=self.waited.append)
        joining = SimpleNamespace(process=process, coordinator=self, own=SimpleNamespace(host="host-b"))
        followers = {(0, each): SimpleNamespace(address=each) for each in "abcd"}
        followers[1, "x"] = SimpleNamespace(address="x")
        self.map = SimpleNamespace(followers=followers, replica_sets={0: entry}, refresh=lambda: None)
        following = SimpleNamespace(reach=OWN)
        self.taking_over = TakingOver(joining, None, self.map, "b", following, self.pause)  # type: ignore[arg-type]
        monkeypatch.setattr(taking_over, "look_around", self.look_around)

    async def look_around(
        self, _: object, __: object, addresses: Mapping[str, str], epoch: int, ___: str
    ) -> list[Reach]:
        self.asked.append((set(addresses), epoch))
        return [reach for member, reach in self.reaches.items() if member in addresses]

    async def write(self, writes: list[Write]) -> int:
        (write,) = writes
        assert write.guard == self.entry.revision
        self.entry = ReplicaSet.decode(Entry(write.key, write.value, 1, 11))
        self.map.replica_sets[0] = self.entry
        return 11

    async def pause(self) -> None:
        assert self.later, "it waits for ever"
        member = next(iter(self.later))
        self.reaches[member] = self.later.pop(member)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_with_an_older_entry_all_that_run_are_asked_and_enough_of_them_let_the_member_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World(monkeypatch, OLDER, {"c": Reach(2, 7)})
        assert await world.taking_over.choose(OLDER, "") is Choice.CLAIM
        assert world.asked == [({"a", "c", "d"}, 0)]
        claimed = await world.taking_over.claim(OLDER)
        assert claimed == world.entry
        assert (claimed.epoch, claimed.owner, claimed.in_sync) == (4 + UNSEEN_EPOCHS, "b", frozenset())

    run(story)


@pytest.mark.parametrize("reaches", [{}, {"c": Reach(0, 1)}])
def test_with_an_older_entry_a_member_that_hears_no_journal_claims_nothing_and_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, reaches: dict[str, Reach]
) -> None:
    async def story() -> None:
        world = World(monkeypatch, OLDER, reaches)
        assert await world.taking_over.choose(OLDER, "") is Choice.OUT
        assert world.taking_over.waiting == world.waited[-1]
        assert "2 journals of its 3 members have to be compared, and 1 are there" in world.waited[-1]
        world.reaches = {"a": OWN}
        assert await world.taking_over.choose(OLDER, "") is Choice.CLAIM
        assert not world.taking_over.waiting

    run(story)


def test_with_an_older_entry_a_directory_that_is_no_member_goes_first_if_it_reaches_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World(monkeypatch, OLDER, {"c": OWN, "d": Reach(3, 10)})
        assert await world.taking_over.choose(OLDER, "") is Choice.YIELD

    run(story)


def test_before_its_first_segment_an_owner_with_nobody_in_sync_compares_its_journal_whatever_it_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned = OLDER.reclaimed("b", "host-b", 3)

    async def story() -> None:
        world = World(monkeypatch, owned, {})
        world.later = {"d": Reach(0, 1), "c": OWN}
        assert await world.taking_over.compare(owned, "a", is_whole=True) == owned
        assert world.asked == 3 * [({"a", "c", "d"}, owned.epoch)]
        world.reaches = {"a": Reach(2, 5), "c": Reach(3, 10)}
        with pytest.raises(CannotServeError, match="record 9 of epoch 3: that one takes over"):
            await world.taking_over.compare(owned, "a", is_whole=False)

    run(story)


def test_with_a_set_that_is_known_those_in_sync_are_asked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ReplicaSet(0, 3, "a", frozenset("abc"), MEMBERS, 3, 2, revision=10)

    async def story() -> None:
        world = World(monkeypatch, entry, {"c": Reach(3, 8)})
        assert await world.taking_over.choose(entry, "") is Choice.CLAIM
        claimed = await world.taking_over.claim(entry)
        assert claimed is not None
        assert (claimed.epoch, claimed.in_sync) == (4, entry.in_sync)
        assert await world.taking_over.compare(claimed, "a", is_whole=False) == claimed
        assert world.asked == [({"a", "c"}, 0), ({"a", "c"}, 4)]
        # Who is whole asks nobody.
        assert await world.taking_over.compare(claimed, "a", is_whole=True) == claimed
        assert len(world.asked) == 2

    run(story)


def test_an_owner_whose_journal_has_its_epoch_of_another_one_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned = ReplicaSet(0, 3, "b", frozenset("b"), MEMBERS, 3, 1, revision=10)

    async def story() -> None:
        world = World(monkeypatch, owned, {})
        with pytest.raises(CannotServeError, match=r"an earlier epoch than 3, .* found one of epoch 3"):
            await world.taking_over.compare(owned, "a", is_whole=False)

    run(story)
