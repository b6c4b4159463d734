"""Pushers: what an endpoint gets, when it is tried again, and how it ends."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway import http_client
from lightrail.gateway.forwarding import forwarder
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.pushes import PUSH_BACKOFF_FACTOR_MAX, PUSH_WINDOW, Pushers, signature
from lightrail.gateway.forwarding.room import ForwardingRoom
from lightrail.gateway.http_client import Endpoints, Result
from lightrail.model.endpoint import Destinations
from lightrail.model.names import subscription_name
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Subscription
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.wire.frames import OutcomeCode
from tests.support.amqp.letters import message
from tests.support.documented import is_genuine
from tests.support.hook import Answer, Got, Hook
from tests.support.shard.engine_links import EngineLinks, EngineQueue
from tests.support.turns import until

ROOM_BYTES = 1_000_000


def post(url: str, *allow: str) -> Result:
    async def posted() -> Result:
        endpoints = Endpoints(Destinations(allow or ("127.0.0.1", "localhost")))
        try:
            return await endpoints.post(url, {"X-Own": "1"}, b"body")
        finally:
            await endpoints.close()

    return asyncio.run(posted())


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ((204, {}, b""), Result(204)),
        ((200, {}, b"x" * (http_client.PUSH_RESPONSE_BYTES + 100_000)), Result(200)),
        ((500, {}, b"oh"), Result(500, None, "the answer was: status 500")),
        (
            (302, {"Location": "http://127.0.0.1:1/"}, b""),
            Result(302, None, "redirects are not followed: status 302"),
        ),
        ((429, {"Retry-After": "7"}, b""), Result(429, 7.0, "the answer was: status 429")),
        (
            (503, {"Retry-After": str(http_client.PUSH_RETRY_AFTER_MS_MAX // 1000)}, b""),
            Result(503, http_client.PUSH_RETRY_AFTER_MS_MAX / 1000, "the answer was: status 503"),
        ),
        (
            (503, {"Retry-After": "999999999999"}, b""),
            Result(503, http_client.PUSH_RETRY_AFTER_MS_MAX / 1000, "the answer was: status 503"),
        ),
        (
            (503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, b""),
            Result(503, None, "the answer was: status 503"),
        ),
        ((500, {"Retry-After": "7"}, b""), Result(500, None, "the answer was: status 500")),
    ],
)
def test_answers(answer: Answer, result: Result) -> None:
    with Hook(lambda _: answer) as hook:
        assert post(f"{hook.url}/a?b=c") == result
    ((path, headers, body),) = hook.got
    assert (path, headers["x-own"], headers["user-agent"], body) == ("/a?b=c", "1", "LightRail", b"body")


def test_an_endpoint_that_is_not_there_or_says_nothing_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(http_client, "PUSH_REQUEST_MS", 50)
        assert post(f"http://127.0.0.1:{port}/") == Result(None, None, "no answer within 0.05 s")
    found = post(f"http://127.0.0.1:{port}/")
    assert found.status is None
    assert found.error.startswith("ClientConnectorError: ")


def test_a_host_that_is_not_allowed_any_more_is_not_called() -> None:
    with Hook() as hook:
        found = post(hook.url, "example.com")
    assert hook.got == []
    assert found.status is None
    assert "push_allow" in found.error


def test_a_public_name_that_leads_here_is_not_called() -> None:
    with Hook() as hook:
        found = post(hook.url.replace("127.0.0.1", "localhost"), "*")
        allowed = post(hook.url.replace("127.0.0.1", "localhost"), "localhost")
    assert len(hook.got) == 1
    assert allowed.status == 200
    assert "which push_allow does not allow for this name" in found.error


def test_at_most_so_many_requests_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "PUSHES_UNDER_WAY", 2)
    gate, there = threading.Event(), threading.Semaphore(0)
    most = under_way = 0
    lock = threading.Lock()

    def answer(_: Got) -> Answer:
        nonlocal most, under_way
        with lock:
            under_way += 1
            most = max(most, under_way)
        there.release()
        assert gate.wait(30)
        with lock:
            under_way -= 1
        return 200, {}, b""

    async def check(url: str) -> list[Result]:
        endpoints = Endpoints(Destinations(("127.0.0.1",)))
        posts = [asyncio.ensure_future(endpoints.post(url, {}, b"x")) for _ in range(5)]
        for _ in range(2):
            await asyncio.to_thread(there.acquire)
        gate.set()
        found = list(await asyncio.gather(*posts))
        await endpoints.close()
        return found

    with Hook(answer) as hook:
        assert asyncio.run(check(hook.url)) == [Result(200)] * 5
    assert most == 2


URL = "http://localhost:9000/hook"


class FakeEndpoints:
    """Answers as it is told; 200 without a word."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[Result] = []
        self.gate: asyncio.Event | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Result:
        self.requests.append((url, dict(headers), body))
        answer = self.answers.pop(0) if self.answers else Result(200)
        if self.gate is not None:
            await self.gate.wait()
        return answer


