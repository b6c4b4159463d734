"""Promotion over HTTP: only a member that runs and reaches furthest, when all in sync are named and away."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from lightrail.cluster.generations import Generation
from lightrail.cluster.generations import key_of as generation_key
from lightrail.cluster.map import SHARDS, Member
from lightrail.cluster.replica_sets import follower_key, key_of
from lightrail.gateway.processes import reach
from lightrail.gateway.resources import promotion, replicas
from lightrail.journal.record import RANGE_RECORDS
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.shard.replication.links import MembersSocket
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.wire.replication import MemberMessage, MessageKind
from lightrail.wire.sockets.wiring import Wiring
from tests.support.shard.move_scene import MoveScene, with_scene
from tests.unit.gateway.resources.test_replicas import SET, with_replicas

WORDS = {"member": "c", "lost": ["a", "b"]}


@contextmanager
def disks(scene: MoveScene, **ends: tuple[int, int]) -> Iterator[dict[str, str]]:
    """Members that run and answer with (epoch, next record); their addresses by name."""
    loop = asyncio.get_running_loop()
    sockets: dict[str, MembersSocket] = {}

    def receive(name: str, identity: bytes, _: list[bytes]) -> None:
        epoch, lsn = ends[name]
        sockets[name].send(identity, MemberMessage(MessageKind.SEEN, epoch, lsn=lsn).encode())

    wiring = Wiring(loop)
    scene.services.shards.wiring = wiring
    try:
        for name in ends:
            sockets[name] = MembersSocket(wiring, "tcp://127.0.0.1:0", partial(receive, name))
        yield {name: socket.address for name, socket in sockets.items()}
    finally:
        for socket in sockets.values():
            socket.close()
        wiring.close()


async def registered(scene: MoveScene, addresses: dict[str, str]) -> None:
    for name, address in addresses.items():
        member = Member(0, 1, host=f"h-{name}", address=address)
        await scene.put(follower_key(0, name), member.encode())


async def without_owner(scene: MoveScene) -> None:
    """The shard's registration has expired, and nothing answers at its address."""
    await scene.put(f"{SHARDS}0", None)
    scene.peers[0].state = ConnectionState.GREETING


def test_who_may_not_manage_everything_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        with pytest.raises(ForbiddenError):
            await scene.ask(promotion.promote, "/", WORDS, "0", caller=Caller("bob"))

    with_scene(check, 1)


def test_what_each_member_has_is_asked_of_those_that_run_and_else_what_it_has_reported() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        reported = Generation("d", 3, "t", 1, next_lsn=900)
        await scene.put(generation_key(0, "a"), reported.encode())
        with disks(scene, c=(4, 701)) as addresses:
            await registered(scene, addresses)
            found = (await scene.ask(replicas.show, "/?reach=true", None, "0"))["replicas"]
        rows = {
            each["member"]: (each["running"], each["answers"], each["last_epoch"], each["last_record"])
            for each in found["members"]
        }
        assert rows == {
            "a": (False, False, None, 899),
            "b": (False, False, None, None),
            "c": (True, True, 4, 700),
        }

    with_scene(check, 1)


