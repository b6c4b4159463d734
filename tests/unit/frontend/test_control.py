"""What a frontend tells of its connections: pages, filters, links as the engine has them, closing one."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.settings import ConnectionSettings
from lightrail.frontend import connections
from lightrail.frontend.connections import operations
from lightrail.model import conditions, limits
from lightrail.wire.control import ControlRefusedError
from tests.support.amqp.frontend_scene import Client, Scene, play


def ask(scene: Scene, op: str, **fields: Any) -> dict[str, Any]:
    return operations(scene.frontend)[op](fields)


async def opened(scene: Scene, container: str) -> Client:
    settings = ConnectionSettings(is_server=False, container_id=container, idle_time_out_ms=0)
    client = scene.client(settings=settings)
    await client.open()
    return client


def test_pages_have_every_connection_once_in_order() -> None:
    async def test(scene: Scene) -> None:
        for number in range(7):
            await opened(scene, f"c{number}")
        seen: list[str] = []
        after: int | None = 0
        while after is not None:
            page = ask(scene, "connections", after=after, count=3)
            assert len(page["connections"]) <= 3
            seen += [each["container"] for each in page["connections"]]
            after = page["next"]
        assert seen == [f"c{number}" for number in range(7)]

    play(test)


def test_filters_look_at_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONTROL_SCAN_MAX", 2)

    async def test(scene: Scene) -> None:
        for number in range(5):
            await opened(scene, f"c{number}")
        first = ask(scene, "connections", container="c3")
        assert first["connections"] == []
        second = ask(scene, "connections", container="c3", after=first["next"])
        assert [each["container"] for each in second["connections"]] == ["c3"]
        third = ask(scene, "connections", container="c3", after=second["next"])
        assert third == {"connections": [], "next": None}
        assert ask(scene, "connections", user="somebody else")["connections"] == []

    play(test)


def test_a_connection_is_shown_with_its_sessions_and_links() -> None:
    async def test(scene: Scene) -> None:
        client = await opened(scene, "the client")
        session = client.amqp.begin()
        await client.turn()
        sender = await client.sender(session, "out", "q1")
        receiver = await client.receiver(session, "in", "q2")
        scene.shard.ready()
        await client.turn()
        receiver.grant(7)
        sender.send_one(b"\x00\x53\x75\xa0\x01x")
        await client.turn()
        (entry,) = ask(scene, "connections")["connections"]
        assert entry == ask(scene, "connection", id=entry["id"])["connection"]
        assert entry["id"] == "frontend-0.00000007.1"
        assert (entry["user"], entry["container"], entry["tls"]) == ("anonymous", "the client", False)
        assert (entry["peer"], entry["state"]) == ("127.0.0.1:40000", "open")
        assert entry["since"] == "1970-01-01T00:16:40.000Z"
        assert [len(each["links"]) for each in entry["session_list"]] == [0, 2]
        assert (entry["sessions"], entry["links"]) == (2, 2)
        out, into = entry["session_list"][1]["links"]
        assert (out["name"], out["role"], out["address"]) == ("out", "sender", "q1")
        assert (out["received"], out["unsettled"], out["state"]) == (1, 1, "attached")
        assert out["credit"] == limits.LINK_CREDIT_MAX - 1
        assert (into["name"], into["role"], into["address"]) == ("in", "receiver", "q2")
        assert (into["delivered"], into["unsettled"], into["credit"]) == (0, 0, 7)

    play(test)


def test_what_a_list_leaves_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONTROL_LINKS_SHOWN", 2)

    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        for number in range(5):
            await client.sender(session, f"s{number}")
        (entry,) = ask(scene, "connections")["connections"]
        assert (entry["links"], entry["links_left_out"]) == (5, 3)
        whole = ask(scene, "connection", id=entry["id"])["connection"]
        assert (whole["links"], whole["links_left_out"]) == (5, 0)

    play(test)


def test_closing_tells_the_client_why() -> None:
    async def test(scene: Scene) -> None:
        client = await opened(scene, "c")
        (entry,) = ask(scene, "connections")["connections"]
        assert ask(scene, "close", id=entry["id"], text="maintenance") == {}
        await client.turn()
        (closed,) = client.take(events.Closed)
        assert closed.error is not None
        assert closed.error.condition == conditions.CONNECTION_FORCED
        assert closed.error.description == "maintenance"
        await client.turn()
        assert ask(scene, "connections")["connections"] == []

    play(test)


@pytest.mark.parametrize(
    "id", [None, "", "frontend-0.00000007.2", "frontend-0.00000008.1", "frontend-0.00000007.x", 5]
)
def test_a_connection_that_is_not_there_is_not_found(id: object) -> None:
    async def test(scene: Scene) -> None:
        await opened(scene, "c")
        for op in ("connection", "close"):
            with pytest.raises(ControlRefusedError, match=conditions.NOT_FOUND):
                ask(scene, op, id=id)

    play(test)


@pytest.mark.parametrize("fields", [{"after": -1}, {"count": 0}, {"count": 10**9}, {"after": "x"}])
def test_pages_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    async def test(scene: Scene) -> None:
        with pytest.raises(ControlRefusedError, match="expected a whole number"):
            ask(scene, "connections", **fields)

    play(test)
