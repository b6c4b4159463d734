"""Entities that the file has no more: which of them are deleted, and that no message is."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.gateway.resources.queues import COLUMNS
from lightrail.model.policy import Policy
from lightrail.namespace.records import NAMES, AuthorizationRule, Right, SealedKey
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.service_bus.configuration import removing
from lightrail.service_bus.configuration.applying import KEY
from lightrail.service_bus.configuration.removing import RETIRED_AT_ONCE_MAX
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Answer
from tests.unit.service_bus.configuration.test_applying import Scene, play, queue, sql, topic

QUEUE = Policy.parse({"role": "queue"})


class Shards:
    """The shards of a scene: they retire queues that have no messages."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.retired: dict[str, int] = {}
        """Revisions at which queues were retired."""
        self.arrives: dict[str, Callable[[], Awaitable[None]]] = {}
        """What happens between the look at a queue and its retirement."""
        self.most = 0
        self._now = 0

    async def rows(self, services: Any, names: list[str]) -> list[dict[str, Any]]:
        columns = dict.fromkeys(COLUMNS, 0)
        return [{"name": name, **columns, "ready": self.scene.messages.get(name, 0)} for name in names]

    async def request(self, _: Any, name: str, op: str, fields: dict[str, Any]) -> Answer:
        assert op == "retire"
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        if name in self.arrives:
            await self.arrives[name]()
        if self.scene.messages.get(name):
            return Answer({"retired": False}, memoryview(b""))
        self.retired[name] = fields["revision"]
        return Answer({"retired": True}, memoryview(b""))

    def serves(self, name: str) -> bool:
        """Whether its shard serves a queue: it was not retired, or its name has a later revision."""
        return self.scene.services.directory.get(name).revision > self.retired.get(name, 0)


Check = Callable[[Scene, Shards], Awaitable[None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Check], None]:
    def run(check: Check) -> None:
        async def begin(scene: Scene) -> None:
            shards = Shards(scene)
            monkeypatch.setattr(removing, "rows_of", shards.rows)
            monkeypatch.setattr(
                ShardConnections, "request", lambda *given, **named: shards.request(*given, **named)
            )
            await check(scene, shards)

        play(begin, monkeypatch)

    return run


def is_there(scene: Scene, name: str) -> bool:
    return scene.services.directory.find(name) is not None


async def arrive(scene: Scene, name: str) -> None:
    """A message arrives in a queue."""
    scene.messages[name] = 1


