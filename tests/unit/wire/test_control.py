"""Control sockets over real ipc: answers, errors that are told, and time-outs where nobody answers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from lightrail.model import conditions
from lightrail.wire import control
from lightrail.wire.bodies import encode_request
from lightrail.wire.control import (
    ControlClient,
    ControlDownError,
    ControlRefusedError,
    ControlServer,
    Operation,
    address,
)
from lightrail.wire.frames import Kind, frame
from lightrail.wire.sockets.wiring import Wiring

Check = Callable[[ControlClient, Wiring, str], Awaitable[None]]


def with_client(tmp_path: Path, check: Check, **operations: Operation) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        wiring = Wiring(loop)
        where = address(str(tmp_path), 3)
        server = ControlServer(wiring, where, operations) if operations else None
        client = ControlClient(loop, wiring, where)
        try:
            await check(client, wiring, where)
        finally:
            client.close()
            if server is not None:
                server.close()
            wiring.close()

    asyncio.run(run())


def test_every_request_gets_its_own_answer(tmp_path: Path) -> None:
    async def check(client: ControlClient, *_: Any) -> None:
        answers = await asyncio.gather(*(client.request("double", {"n": n}) for n in range(50)))
        assert answers == [{"n": 2 * n} for n in range(50)]

    with_client(tmp_path, check, double=lambda fields: {"n": 2 * fields["n"]})


def test_a_refusal_reaches_who_asked(tmp_path: Path) -> None:
    def refuse(fields: dict[str, Any]) -> dict[str, Any]:
        raise ControlRefusedError(conditions.NOT_FOUND, "no such thing")

    async def check(client: ControlClient, *_: Any) -> None:
        with pytest.raises(ControlRefusedError, match="no such thing") as refused:
            await client.request("refuse", {})
        assert refused.value.condition == conditions.NOT_FOUND
        with pytest.raises(ControlRefusedError, match="expected one of refuse, found 'other'"):
            await client.request("other", {})

    with_client(tmp_path, check, refuse=refuse)


def test_a_mistake_of_ours_is_an_answer_and_the_socket_goes_on(tmp_path: Path) -> None:
    def fail(fields: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("a mistake")

    async def check(client: ControlClient, *_: Any) -> None:
        for _again in range(2):
            with pytest.raises(ControlRefusedError, match="internal-error"):
                await client.request("fail", {})

    with_client(tmp_path, check, fail=fail)


def test_who_is_not_there_is_away(tmp_path: Path) -> None:
    async def check(client: ControlClient, *_: Any) -> None:
        with pytest.raises(ControlDownError, match="within 60 ms"):
            await client.request("anything", {}, wait_ms=60)

    with_client(tmp_path, check)


def test_a_client_finds_a_server_that_comes_later(tmp_path: Path) -> None:
    async def check(client: ControlClient, wiring: Wiring, where: str) -> None:
        asked = asyncio.ensure_future(client.request("op", {}, wait_ms=20_000))
        await asyncio.sleep(0)
        server = ControlServer(wiring, where, {"op": lambda fields: {"here": True}})
        assert await asked == {"here": True}
        server.close()

    with_client(tmp_path, check)


def test_nonsense_on_the_socket_ends_nothing(tmp_path: Path) -> None:
    async def check(client: ControlClient, wiring: Wiring, where: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.connect(where)
        for parts in ([b""], [b"x"], [b"x" * 100], [b"a", b"b"], [frame(Kind.PING)]):
            stranger.send_multipart(parts)
        stranger.send(frame(Kind.REQUEST, number=1, body=b"no request"))
        stranger.send(frame(Kind.REQUEST, number=2, body=encode_request({"op": 7})))
        assert await client.request("op", {}) == {}
        context.destroy(0)

    with_client(tmp_path, check, op=lambda fields: {})


def test_closing_tells_who_waits(tmp_path: Path) -> None:
    async def check(client: ControlClient, wiring: Wiring, where: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        silent = context.socket(zmq.ROUTER)
        silent.bind(where)
        asked = asyncio.ensure_future(client.request("op", {}))
        await asyncio.to_thread(silent.poll, 20_000)
        client.close()
        with pytest.raises(ControlDownError, match="ending"):
            await asked
        context.destroy(0)

    with_client(tmp_path, check)


def test_at_most_so_many_requests_wait_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CONTROL_REQUESTS_MAX", 3)

    async def check(client: ControlClient, *_: Any) -> None:
        waiting = [asyncio.ensure_future(client.request("double", {"n": n})) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ControlDownError, match="3 requests wait for an answer already; try again"):
            await client.request("double", {"n": 3})
        assert [each["n"] for each in await asyncio.gather(*waiting)] == [0, 2, 4]
        assert await client.request("double", {"n": 3}) == {"n": 6}

    with_client(tmp_path, check, double=lambda fields: {"n": 2 * fields["n"]})
