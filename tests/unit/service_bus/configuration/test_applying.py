"""A configuration file is applied: what is made, what is changed, what stays, and what is refused."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.app import open_services
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Members
from lightrail.gateway.services import Services
from lightrail.model.settings import Settings
from lightrail.namespace.records import AuthorizationRule, Right, SealedKey
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.rules import Rule, rules_of
from lightrail.namespace.statuses import LimitExceededError
from lightrail.service_bus import gateway as plugged
from lightrail.service_bus.configuration import applying
from lightrail.service_bus.configuration.applying import APPLY_TRIES, KEY, apply
from lightrail.service_bus.configuration.file import ConfigFileError, read
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.telemetry.process import CannotServeError
from lightrail.wire.sockets.wiring import Wiring


class Scene:
    """A gateway without shards; `messages` says how many a queue has."""

    def __init__(self, coordinator: MemoryCoordinator, settings: Settings) -> None:
        self.coordinator = coordinator
        members = Members()
        shards = ShardConnections(
            coordinator,
            asyncio.get_running_loop(),
            Wiring(asyncio.get_running_loop()),
            name="gateway-0",
            boot=1,
        )
        self.services: Services = open_services(
            settings=settings,
            coordinator=coordinator,
            shards=shards,
            members=members,
            health=Health(0, members, lambda: None),
        )
        self.messages: dict[str, int] = {}

    async def rows(self, _: Services, names: list[str]) -> list[dict[str, Any]]:
        zero = {"in_flight": 0, "delayed": 0, "deferred": 0}
        return [{"name": name, "ready": self.messages.get(name, 0), **zero} for name in names]

    async def apply(self, queues: Any = (), topics: Any = ()) -> None:
        namespace = {"Name": "sbemulatorns", "Queues": list(queues), "Topics": list(topics)}
        await apply(self.services, read(json.dumps({"UserConfig": {"Namespaces": [namespace]}})))
        self.services.directory.refresh()

    async def refused(self, queues: Any = (), topics: Any = ()) -> str:
        """The message of a refusal, after which nothing has changed."""
        before = await self.coordinator.entries("")
        with pytest.raises(ConfigFileError) as error:
            await self.apply(queues, topics)
        assert await self.coordinator.entries("") == before
        return str(error.value)

    def policy(self, name: str) -> dict[str, Any]:
        found = self.services.directory.find(name)
        assert found is not None, name
        return dict(found.policy.given)

    async def change(self, name: str, **fields: Any) -> None:
        """An application changes a policy."""
        record = self.services.directory.get(name)
        policy = type(record.policy).parse({"role": str(record.role), **record.policy.given, **fields})
        await self.services.namespace.change(ANYBODY, name, policy)

    def rules(self, topic: str, subscription: str) -> dict[str, Any]:
        found = self.services.directory.subscription(topic, subscription)
        assert found is not None
        return {name: plain(rule) for name, rule in rules_of(found).items()}


def plain(rule: Rule) -> dict[str, Any]:
    """A rule without the marks of the clients that wrote it."""
    return {
        part: value["rule"] if isinstance(value, dict) and value.keys() == {"rule"} else value
        for part, value in rule.items()
        if part in ("filter", "action")
    }


def play(check: Callable[[Scene], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        scene = Scene(coordinator, Settings(**settings))
        monkeypatch.setattr(applying, "rows_of", scene.rows)
        scene.services.directory.refresh()
        try:
            await check(scene)
        finally:
            services = scene.services
            await services.forwarding.close()
            services.receivers.close()
            services.sender.close()
            services.shards.close()
            services.shards.wiring.close()
            services.connections.close()

    asyncio.run(run())


def queue(name: str = "q", **properties: Any) -> dict[str, Any]:
    return {"Name": name, "Properties": properties}


def topic(*rules: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """The topic t with the subscription s."""
    return {"Name": "t", "Subscriptions": [{"Name": "s", "Properties": properties, "Rules": list(rules)}]}


def sql(name: str, expression: str, action: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
    return {"Name": name, "Properties": found | ({"Action": {"SqlExpression": action}} if action else {})}


def test_entities_are_made_with_their_properties_and_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        correlated = {
            "Name": "c",
            "Properties": {
                "FilterType": "Correlation",
                "CorrelationFilter": {"Label": "l", "Properties": {"p": "v", "n": 7, "f": True, "x": 1.5}},
            },
        }
        await scene.apply(
            [
                queue("sessions", RequiresSession=True, LockDuration="PT30S"),
                queue("dead", ForwardDeadLetteredMessagesTo="last"),
                queue("last", RequiresDuplicateDetection=True, AutoDeleteOnIdle="P427D"),
            ],
            [topic(sql("r", "a = 1", "SET sys.To = 'x'"), correlated, AutoDeleteOnIdle="PT5M")],
        )
        assert scene.policy("sessions")["groups"] is True
        assert (
            scene.policy("sessions")["lock_duration"],
            scene.policy("sessions")["max_delivery_count"],
        ) == (30, 3)
        assert scene.policy("sessions")["max_age"] == 3600
        assert scene.policy("dead")["dead_letter"] == "last"
        assert scene.policy("last")["duplicate_window"] == 20
        assert scene.policy("last")["max_idle"] == 427 * 86_400
        assert scene.policy("t/Subscriptions/s")["max_idle"] == 300
        assert scene.policy("t/Subscriptions/s")["max_delivery_count"] == 3
        one, two = scene.rules("t", "s").items()
        assert one == ("r", {"filter": {"sql": "a = 1"}, "action": {"sql": "SET sys.To = 'x'"}})
        # Types are kept as an administration client sends them.
        assert two[0] == "c"
        assert two[1]["filter"] == {
            "correlation": {"label": "l"},
            "properties": {"p": "v", "n": {"long": "7"}, "f": True, "x": {"double": "1.5"}},
        }

    play(check, monkeypatch)


def test_the_same_file_changes_nothing_and_what_an_application_changed_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(scene: Scene) -> None:
        await scene.apply([queue(MaxDeliveryCount=5)], [topic(sql("r", "a = 1"))])
        await scene.change("q", max_delivery_count=7)
        before = await scene.coordinator.entries("")
        await scene.apply([queue(MaxDeliveryCount=5)], [topic(sql("r", "a = 1"))])
        assert await scene.coordinator.entries("") == before
        # Another property of the same queue is changed in the file.
        await scene.apply([queue(MaxDeliveryCount=5, LockDuration="PT2M")], [topic(sql("r", "a = 1"))])
        assert (scene.policy("q")["max_delivery_count"], scene.policy("q")["lock_duration"]) == (7, 120)
        await scene.apply([queue(MaxDeliveryCount=6)], [topic(sql("r", "a = 1"))])
        assert (scene.policy("q")["max_delivery_count"], scene.policy("q")["lock_duration"]) == (6, 60)

    play(check, monkeypatch)


def test_rules_come_change_and_go_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        everything = {"filter": None, "action": None}
        await scene.apply(topics=[topic()])
        assert scene.rules("t", "s") == {"$Default": everything}
        await scene.apply(topics=[topic(sql("one", "a = 1"), sql("two", "a = 2"))])
        assert set(scene.rules("t", "s")) == {"one", "two"}
        await scene.apply(topics=[topic(sql("two", "a = 3"), sql("three", "b = 1"))])
        assert {name: rule["filter"] for name, rule in scene.rules("t", "s").items()} == {
            "two": {"sql": "a = 3"},
            "three": {"sql": "b = 1"},
        }
        await scene.apply(topics=[topic()])
        assert scene.rules("t", "s") == {"$Default": everything}

    play(check, monkeypatch)


def test_what_the_file_no_longer_has_stays_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(scene: Scene) -> None:
        await scene.apply([queue("kept"), queue("gone")], [topic()])
        with caplog.at_level(logging.WARNING):
            await scene.apply([queue("kept")])
        assert scene.policy("gone")
        assert scene.policy("t/Subscriptions/s")
        warned = [
            record.args[0]
            for record in caplog.records
            if record.levelno == logging.WARNING
            and record.name == "lightrail.service_bus.configuration"
            and isinstance(record.args, tuple)
        ]
        assert warned == ["gone", "t", "t/subscriptions/s"]
        # Back in the file, it is the same queue.
        await scene.apply([queue("kept"), queue("gone", MaxDeliveryCount=9)])
        assert scene.policy("gone")["max_delivery_count"] == 9

    play(check, monkeypatch)


def test_an_entity_that_was_deleted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        await scene.apply([queue(MaxDeliveryCount=5)], [topic(sql("r", "a = 1"))])
        await scene.services.namespace.drop(ANYBODY, "q")
        await scene.services.namespace.drop(ANYBODY, "t")
        await scene.apply([queue(MaxDeliveryCount=5)], [topic(sql("r", "a = 1"))])
        assert scene.policy("q")["max_delivery_count"] == 5
        assert scene.rules("t", "s") == {"r": {"filter": {"sql": "a = 1"}, "action": None}}

    play(check, monkeypatch)


def test_an_attempt_that_was_cut_at_any_write_is_finished_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = (
        [queue("a", ForwardDeadLetteredMessagesTo="b"), queue("b")],
        [topic(sql("one", "a = 1"), sql("two", "a = 2"))],
    )
    cuts = 0

    async def check(scene: Scene) -> None:
        nonlocal cuts
        write = scene.coordinator.write
        left = 0

        async def cut(writes: Any) -> int:
            nonlocal left
            if left == 0:
                raise ZeroDivisionError
            left -= 1
            return await write(writes)

        monkeypatch.setattr(scene.coordinator, "write", cut)
        while True:
            left = cuts
            try:
                await scene.apply(*file)
                break
            except ZeroDivisionError:
                cuts += 1
        monkeypatch.setattr(scene.coordinator, "write", write)
        await scene.apply(*file)
        assert scene.policy("a")["dead_letter"] == "b"
        assert list(scene.rules("t", "s")) == ["one", "two"]

    # Each attempt gets one write further than that before, on what that one has left.
    play(check, monkeypatch)
    assert cuts >= 3


def test_nothing_is_written_if_a_part_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        place = "UserConfig.Namespaces[0]"
        said = await scene.refused([queue("good"), queue("bad", Status="Sleeping")])
        assert said.startswith(f"{place}.Queues[1].Properties.Status: Status is 'Sleeping'; expected")
        said = await scene.refused([queue(ForwardDeadLetteredMessagesTo="nowhere")])
        assert said == (
            f"{place}.Queues[0].Properties.ForwardDeadLetteredMessagesTo: there is no queue or topic "
            "'nowhere', neither here nor in the file"
        )
        said = await scene.refused(topics=[topic(sql("r", "a = = 1"))])
        assert said.startswith(f"{place}.Topics[0].Subscriptions[0].Rules[0].Properties: ")
        await scene.apply([queue("was")])
        said = await scene.refused(topics=[{"Name": "was"}])
        assert said.startswith(f"{place}.Topics[0]: was is there as a queue")
        key = "ForwardDeadLetteredMessagesTo"
        circle = [queue("a", **{key: "b"}), queue("b", **{key: "a"}), queue("c", **{key: "a"})]
        said = await scene.refused(circle)
        assert said.split("\n") == [
            f"{place}.Queues[0].Properties.{key}: a forwards to itself in the end",
            f"{place}.Queues[1].Properties.{key}: b forwards to itself in the end",
        ]


def test_what_the_administration_refuses_after_all_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        async def full(*_: Any, **__: Any) -> None:
            raise LimitExceededError("there are too many names")

        monkeypatch.setattr(scene.services.namespace, "give", full)
        assert (
            await scene.refused([queue()]) == "UserConfig.Namespaces[0].Queues[0]: there are too many names"
        )

    play(check, monkeypatch)


def test_sessions_are_not_changed_under_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        await scene.apply([queue()], [topic()])
        scene.messages["q"] = 1
        said = await scene.refused([queue(RequiresSession=True)], [topic()])
        assert said.startswith(
            "UserConfig.Namespaces[0].Queues[0].Properties.RequiresSession: q has messages"
        )
        scene.messages["q"] = 0
        await scene.apply([queue(RequiresSession=True)], [topic(RequiresSession=True)])
        assert scene.policy("q")["groups"] is True
        assert scene.policy("t/Subscriptions/s")["groups"] is True

    play(check, monkeypatch)


def test_gateways_that_apply_at_once_try_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        entry, meddles = scene.coordinator.entry, APPLY_TRIES - 1

        async def meddled(key: str) -> Any:
            nonlocal meddles
            found = await entry(key)
            if meddles:
                meddles -= 1
                kept = {"version": 1, "entities": {"n": {"tries": meddles}}}
                await scene.coordinator.write([Write(KEY, json.dumps(kept))])
            return found

        monkeypatch.setattr(scene.coordinator, "entry", meddled)
        await scene.apply([queue()])
        meddles = APPLY_TRIES
        with pytest.raises(ConfigFileError, match="other gateways"):
            await scene.apply([queue(MaxDeliveryCount=4)])

    play(check, monkeypatch)


def test_what_a_later_version_applied_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        await scene.coordinator.write([Write(KEY, '{"version": 2, "entities": {}}')])
        assert "expected version 1" in await scene.refused([queue()])

    play(check, monkeypatch)


def test_a_start_ends_with_a_file_that_can_not_be_applied_and_a_restart_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "Config.json"
    path.write_text("{}")

    async def check(scene: Scene) -> None:
        with pytest.raises(CannotServeError, match="expected the member UserConfig") as error:
            await plugged.HOOKS.before_ready(scene.services, False)
        assert not error.value.heals, "no other start helps"
        await plugged.HOOKS.before_ready(scene.services, True)
        assert "expected the member UserConfig" in caplog.text

    play(check, monkeypatch, service_bus_config=str(path))


def test_without_a_file_nothing_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        await plugged.HOOKS.before_ready(scene.services, False)
        assert await scene.coordinator.entry(KEY) is None

    play(check, monkeypatch)


def test_authorization_rules_of_an_application_survive_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        await scene.apply([queue()])
        record = scene.services.directory.get("q")
        key = SealedKey(b"d" * 16, b"sealed with a secret that is not needed for that")
        rules = (AuthorizationRule("send", frozenset({Right.SEND}), key, key),)
        await scene.services.namespace.change(ANYBODY, "q", record.policy, rules=rules)
        await scene.apply([queue(MaxDeliveryCount=5)])
        changed = scene.services.directory.get("q")
        assert changed.policy["max_delivery_count"] == 5
        assert changed.authorization_rules == rules

    play(check, monkeypatch)