class Scene:
    """A router whose subscriptions are pushed."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.directory = Directory(self.coordinator)
        self.service = Service(self.coordinator, self.directory, destinations=Destinations(("localhost",)))
        self.links = EngineLinks()
        self.endpoints = FakeEndpoints()
        self.counts = ForwardingCounts()
        self.pauses: list[float] = []
        self.room = ForwardingRoom(ROOM_BYTES)
        self.may_go_on: asyncio.Event | None = None
        self.pushers = Pushers(
            self.service,
            cast(Any, self.links),
            self.endpoints.post,
            self.counts,
            self.room,
            pause=self.pause,
            draw=lambda: 1.0,
        )
        self.directory.listen(lambda changes: self.pushers.changed(changes.routers | changes.names.keys()))

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)
        if self.may_go_on is not None:
            await self.may_go_on.wait()

    async def subscribe(self, **policy: Any) -> tuple[Subscription, EngineQueue]:
        queue = self.links.peer.queue(subscription_name("r", "one"))
        await self.service.give(ANYBODY, "r", Policy.parse({"role": "router"} | policy))
        made = await self.service.subscribe(ANYBODY, "r", URL, id="one")
        await until(lambda: bool(self.links.peer.consumers))
        return made, queue

    async def push(self, queue: EngineQueue, *messages: bytes) -> None:
        queue.add(*messages)
        self.links.peer.flush()


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def checked() -> None:
        scene = Scene()
        await scene.coordinator.set_shards(1)
        await check(scene)
        scene.pushers.close()

    asyncio.run(checked())


def test_a_push_is_a_receive_over_http_with_a_signature() -> None:
    async def check(scene: Scene) -> None:
        made, queue = await scene.subscribe()
        await scene.push(queue, message(b"hello", subject="s", own={"colour": "red"}))
        await until(lambda: bool(queue.outcomes))
        ((url, headers, body),) = scene.endpoints.requests
        assert (url, body) == (URL, b"hello")
        broker = json.loads(headers["BrokerProperties"])
        assert (broker["Subject"], broker["SequenceNumber"]) == ("s", 0)
        assert headers["LightRail-Property-colour"] == '"red"'
        assert headers["LightRail-Subscription"] == "/r/!subscriptions/one"
        assert headers["LightRail-Delivery"] == "1"
        stamp, _, _ = headers["LightRail-Signature"].partition(",")
        assert stamp == "t=1000"
        assert is_genuine(headers["LightRail-Signature"], made.secret, body, time.time())
        assert not is_genuine(headers["LightRail-Signature"], made.secret, body)
        assert not is_genuine(headers["LightRail-Signature"], made.secret, b"other", time.time())
        assert not is_genuine(headers["LightRail-Signature"], "other", body, time.time())
        assert queue.outcomes[0][0] is OutcomeCode.ACCEPTED
        assert (scene.counts.pushes_accepted, scene.counts.pushers) == (1, 1)

    run(check)


def test_the_signature_is_the_documented_one() -> None:
    # printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
    expected = "t=1700000000,v1=49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686"
    assert signature("secret", b'{"a":1}', 1_700_000_000) == expected


def test_what_fails_is_tried_again_more_and_more_slowly_and_then_a_dead_letter() -> None:
    async def check(scene: Scene) -> None:
        _made, queue = await scene.subscribe(push_retries=9, push_backoff=0.5)
        scene.endpoints.answers = [Result(500, None, f"status 500, {number}") for number in range(10)]
        await scene.push(queue, message(b"x"))
        await until(lambda: bool(queue.outcomes))
        assert scene.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 50.0, 50.0]
        assert scene.pauses[-1] == 0.5 * PUSH_BACKOFF_FACTOR_MAX
        assert [each[1]["LightRail-Delivery"] for each in scene.endpoints.requests] == [
            str(number) for number in range(1, 11)
        ]
        code, detail = queue.outcomes[0]
        assert code is OutcomeCode.REJECTED
        assert detail.condition == "lightrail:push-failed"
        assert detail.description == f"{URL}: status 500, 9"
        assert (scene.counts.pushes_failed, scene.counts.pushes_dead_lettered) == (10, 1)

    run(check)


def test_a_push_that_succeeds_in_the_end_is_settled() -> None:
    async def check(scene: Scene) -> None:
        _made, queue = await scene.subscribe()
        scene.endpoints.answers = [Result(None, None, "no answer"), Result(404, None, "status 404")]
        await scene.push(queue, message(b"x"))
        await until(lambda: bool(queue.outcomes))
        assert queue.outcomes[0][0] is OutcomeCode.ACCEPTED
        assert len(scene.endpoints.requests) == 3

    run(check)


def test_an_endpoint_that_asks_for_a_pause_gets_it() -> None:
    async def check(scene: Scene) -> None:
        _made, queue = await scene.subscribe(push_backoff=1)
        scene.endpoints.answers = [Result(429, 30.0, "status 429"), Result(503, 0.1, "status 503")]
        await scene.push(queue, message(b"x"))
        await until(lambda: bool(queue.outcomes))
        assert scene.pauses == [30.0, 2.0]

    run(check)


def test_410_ends_the_subscription() -> None:
    async def check(scene: Scene) -> None:
        _made, queue = await scene.subscribe()
        scene.endpoints.answers = [Result(410, None, "status 410")] * 3
        await scene.push(queue, message(b"1"), message(b"2"), message(b"3"))
        await until(lambda: scene.counts.subscriptions_gone == 1)
        assert scene.directory.subscriptions("r") == []
        assert scene.directory.find(subscription_name("r", "one")) is None
        assert await scene.coordinator.placement(subscription_name("r", "one")) is None
        assert scene.links.peer.consumers == {}
        assert scene.counts.pushers == 0

    run(check)


def test_an_endpoint_that_does_not_answer_is_sent_a_window_and_no_more() -> None:
    async def check(scene: Scene) -> None:
        _made, queue = await scene.subscribe()
        scene.endpoints.gate = asyncio.Event()
        await scene.push(queue, *(message(b"%d" % number) for number in range(50)))
        await until(lambda: len(scene.endpoints.requests) == PUSH_WINDOW)
        assert scene.counts.pushes_under_way == PUSH_WINDOW
        assert queue.ready == 50 - PUSH_WINDOW
        scene.endpoints.gate.set()
        await until(lambda: len(queue.outcomes) == 50)
        assert scene.counts.pushes_under_way == 0
        assert [each[2] for each in scene.endpoints.requests] == [b"%d" % number for number in range(50)]

    run(check)


class Forwarding:
    """A forwarder that has messages under way, and no room besides."""

    held, is_waiting = 2, False

    def give_back(self) -> None:
        raise AssertionError("its messages are under way")


class Waiting(Forwarding):
    is_waiting, has_given_back = True, False

    def give_back(self) -> None:
        self.has_given_back = True


def test_one_that_waits_for_its_endpoint_makes_room_and_its_attempts_count_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarder, "FORWARDER_OPEN_PAUSE_MS", 0)

    async def check(scene: Scene) -> None:
        _made, queue = await scene.subscribe(push_retries=2, push_backoff=0.5)
        scene.endpoints.answers = [Result(500, None, f"status 500, {number}") for number in range(6)]
        scene.may_go_on = asyncio.Event()
        await scene.push(queue, message(b"1"), message(b"2"))
        await until(lambda: len(scene.pauses) == 2)
        assert scene.room.held > 0
        other = Forwarding()
        scene.room.hold(other, ROOM_BYTES)
        assert scene.room.held == ROOM_BYTES, "it has given its messages back"
        scene.room.hold(other, 0)
        scene.may_go_on.set()
        await until(lambda: len(queue.outcomes) == 2)
        assert [code for code, _ in queue.outcomes.values()] == [OutcomeCode.REJECTED] * 2
        assert len(scene.endpoints.requests) == 6, "three attempts of each"
        # One after the other: what is left of the first pause, and the second one.
        assert scene.pauses == [0.5, 0.5, *(0.5, 1.0), *(0.5, 1.0)]

    run(check)


def test_one_whose_endpoint_has_not_answered_yet_does_not_wait() -> None:
    async def check(scene: Scene) -> None:
        _made, queue = await scene.subscribe()
        scene.endpoints.gate = asyncio.Event()
        await scene.push(queue, message(b"1"))
        await until(lambda: len(scene.endpoints.requests) == 1)
        waits = Waiting()
        scene.room.hold(waits, ROOM_BYTES)
        assert waits.has_given_back
        scene.endpoints.gate.set()
        await until(lambda: bool(queue.outcomes))

    run(check)


def test_pushers_follow_subscriptions_and_policies() -> None:
    async def check(scene: Scene) -> None:
        made, queue = await scene.subscribe()
        other = "https://localhost/other"
        await scene.service.subscribe(ANYBODY, "r", other, id=made.id, replace_it=True)
        await until(lambda: bool(scene.links.peer.consumers))
        await scene.push(queue, message(b"x"))
        await until(lambda: bool(queue.outcomes))
        assert scene.endpoints.requests[0][0] == other
        await scene.service.change(ANYBODY, "r", Policy.parse({"role": "router", "push_retries": 0}))
        await until(lambda: bool(scene.links.peer.consumers))
        scene.endpoints.answers = [Result(500, None, "status 500")]
        await scene.push(queue, message(b"y"))
        await until(lambda: 1 in queue.outcomes)
        assert queue.outcomes[1][0] is OutcomeCode.REJECTED
        await scene.service.unsubscribe(ANYBODY, "r", made.id)
        assert (scene.links.peer.consumers, scene.counts.pushers) == ({}, 0)

    run(check)


@pytest.mark.parametrize("gone", ["router", "queue"])
def test_pushers_go_with_their_router_and_their_queue(gone: str) -> None:
    async def check(scene: Scene) -> None:
        await scene.subscribe()
        await scene.service.drop(ANYBODY, "r" if gone == "router" else subscription_name("r", "one"))
        assert (scene.links.peer.consumers, scene.counts.pushers) == ({}, 0)

    run(check)
