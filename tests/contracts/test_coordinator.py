"""The coordinator port: what each implementation promises."""

import asyncio
import json

import pytest

from lightrail.amqp.sasl import verify_plain
from lightrail.cluster.coordinator import (
    WRITES_MAX,
    ConflictError,
    Coordinator,
    CoordinatorError,
    ShardsInUseError,
    UnknownUserError,
    UserExistsError,
    Write,
    unchanged,
)
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.map import Member, Move, Placed, ShardRecord, unplacing
from lightrail.cluster.replica_sets import first
from lightrail.cluster.users import UserRecord
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.namespace.topic_uses import NO_USE, TopicUses
from tests.contracts.coordinators import Run


def record(name: str, password: str = "secret") -> UserRecord:
    return UserRecord.make(name, password, iterations=1)


def test_identity_and_secret_stay(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        assert len(await coordinator.cluster_id()) == 32
        assert await coordinator.cluster_id() == await coordinator.cluster_id()
        assert len(await coordinator.secret()) == 32
        assert await coordinator.secret() == await coordinator.secret()

    run(check)


def test_nothing_is_placed_before_shards_are_known(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        assert await coordinator.shards() == 0
        with pytest.raises(CoordinatorError, match="number of shards was never set"):
            await coordinator.place("q")
        assert await coordinator.placements() == {}

    run(check)


def test_a_queue_stays_where_it_was_placed(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(3)
        first = await coordinator.place("q")
        assert await coordinator.place("q") == first
        assert await coordinator.placement("q") == first
        assert await coordinator.placement("other") is None
        assert await coordinator.placements() == {"q": first}

    run(check)


def test_epochs_rise_over_the_deletion_of_a_queue(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(1)
        epochs = []
        for _ in range(3):
            placed = await coordinator.place("q")
            assert await coordinator.placement("q") == placed
            found = await coordinator.entry("placement/q")
            assert found is not None
            # As a move that was given up twice, which takes more revisions than epochs.
            for later in (2, 4):
                await coordinator.write([Write("moves/q", None), Write("other", str(later))])
                value = Placed.encode(0, placed.epoch + later)
                await coordinator.write([Write("placement/q", value)])
            epochs += [placed.epoch, placed.epoch + 4]
            assert await coordinator.placement("q") == (0, placed.epoch + 4)
            await coordinator.write(unplacing(["q"]))
        assert epochs == sorted(set(epochs))

    run(check)


def test_queues_are_spread_evenly(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(4)
        for number in range(40):
            await coordinator.place(f"q{number}")
        shards = [placement.shard for placement in (await coordinator.placements()).values()]
        assert sorted(shards.count(shard) for shard in range(4)) == [10, 10, 10, 10]

    run(check)


def test_new_shards_get_the_new_queues(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(1)
        old = await coordinator.place("old")
        await coordinator.set_shards(2)
        assert await coordinator.shards() == 2
        assert (await coordinator.place("new")).shard == 1
        assert await coordinator.place("old") == old

    run(check)


def test_a_shard_that_holds_queues_is_not_given_up(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(3)
        placed = {(await coordinator.place(f"q{number}")).shard for number in range(3)}
        assert placed == {0, 1, 2}
        with pytest.raises(ShardsInUseError, match="start with --shards 3 or more"):
            await coordinator.set_shards(2)
        assert await coordinator.shards() == 3

    run(check)


def test_an_empty_shard_is_given_up(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(3)
        await coordinator.set_shards(1)
        assert (await coordinator.place("q")).shard == 0

    run(check)


@pytest.mark.parametrize("order", [("a", "a/$dlq"), ("a/$dlq", "a")])
def test_a_dead_letter_queue_is_where_its_queue_is(run: Run, order: tuple[str, str]) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(2)
        for number in range(5):
            await coordinator.place(f"other{number}")
        first, second = [await coordinator.place(name) for name in order]
        assert first == second
        assert await coordinator.placement("a") == await coordinator.placement("a/$dlq")

    run(check)


def test_tasks_that_place_the_same_queue_agree(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(8)
        placed = await asyncio.gather(*(coordinator.place("q") for _ in range(20)))
        assert len(set(placed)) == 1

    run(check)


def test_users_come_and_go(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        assert not await coordinator.has_users()
        assert await coordinator.user("alice") is None
        alice = record("alice")
        await coordinator.add_user(record("bob"))
        await coordinator.add_user(alice)
        assert await coordinator.has_users()
        assert await coordinator.users() == ["alice", "bob"]
        assert await coordinator.user("alice") == alice
        assert await coordinator.user("Alice") is None
        await coordinator.remove_user("alice")
        await coordinator.remove_user("bob")
        assert await coordinator.users() == []
        assert not await coordinator.has_users()

    run(check)


def test_a_user_is_added_once(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        alice = record("alice")
        await coordinator.add_user(alice)
        with pytest.raises(UserExistsError, match="'alice'"):
            await coordinator.add_user(record("alice", "other"))
        assert await coordinator.user("alice") == alice

    run(check)


def test_another_password(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        with pytest.raises(UnknownUserError, match="'alice'"):
            await coordinator.replace_user(record("alice"))
        assert await coordinator.user("alice") is None
        await coordinator.add_user(record("alice", "old"))
        await coordinator.replace_user(record("alice", "new"))
        found = await coordinator.user("alice")
        assert found is not None
        for keys in (found.sha256, found.sha512):
            assert verify_plain(keys, "new")
            assert not verify_plain(keys, "old")

    run(check)


def test_an_unknown_user_is_not_removed(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        with pytest.raises(UnknownUserError, match="'alice'"):
            await coordinator.remove_user("alice")

    run(check)


def test_entries_have_the_revisions_that_made_and_changed_them(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        first = await coordinator.write([Write("names/a", "1"), Write("names/b", "2")])
        second = await coordinator.write([Write("names/a", "3")])
        assert second == first + 1
        assert await coordinator.entry("names/a") == Entry("names/a", "3", first, second)
        assert await coordinator.entries("names/") == [
            Entry("names/a", "3", first, second),
            Entry("names/b", "2", first, first),
        ]
        assert await coordinator.entries("names/b") == [Entry("names/b", "2", first, first)]
        assert await coordinator.entry("names/c") is None

    run(check)


def test_a_key_that_was_deleted_and_made_again_is_another_one(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        first = await coordinator.write([Write("names/a", "1")])
        await coordinator.write([Write("names/a", None)])
        assert await coordinator.entry("names/a") is None
        again = await coordinator.write([Write("names/a", "1", 0)])
        assert await coordinator.entry("names/a") == Entry("names/a", "1", again, again)
        assert again > first

    run(check)


def test_a_guard_that_does_not_hold_leaves_everything_as_it_was(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        first = await coordinator.write([Write("names/a", "1")])
        for guard in (0, first - 1, first + 1):
            with pytest.raises(ConflictError, match="names/a"):
                await coordinator.write([Write("names/b", "1"), Write("names/a", "2", guard)])
        with pytest.raises(ConflictError):
            await coordinator.write([Write("names/none", None, first)])
        assert [entry.key for entry in await coordinator.entries("")] == ["names/a"]
        assert await coordinator.write([Write("names/a", "2", first)]) > first

    run(check)


def test_a_check_guards_a_transaction_and_changes_nothing(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        first = await coordinator.write([Write("names/a", "1")])
        for key, revision in (("names/a", 0), ("names/a", first - 1), ("names/none", first)):
            with pytest.raises(ConflictError, match=key):
                await coordinator.write([Write("names/b", "1"), unchanged(key, revision)])
        assert await coordinator.entry("names/b") is None
        await coordinator.write(
            [Write("names/b", "1"), unchanged("names/a", first), unchanged("names/none", 0)]
        )
        assert await coordinator.entry("names/a") == Entry("names/a", "1", first, first)
        assert [entry.key for entry in await coordinator.entries("")] == ["names/a", "names/b"]

    run(check)


def test_transactions_at_once_that_check_the_same_entry_all_succeed_or_all_fail(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        first = await coordinator.write([Write("names/a", "1")])

        async def write(number: int, revision: int) -> bool:
            try:
                await coordinator.write([Write(f"names/b{number}", "1"), unchanged("names/a", revision)])
            except ConflictError:
                return False
            return True

        found = await asyncio.gather(*(write(number, first - number % 2) for number in range(100)))
        assert found == [True, False] * 50

    run(check)


def test_news_are_what_changed_since(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        before = coordinator.news(0)
        assert before is None or before == News(before.revision, [], True)
        first = await coordinator.write([Write("names/a", "1"), Write("names/b", "1")])
        everything = coordinator.news(0)
        assert everything is not None
        assert everything.whole
        assert everything.revision == first
        assert {entry.key for entry in everything.entries} == {"names/a", "names/b"}
        assert coordinator.news(first) is None
        assert coordinator.news(first) is None
        second = await coordinator.write([Write("names/a", None)])
        third = await coordinator.write([Write("names/c", "1")])
        news = coordinator.news(first)
        assert news == News(
            third, [Entry("names/a", None, first, second), Entry("names/c", "1", third, third)], False
        )
        assert coordinator.news(third) is None
        assert coordinator.news(second) == News(third, [Entry("names/c", "1", third, third)], False)

    run(check)


def test_a_queue_that_was_forgotten_may_be_placed_anew(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(2)
        await coordinator.place("q/$dlq")
        await coordinator.write(unplacing(["q", "q/$dlq", "never"]))
        assert await coordinator.placements() == {}
        # Its load is gone as well: the shards take turns again.
        shards = [(await coordinator.place(name)).shard for name in ("a", "b")]
        assert sorted(shards) == [0, 1]

    run(check)


def test_shards_and_placements_are_entries(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(2)
        assert [(each.key, each.value) for each in await coordinator.entries("shardsets/")] == [
            ("shardsets/0", '{"disk":"","state":"active"}'),
            ("shardsets/1", '{"disk":"","state":"active"}'),
        ]
        shard, epoch = await coordinator.place("a/$dlq")
        entries = {each.key: each.value for each in await coordinator.entries("placement/")}
        assert entries == {"placement/a": f'{{"shard":{shard},"epoch":0}}'}
        found = await coordinator.entry("placement/a")
        assert found is not None
        assert epoch == found.created
        await coordinator.write([Write(found.key, Placed.encode(1 - shard, epoch + 1), found.revision)])
        assert await coordinator.place("a") == (1 - shard, epoch + 1)
        await coordinator.write([Write("moves/a", Move("a", shard, 1 - shard, epoch + 1).encode())])
        await coordinator.write(unplacing(["a"]))
        assert await coordinator.entries("moves/") == []
        assert await coordinator.placement("a") is None

    run(check)


def test_a_draining_shard_gets_no_queues(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(2)
        await coordinator.write([Write("shardsets/0", ShardRecord(0, state="draining").encode())])
        assert {(await coordinator.place(f"q{number}")).shard for number in range(4)} == {1}
        await coordinator.write([Write("shardsets/1", ShardRecord(1, state="draining").encode())])
        with pytest.raises(CoordinatorError, match="every shard is draining"):
            await coordinator.place("other")
        assert (await coordinator.place("q0")).shard == 1

    run(check)


def test_a_queue_is_on_a_shard_with_as_many_members_as_its_policy_demands(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(3)
        assert coordinator.replicas_max() == 1
        found = first(1, "d", "h", replicas=3, min_in_sync=1)
        await coordinator.write([Write(found.key, found.encode(), 0)])
        assert coordinator.replicas_max() == 3
        queue = '{"policy":{"role":"queue","replicas":%d}}'
        names = [f"q{number}" for number in range(4)]
        await coordinator.write([Write(f"names/{name}", queue % 3) for name in names])
        placed = await asyncio.gather(*(coordinator.place(name) for name in names))
        assert {each.shard for each in placed} == {1}
        await coordinator.write([Write("names/more", queue % 4)])
        with pytest.raises(
            CoordinatorError, match=r"more can't be placed: its policy demands 4 replicas, .*3"
        ):
            await coordinator.place("more")
        # One that lies elsewhere begins to move, once.
        other = await coordinator.place("other")
        assert other.shard != 1
        await coordinator.write([Write("names/other", queue % 2)])
        for _ in range(2):
            assert await coordinator.place("other/$dlq") == other
        (entry,) = await coordinator.entries("moves/")
        assert (entry.key, json.loads(entry.value or "")["to"]) == ("moves/other", 1)
        assert await coordinator.place("q0") == placed[0]
        assert len(await coordinator.entries("moves/")) == 1
        # A move to a shard with fewer ends, unless it is frozen.
        frozen = Move("q1", 1, 2, placed[1].epoch, "frozen")
        await coordinator.write(
            [Write(each.key, each.encode()) for each in (Move("q0", 1, 2, placed[0].epoch), frozen)]
        )
        for name in ("q0", "q1"):
            assert (await coordinator.place(name)).shard == 1
        left = [each.key for each in await coordinator.entries("moves/")]
        assert left == ["moves/other", "moves/q1"]

    run(check)


def test_siblings_are_spread_over_zones(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(4)
        for id in range(4):
            member = Member(id, boot=1, zone="east" if id < 2 else "west", host=f"h{id}")
            await coordinator.register(f"shards/{id}", member.encode(), print)
        for family in range(10):
            placed = await asyncio.gather(*(coordinator.place(f"f{family}/{number}") for number in range(2)))
            assert sorted(each.shard // 2 for each in placed) == [0, 1]
            placed.append(await coordinator.place(f"f{family}/2"))
            placed.append(await coordinator.place(f"f{family}/3"))
            assert sorted(each.shard for each in placed) == [0, 1, 2, 3]

    run(check)


def test_tasks_that_place_many_queues_at_once_spread_them(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.set_shards(4)
        placed = await asyncio.gather(*(coordinator.place(f"q{number}") for number in range(200)))
        shards = [each.shard for each in placed]
        assert [shards.count(shard) for shard in range(4)] == [50, 50, 50, 50]

    run(check)


def test_many_writes_and_two_of_a_key_are_refused(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        await coordinator.write([Write(f"names/{number}", "1") for number in range(WRITES_MAX)])
        with pytest.raises(ValueError, match=f"at most {WRITES_MAX}"):
            await coordinator.write([Write(f"names/{number}", "2") for number in range(WRITES_MAX + 1)])
        with pytest.raises(ValueError, match="one write per key"):
            await coordinator.write([Write("names/a", "1"), Write("names/a", "2")])
        assert await coordinator.entry("names/a") is None
        assert {each.value for each in await coordinator.entries("names/")} == {"1"}

    run(check)


def test_a_registration_goes_when_it_is_taken_away(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        displaced: list[str] = []
        await coordinator.register("shards/0", "first", displaced.append)
        await coordinator.register("shards/0", "second", displaced.append)
        found = await coordinator.entry("shards/0")
        assert found is not None
        assert found.value == "second"
        coordinator.news(0)
        await coordinator.unregister("shards/0")
        assert await coordinator.entry("shards/0") is None
        await coordinator.unregister("shards/0")
        coordinator.news(0)
        await asyncio.sleep(0)
        assert displaced == []

    run(check)


def test_a_registration_that_another_process_took_is_left_alone(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        displaced: list[str] = []
        await coordinator.register("shards/0", "ours", displaced.append)
        await coordinator.write([Write("shards/0", "theirs")])
        coordinator.news(0)
        await asyncio.sleep(0)
        assert displaced == ["theirs"]
        await coordinator.unregister("shards/0")
        found = await coordinator.entry("shards/0")
        assert found is not None
        assert found.value == "theirs"

    run(check)


def test_who_asks_to_be_told_hears_of_news(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        heard: list[bool] = []
        coordinator.on_news(lambda: heard.append(True))
        await coordinator.write([Write("names/a", "1")])
        await asyncio.sleep(0)
        assert heard

    run(check)


def test_of_the_use_of_a_topic_and_its_deletion_one_alone_is_written(run: Run) -> None:
    async def check(coordinator: Coordinator) -> None:
        directory = Directory(coordinator)
        record = await Service(coordinator, directory).give(
            ANYBODY, "t", Policy.parse({"role": "router", "max_idle": 300})
        )
        uses = TopicUses(coordinator, directory)
        await uses.note(["t"], 1_000)
        decided = uses.of("t")
        await uses.note(["t"], 2_000)
        assert (decided.until_ms, uses.of("t").until_ms) == (61_000, 62_000)
        deletion = Write("names/t", None, record.revision)
        with pytest.raises(ConflictError):
            await coordinator.write([deletion, Write("uses/t", None, decided.revision)])
        assert await coordinator.entry("names/t") is not None
        await coordinator.write([deletion, Write("uses/t", None, uses.of("t").revision)])
        await uses.note(["t"], 3_000)
        assert await coordinator.entries("uses/") == []
        uses.refresh()
        assert uses.of("t") == NO_USE

    run(check)
