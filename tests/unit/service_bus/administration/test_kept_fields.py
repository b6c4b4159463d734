"""Fields of policies that no property of Service Bus shows: administration clients keep them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.resources.atom import element
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import ChangedError
from lightrail.service_bus.administration.call import Call
from lightrail.service_bus.administration.properties import (
    NEW_SUBSCRIPTION,
    NEW_TOPIC,
    Server,
    changed,
    queue_properties,
    subscription_properties,
)
from lightrail.service_bus.administration.subscriptions import _give_queue

SERVER = Server("host:1", 5, 1 << 20)
OURS: dict[str, Any] = {
    "retry_delay": 5,
    "retry_growth": 3,
    "retry_delay_max": 60,
    "max_length": 1_000,
    "overflow": "reject",
    "max_consumers": 7,
    "exclusive": False,
    "delay": True,
    "lifetime": "last_consumer",
    "authorization": "required",
    "enqueue_timeout": 3,
}
QUEUE = "topic/Subscriptions/s"


def policy_of(**fields: Any) -> Policy:
    return Policy.parse({"role": "queue", **OURS, **fields})


class Scene:
    """Two services on one coordinator; the second one is another process."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.here, self.there = (Service(self.coordinator, Directory(self.coordinator)) for _ in range(2))

    def call(self, if_match: int | None = None) -> Call:
        services = SimpleNamespace(
            namespace=self.here,
            directory=self.here.directory,
            settings=SimpleNamespace(max_delivery_count=5, max_message_bytes=1 << 20),
        )
        http = SimpleNamespace(host="host:1")
        request: Any = SimpleNamespace(
            services=services, caller=ANYBODY, http=http, revision=lambda: if_match
        )
        return Call(request, None)  # type: ignore[arg-type]


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def checked() -> None:
        scene = Scene()
        await scene.coordinator.set_shards(1)
        await check(scene)

    asyncio.run(checked())


@pytest.mark.parametrize("properties", [queue_properties, subscription_properties])
def test_every_field_without_a_property_stays(properties: Callable[[Policy, Server], dict[str, str]]) -> None:
    before = policy_of(max_delivery_count=3)
    sent: Mapping[str, str] = properties(before, SERVER) | {"MaxDeliveryCount": "4", "LockDuration": "PT9S"}
    wanted = {name: element(name, value) for name, value in sent.items()}
    after = changed(before, wanted, properties(before, SERVER))
    assert after.given == {**before.given, "max_delivery_count": 4, "lock_duration": 9}


def test_the_queue_of_a_subscription_that_exists_already_keeps_its_fields() -> None:
    async def check(scene: Scene) -> None:
        await scene.here.give(ANYBODY, QUEUE, policy_of(lock_duration=5, max_bytes=1 << 20, max_age=3))
        assert not await _give_queue(
            scene.call(),
            QUEUE,
            {"MaxDeliveryCount": element("MaxDeliveryCount", "4")},
            NEW_TOPIC,
            delays=False,
        )
        assert scene.here.directory.get(QUEUE).policy == policy_of(
            max_bytes=1 << 20, lock_duration=60, max_delivery_count=4, expired="discard"
        )

    run(check)


@pytest.mark.parametrize("delays", [False, True])
def test_a_new_queue_of_a_subscription_has_the_defaults_of_service_bus(delays: bool) -> None:
    async def check(scene: Scene) -> None:
        assert await _give_queue(scene.call(), QUEUE, {}, NEW_TOPIC, delays=delays)
        policy = scene.here.directory.get(QUEUE).policy
        assert policy.given == {**NEW_SUBSCRIPTION.given, **({"delay": True} if delays else {})}

    run(check)


@pytest.mark.parametrize("has_read", [True, False])
def test_a_field_that_somebody_else_sets_meanwhile_is_not_lost(has_read: bool) -> None:
    async def check(scene: Scene) -> None:
        record = await scene.here.give(ANYBODY, "q", policy_of())
        scene.there.directory.refresh()
        await scene.there.change(ANYBODY, "q", policy_of(retry_delay=9))
        with pytest.raises(ChangedError):
            await scene.call(record.revision if has_read else None).change(
                record, policy_of(max_delivery_count=4)
            )
        assert scene.here.directory.get("q").policy["retry_delay"] == 9

    run(check)
