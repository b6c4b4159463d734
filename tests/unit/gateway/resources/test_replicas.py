"""Replicas over HTTP: shown, changed in numbers, members removed; and what would lose messages is refused."""

from dataclasses import replace
from typing import Any

import pytest

from lightrail.cluster.map import MOVES, SHARD_SETS, SHARDS, Member
from lightrail.cluster.replica_sets import ReplicaSet, SetMember, follower_key, key_of
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.processes.health import samples
from lightrail.gateway.resources import replicas, shards
from lightrail.gateway.views import BrokerViews
from lightrail.model.endpoint import Endpoint
from lightrail.model.policy import Policy
from lightrail.model.settings import Settings
from lightrail.namespace.records import NAMES, Name
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.telemetry.replicas import REPLICA_FAMILIES, ReplicaCounts
from lightrail.telemetry.running import Running
from tests.support.shard.move_scene import MoveScene, with_scene

SET = ReplicaSet(
    0,
    5,
    "a",
    frozenset({"a", "b"}),
    {"a": SetMember("h1"), "b": SetMember("h2"), "c": SetMember("h3")},
    3,
    2,
)


async def with_replicas(scene: MoveScene, found: ReplicaSet = SET, *running: str) -> None:
    scene.services.settings = Settings(etcd=(Endpoint("e", 2379),))
    await scene.put(key_of(0), found.encode())
    for member in running:
        await scene.put(follower_key(0, member), Member(0, 1, host="h").encode())


def test_who_may_not_manage_everything_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        for handler in (replicas.show, replicas.change, replicas.remove_member):
            with pytest.raises(ForbiddenError):
                await scene.ask(handler, "/", None, "0", "replicas", "a", caller=Caller("bob"))

    with_scene(check, 1)


def test_members_are_shown_with_their_hosts_in_sync_or_not_and_running_or_not() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "a", "c")
        found = (await scene.ask(replicas.show, "/", None, "0"))["replicas"]
        assert (found["epoch"], found["replicas"], found["min_in_sync"], found["in_sync"]) == (5, 3, 2, 2)
        assert [tuple(each.values())[:5] for each in found["members"]] == [
            ("a", "h1", True, True, True),
            ("b", "h2", False, True, False),
            ("c", "h3", False, False, True),
        ]
        rows = (await scene.ask(shards.list_all))["shards"]
        assert [each["replicas"] for each in rows] == [found, None]

    with_scene(check, 2)


def test_members_on_one_machine_and_file_system_are_known_by_the_locks_of_their_directories() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "c")
        for name, lock in (("a", "boot:2049:17"), ("b", "boot:2049:18")):
            running = Member(0, 1, host="h", lock=lock, storage="nas" if name == "a" else "")
            await scene.put(follower_key(0, name), running.encode())
        found = (await scene.ask(replicas.show, "/", None, "0"))["replicas"]
        assert [(each["machine"], each["file_system"], each["storage"]) for each in found["members"]] == [
            ("boot", "boot:2049", "nas"),
            ("boot", "boot:2049", ""),
            ("", "", ""),
        ]

    with_scene(check, 1)


def test_a_process_that_can_not_join_is_shown_with_its_reason() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "a", "b", "c")
        await scene.put(follower_key(0, "d"), Member(0, 1, host="h4").encode())
        (row,) = (await scene.ask(replicas.show, "/", None, "0"))["replicas"]["waiting"]
        assert (row["member"], row["host"]) == ("d", "h4")
        assert "expected fewer than 3 members of shard 0" in row["reason"]
        await scene.put(follower_key(0, "d"), Member(0, 1, host="h3").encode())
        (row,) = (await scene.ask(replicas.show, "/", None, "0"))["replicas"]["waiting"]
        assert "found c on h3 already, running" in row["reason"]
        # With room it is about to join, and does not wait.
        await with_replicas(scene, SET.sized(4, 2))
        await scene.put(follower_key(0, "d"), Member(0, 1, host="h4").encode())
        assert (await scene.ask(replicas.show, "/", None, "0"))["replicas"]["waiting"] == []

    with_scene(check, 1)


