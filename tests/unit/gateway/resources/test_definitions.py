"""Definitions over HTTP: an export is written as it is read, and other requests go on meanwhile."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.request import Request
from lightrail.gateway.resources.definitions import _exported, _Import
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service


async def filled(names: int) -> Service:
    coordinator = MemoryCoordinator()
    await coordinator.set_shards(1)
    service = Service(coordinator, Directory(coordinator))
    for number in range(names):
        await service.give(
            ANYBODY, f"n/{number:03}", Policy.parse({"role": "queue", "max_length": 1 + number})
        )
    await service.give(ANYBODY, "r", Policy.parse({"role": "router"}))
    for id, owner in (("s2", ""), ("s1", ""), ("of a link", "f/b/c/s/l")):
        await service.subscribe(ANYBODY, "r", "n/000", id=id, owner=owner)
    await service.permit(ANYBODY, "bob", "n", frozenset({Right.SEND}))
    await service.permit(ANYBODY, "alice", "", frozenset({Right.MANAGE}))
    return service


async def exported(service: Service, prefix: str = "") -> dict[str, Any]:
    request = cast(Request, SimpleNamespace(directory=service.directory, caller=ANYBODY))
    found = json.loads("".join([part async for part in _exported(request, prefix)]))
    assert isinstance(found, dict)
    return found


def test_an_export_has_everything_in_order() -> None:
    async def check() -> None:
        service = await filled(3)
        found = await exported(service)
        assert list(found) == ["format", "names", "subscriptions", "permissions"]
        assert list(found["names"]) == ["n/000", "n/001", "n/002", "r"]
        assert found["names"]["n/001"] == {"role": "queue", "max_length": 2}
        assert [each["id"] for each in found["subscriptions"]] == ["s1", "s2"]
        assert [each["user"] for each in found["permissions"]] == ["alice", "bob"]
        below = await exported(service, "n")
        assert (len(below["names"]), below["subscriptions"]) == (3, [])
        assert [each["user"] for each in below["permissions"]] == ["bob"]
        assert await exported(service, "nothing") == {
            "format": 1,
            "names": {},
            "subscriptions": [],
            "permissions": [],
        }

    asyncio.run(check())


def test_other_requests_go_on_during_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMES_AT_ONCE", 10)

    async def check() -> None:
        service = await filled(200)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        going_on = asyncio.create_task(others())
        assert len((await exported(service))["names"]) == 201
        assert turns >= 2 * 200 // 10
        going_on.cancel()

    asyncio.run(check())


def test_a_subscription_drops_failed_messages_by_true_alone() -> None:
    async def check() -> None:
        service = await filled(1)
        services = SimpleNamespace(namespace=service)
        request = SimpleNamespace(directory=service.directory, caller=ANYBODY, services=services)
        taking = _Import(cast(Request, request), dry=False, replace=False)
        entry = {"id": "new", "router": "r", "target": "n/000"}
        wrongs: list[Any] = ["false", 1, {}]
        for wrong in wrongs:
            await taking.subscription({**entry, "drop_failed": wrong})
        assert service.directory.subscription("r", "new") is None
        assert ["drop_failed" in each["why"] for each in taking.report["refused"]] == [True] * 3
        await taking.subscription({**entry, "drop_failed": True})
        # What is no different is unchanged, also as other tools write it.
        await taking.subscription({**entry, "drop_failed": True})
        await taking.subscription({"id": "s1", "router": "r", "target": "n/000", "drop_failed": False})
        assert (len(taking.report["created"]), taking.report["unchanged"]) == (1, 2)

    asyncio.run(check())