def test_a_member_that_runs_is_promoted_when_all_in_sync_are_named_as_lost() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        await without_owner(scene)
        with disks(scene, c=(4, 701)) as addresses:
            await registered(scene, addresses)
            found = (await scene.ask(promotion.promote, "/", WORDS, "0"))["replicas"]
        assert (found["owner"], found["epoch"], found["in_sync"], found["min_in_sync"]) == ("c", 6, 1, 2)
        entry = scene.map.replica_sets[0]
        assert (entry.in_sync, entry.promoted_in, set(entry.members)) == (frozenset("c"), 6, set("abc"))

    with_scene(check, 1)


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        ({"member": 7, "lost": []}, 422, "expected the id of a member"),
        ({"member": "c", "lost": "a"}, 422, "expected a list of ids of members"),
        ({"member": "c", "lost": ["a", 7]}, 422, "expected a list of ids of members"),
        ({"member": "x", "lost": ["a", "b"]}, 422, "has no member 'x'; it has a, b, c"),
        ({"member": "c", "lost": ["a", "b", "y"]}, 422, "has no member 'y'"),
        ({"member": "c", "lost": ["a"]}, 409, "found b with all accepted ones"),
        ({"member": "b", "lost": ["a"]}, 409, "found b, which is in sync: start it"),
    ],
)
def test_words_that_would_lose_more_than_they_say_are_refused(
    words: dict[str, object], status: int, expected: str
) -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        problem = await scene.refused(promotion.promote, "/", words, "0")
        assert (problem.status, expected in problem.detail) == (status, True), problem.detail
        scene.map.refresh()
        assert scene.map.replica_sets[0].epoch == SET.epoch

    with_scene(check, 2)


def test_a_shard_without_replicas_has_nobody_to_promote() -> None:
    async def check(scene: MoveScene) -> None:
        problem = await scene.refused(promotion.promote, "/", WORDS, "0")
        assert (problem.status, "found that shard 0 has none" in problem.detail) == (409, True)

    with_scene(check, 1)


def test_while_a_member_in_sync_is_registered_or_the_shard_answers_nobody_is_promoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "LOOK_S", 0.1)

    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "b")
        problem = await scene.refused(promotion.promote, "/", WORDS, "0")
        assert (problem.status, "found b running on h: it takes over" in problem.detail) == (409, True)
        await scene.put(follower_key(0, "b"), None)
        problem = await scene.refused(promotion.promote, "/", WORDS, "0")
        assert "still runs" in problem.detail
        await scene.put(f"{SHARDS}0", None)
        problem = await scene.refused(promotion.promote, "/", WORDS, "0")
        assert "answers all the same" in problem.detail
        await without_owner(scene)
        problem = await scene.refused(promotion.promote, "/", WORDS, "0")
        assert "found that it does not answer: start it" in problem.detail

    with_scene(check, 1)


def test_a_member_without_a_journal_or_behind_another_one_is_not_promoted() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, replace(SET, members={**SET.members, "d": SET.members["c"]}))
        await without_owner(scene)
        with disks(scene, c=(4, 701), d=(4, 702)) as addresses:
            await registered(scene, addresses)
            problem = await scene.refused(promotion.promote, "/", WORDS, "0")
            assert "found it at record 700, and d at 701: promote that one" in problem.detail
            more = {"member": "c", "lost": ["a", "b", "d"]}
            assert (await scene.ask(promotion.promote, "/", more, "0"))["replicas"]["owner"] == "c"
            await scene.put(key_of(0), SET.encode())
        # Etcd was set back, and the journal is of a later epoch than the entry.
        with disks(scene, c=(99, 701)) as addresses:
            await registered(scene, addresses)
            assert (await scene.ask(promotion.promote, "/", WORDS, "0"))["replicas"]["epoch"] > 99
            await scene.put(key_of(0), SET.encode())
        with disks(scene, c=(0, 1)) as addresses:
            await registered(scene, addresses)
            problem = await scene.refused(promotion.promote, "/", WORDS, "0")
            assert "found that it has none" in problem.detail

    with_scene(check, 1)


def test_a_member_that_keeps_what_the_promoted_owner_may_lack_is_shown_with_what_to_do() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, replace(SET, in_sync=frozenset("a"), promoted_in=4))
        begun = 4 * RANGE_RECORDS
        with disks(scene, a=(5, begun + 9), b=(3, 701), c=(5, begun + 3)) as addresses:
            await registered(scene, addresses)
            found = (await scene.ask(replicas.show, "/", None, "0"))["replicas"]
        kept = {each["member"]: each.get("kept") for each in found["members"]}
        assert (kept["a"], kept["c"]) == (None, None)
        assert "records up to 700 of before the promotion in epoch 4" in kept["b"]

    with_scene(check, 1)