def test_figures_of_the_owner_are_those_of_each_other_member() -> None:
    host = 'h"2'
    members = {**SET.members, "b": SetMember(host)}
    counts = ReplicaCounts(
        required=lambda: 2,
        ages_s=lambda: {host: 4.5, "h3": 0},
        behind_records=lambda: {host: 12, "h3": 0},
    )
    owner = Running("shard", lambda: 0)
    owner.show(REPLICA_FAMILIES, counts)

    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, replace(SET, members=members))
        scene.map.refresh()
        assert replicas.figured(scene.map, 1, {}) is None
        found = replicas.figured(scene.map, 0, samples(owner.text()))
        assert found is not None
        assert found["required"] == 2
        rows = {
            each["member"]: (each["acknowledged_age_seconds"], each["behind_records"])
            for each in found["members"]
        }
        assert rows == {"a": (None, None), "b": (4.5, 12), "c": (0, 0)}
        silent = replicas.figured(scene.map, 0, None)
        assert silent is not None
        assert silent["required"] is None

    with_scene(check, 2)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"replicas": 2}, 409, "expected at most 2 members of shard 0, found 3"),
        ({"replicas": 0}, 422, "expected a whole number from 1 to 7"),
        ({"replicas": True}, 422, "expected a whole number from 1 to 7"),
        ({"replicas": 8}, 422, "expected a whole number from 1 to 7"),
        ({"min_in_sync": 4}, 422, "min_in_sync 4 and replicas 3"),
        ({"min_in_sync": 3}, 409, "expected at least 3 members of shard 0 in sync, found 2"),
        ({"members": 3}, 422, "'members' is no member"),
    ],
)
def test_numbers_that_would_stop_a_shard_or_make_no_sense_are_refused(
    body: Any, status: int, words: str
) -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        problem = await scene.refused(replicas.change, "/", body, "0")
        assert (problem.status, words in problem.detail) == (status, True), problem.detail

    with_scene(check, 1)


def test_a_change_of_numbers_changes_neither_owner_nor_set() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        await scene.ask(replicas.change, "/", {"replicas": 5, "min_in_sync": 1}, "0")
        assert scene.map.replica_sets[0] == replace(SET, replicas=5, min_in_sync=1)

    with_scene(check, 1)


def test_a_shard_without_replicas_gets_its_entry_with_its_disk_as_the_only_member() -> None:
    async def check(scene: MoveScene) -> None:
        scene.services.settings = Settings()
        problem = await scene.refused(replicas.change, "/", {"replicas": 3}, "0")
        assert "found no etcd and the store journal" in problem.detail
        scene.services.settings = Settings(etcd=(Endpoint("e", 2379),))
        problem = await scene.refused(replicas.change, "/", {"replicas": 3, "min_in_sync": 2}, "0")
        assert "found 1: nothing more would be accepted" in problem.detail
        found = (await scene.ask(replicas.change, "/", {"replicas": 3}, "0"))["replicas"]
        assert (found["owner"], found["replicas"], found["min_in_sync"], found["in_sync"]) == ("d", 3, 1, 1)
        assert (await scene.refused(replicas.change, "/", {"replicas": 3}, "9")).status == 404

    with_scene(check, 1)


def test_a_member_leaves_that_is_out_of_sync_and_stopped() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "a", "c")
        for member, status, words in (
            ("x", 404, "has no member"),
            ("b", 409, "in sync: stop its process"),
            ("c", 409, "running on h, which would join again: stop it first"),
        ):
            problem = await scene.refused(replicas.remove_member, "/", None, "0", "replicas", member)
            assert (problem.status, words in problem.detail) == (status, True), problem.detail
        await scene.put(follower_key(0, "c"), None)
        views = BrokerViews(scene.services)
        with pytest.raises(ForbiddenError):
            await views.remove_member(Caller("bob"), "0", "c")
        with pytest.raises(ProblemError, match="expected a whole number"):
            await views.remove_member(ANYBODY, "x", "c")
        await views.remove_member(ANYBODY, "0", "c")
        assert sorted(scene.map.replica_sets[0].members) == ["a", "b"]
        await with_replicas(scene, SET, "a")
        await scene.ask(replicas.remove_member, "/", None, "0", "replicas", "c")
        assert sorted(scene.map.replica_sets[0].members) == ["a", "b"]

    with_scene(check, 1)