def test_an_empty_queue_and_a_topic_without_messages_are_deleted(run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        await scene.apply([queue("kept"), queue("gone")], [topic(sql("r", "a = 1"))])
        await scheduled_queue(scene.services.namespace, "t")
        await scene.apply([queue("kept")])
        left = [each.name for each in scene.services.directory.below("")]
        assert left == ["kept"]
        assert set(shards.retired) == {"gone", "t/Subscriptions/s", "t/$scheduled"}
        assert not scene.services.directory.subscriptions("t")
        # Back in the file, they are made as at first.
        await scene.apply([queue("kept"), queue("gone")], [topic(sql("r", "a = 1"))])
        assert is_there(scene, "gone")
        assert list(scene.rules("t", "s")) == ["r"]

    run(check)


@pytest.mark.parametrize(
    "name", ["q", "q/$dlq", "t/Subscriptions/s", "t/Subscriptions/s/$dlq", "t/$scheduled"]
)
def test_what_has_a_message_stays_until_a_start_finds_none(
    name: str, run: Callable[[Check], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        await scene.apply([queue("q")], [topic()])
        await scheduled_queue(scene.services.namespace, "t")
        scene.messages[name] = 1
        with caplog.at_level(logging.WARNING):
            await scene.apply()
        stays = name.partition("/")[0]
        assert (is_there(scene, "q"), is_there(scene, "t/Subscriptions/s")) == (stays == "q", stays == "t")
        assert f"{stays} is no longer in the configuration file; it stays: {name} has messages" in caplog.text
        before = await scene.coordinator.entries("")
        await scene.apply()
        assert await scene.coordinator.entries("") == before, "the same file changes nothing"
        scene.messages.clear()
        await scene.apply()
        assert not list(scene.services.directory.below(""))

    run(check)


def test_a_message_that_arrives_after_the_look_keeps_the_whole_topic(run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        one = topic()
        one["Subscriptions"].append({"Name": "s2"})
        await scene.apply(topics=[one])
        shards.arrives["t/Subscriptions/s2"] = lambda: arrive(scene, "t/Subscriptions/s2")
        await scene.apply()
        assert is_there(scene, "t")
        assert "t/Subscriptions/s" in shards.retired
        assert shards.serves("t/Subscriptions/s")
        assert shards.serves("t/Subscriptions/s2")
        assert {each.id for each in scene.services.directory.subscriptions("t")} == {"s", "s2"}

    run(check)


def test_a_message_that_is_scheduled_meanwhile_keeps_the_topic(run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        async def schedule() -> None:
            await scheduled_queue(scene.services.namespace, "t")

        await scene.apply(topics=[topic()])
        shards.arrives["t/Subscriptions/s"] = schedule
        await scene.apply()
        assert is_there(scene, "t/$scheduled")
        assert shards.serves("t/Subscriptions/s")

    run(check)


@pytest.mark.parametrize("change", ["policy", "rules"])
def test_a_change_by_an_application_in_that_moment_wins(change: str, run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        own = "t/Subscriptions/s"

        async def changed() -> None:
            if change == "policy":
                await scene.change(own, max_delivery_count=7)
            else:
                namespace = scene.services.namespace
                await namespace.subscribe(ANYBODY, "t", own, id="s", replace_it=True, filter={"sql": "b = 1"})

        await scene.apply(topics=[topic()])
        shards.arrives[own] = changed
        await scene.apply(topics=[{"Name": "t"}])
        assert is_there(scene, own)
        assert shards.serves(own)
        assert [each.id for each in scene.services.directory.subscriptions("t")] == ["s"]

    run(check)


def test_what_an_application_has_made_or_needs_is_never_deleted(run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        namespace = scene.services.namespace
        await namespace.give(ANYBODY, "theirs", QUEUE)
        names = ["theirs", "again", "target", "keys", "dead"]
        await scene.apply([queue(name) for name in names], [topic()])
        # One is deleted and made anew, others become the targets of an application, or get keys.
        await namespace.drop(ANYBODY, "again")
        await namespace.give(ANYBODY, "again", QUEUE)
        await namespace.give(ANYBODY, "source", Policy.parse({"role": "queue", "forward_to": "target"}))
        await namespace.give(ANYBODY, "source2", Policy.parse({"role": "queue", "dead_letter": "dead"}))
        key = SealedKey(b"d" * 16, b"sealed with a secret that is not needed for that")
        rules = (AuthorizationRule("send", frozenset({Right.SEND}), key, key),)
        await namespace.change(ANYBODY, "keys", scene.services.directory.get("keys").policy, rules=rules)
        await namespace.subscribe(ANYBODY, "t", "source", id="mine")
        await scene.apply()
        assert sorted(each.name for each in scene.services.directory.below("")) == sorted(
            [*names, "source", "source2", "t", "t/Subscriptions/s"]
        )
        assert not shards.retired

    run(check)


def test_sources_of_forwarded_messages_are_deleted_before_their_targets(run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        await scene.apply([queue("a"), queue("b", ForwardTo="a"), queue("c", ForwardTo="b")])
        scene.messages["c/$transfer/$dlq"] = 1
        await scene.apply()
        assert is_there(scene, "a"), "there is something that c could not forward"
        scene.messages.clear()
        await scene.apply()
        assert not list(scene.services.directory.below(""))

    run(check)


def test_an_entry_of_a_former_version_deletes_nothing(run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        await scene.apply([queue("q")])
        entry = await scene.coordinator.entry(KEY)
        assert entry is not None
        assert entry.value is not None
        found = json.loads(entry.value)
        del found["entities"]["q"]["made"]
        await scene.coordinator.write([Write(KEY, json.dumps(found))])
        await scene.apply()
        assert is_there(scene, "q")

    run(check)


def test_without_an_answer_of_a_shard_or_the_coordinator_it_stays(
    run: Callable[[Check], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        async def down() -> None:
            raise ShardDownError("the shard does not serve")

        await scene.apply([queue("q"), queue("q2")])
        shards.arrives["q"] = down
        drop = scene.services.namespace.drop_as_read

        async def fail(record: Any, guards: Any) -> None:
            assert record.name == "q2"
            raise CoordinatorError("no answer")

        monkeypatch.setattr(scene.services.namespace, "drop_as_read", fail)
        await scene.apply()
        assert (is_there(scene, "q"), is_there(scene, "q2")) == (True, True)
        assert shards.serves("q2"), "its name was written anew, so that no deletion is applied late"
        monkeypatch.setattr(scene.services.namespace, "drop_as_read", drop)
        shards.arrives.clear()
        await scene.apply()
        assert not list(scene.services.directory.below(""))

    run(check)


def test_only_so_many_requests_are_under_way(run: Callable[[Check], None]) -> None:
    async def check(scene: Scene, shards: Shards) -> None:
        count = RETIRED_AT_ONCE_MAX + 5
        many = {"Name": "t", "Subscriptions": [{"Name": f"s{each}"} for each in range(count)]}
        await scene.apply(topics=[many])
        await scene.apply()
        assert not is_there(scene, "t")
        assert len(shards.retired) == count
        assert shards.most == RETIRED_AT_ONCE_MAX
        assert not [each for each in await scene.coordinator.entries(NAMES) if each.value]

    run(check)