def test_messages_are_not_given_up_while_another_member_has_them() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "c")
        await scene.place(0, "q")
        await scene.put(f"{SHARDS}0", None)
        scene.peers[0].state = ConnectionState.GREETING
        forget = {"disk": ""}
        assert (
            "member c of shard 0 still runs" in (await scene.refused(shards.change, "/", forget, "0")).detail
        )
        await scene.put(follower_key(0, "c"), None)
        problem = await scene.refused(shards.change, "/", forget, "0")
        assert "2 members of shard 0 have all of its messages: a on h1, b on h2" in problem.detail
        await with_replicas(scene, SET.sized(3, 1).removed(["b"]))
        await scene.ask(shards.change, "/", forget, "0")
        assert 0 not in scene.map.replica_sets
        assert scene.map.shard_records[0].disk == ""
        assert await scene.coordinator.entry(f"{SHARD_SETS}0") is not None

    with_scene(check, 2)


def test_a_drained_shard_is_removed_with_its_members_once_they_have_ended() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "c")
        await scene.put(f"{SHARDS}0", None)
        scene.peers[0].state = ConnectionState.GREETING
        problem = await scene.refused(shards.remove, "/", None, "0")
        assert "member c of shard 0 still runs" in problem.detail
        await scene.put(follower_key(0, "c"), None)
        assert await scene.ask(shards.remove, "/", None, "0") is None
        assert 0 not in scene.map.replica_sets
        assert 0 not in scene.map.shard_records

    with_scene(check, 2)


def test_a_number_that_no_shard_can_have_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        for number in (str(replicas.SHARD_MAX + 1), "-1", "x"):
            with pytest.raises(ProblemError) as refused:
                await scene.ask(replicas.show, "/", None, number)
            assert refused.value.status == 400

    with_scene(check, 1)


def test_a_shard_keeps_the_members_that_policies_of_its_queues_demand() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, replace(SET.sized(5, 2)))
        await scene.place(0, "q", "plain")
        await scene.place(1, "coming")
        for queue, number in (("q", 3), ("coming", 4)):
            policy = Policy.parse({"role": "queue", "replicas": number})
            await scene.put(NAMES + queue, Name(queue, policy, 0, 0, 0, 0).to_value())
        await scene.ask(replicas.change, "/", {"replicas": 4}, "0")
        await scene.move("coming", 1, 0)
        problem = await scene.refused(replicas.change, "/", {"replicas": 3}, "0")
        assert (problem.status, problem.detail) == (
            409,
            "expected at most 3 replicas in the policies of the queues of shard 0, found 4 in that of coming"
            ": lower it, or move the queue to a shard with as many members (lightrail-admin rebalance "
            "--plan)",
        )
        await scene.put(MOVES + "coming", None)
        await scene.ask(replicas.change, "/", {"replicas": 3}, "0")

    with_scene(check, 2)


def test_a_shard_is_handed_over_to_a_member_that_runs_and_is_in_sync() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "a")
        for owner, status, words in (
            (3, 422, "expected the id of a member"),
            ("c", 409, "that is in sync (b), found c"),
            ("x", 409, "that is in sync (b), found x"),
            ("b", 409, "that runs, found b stopped"),
        ):
            problem = await scene.refused(replicas.change, "/", {"owner": owner}, "0")
            assert (problem.status, words in problem.detail) == (status, True), problem.detail
        await with_replicas(scene, SET, "a", "b")
        await scene.ask(replicas.change, "/", {"owner": "b"}, "0")
        assert scene.map.replica_sets[0] == replace(SET, successor="b")
        await scene.ask(replicas.change, "/", {"owner": "a", "min_in_sync": 1}, "0")
        assert scene.map.replica_sets[0] == replace(SET, successor="b", min_in_sync=1)

    with_scene(check, 1)
