"""Endpoint: what the HTTP client of pushes makes of answers, good and bad, and where it does not go."""

import asyncio
import socket
import threading

import pytest

from lightrail.gateway.forwarding import endpoint
from lightrail.gateway.forwarding.endpoint import Endpoints, Result
from lightrail.model.endpoint import Destinations
from tests.support.hook import Answer, Got, Hook


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
        ((200, {}, b"x" * (endpoint.PUSH_RESPONSE_BYTES + 100_000)), Result(200)),
        ((500, {}, b"oh"), Result(500, None, "the answer was: status 500")),
        (
            (302, {"Location": "http://127.0.0.1:1/"}, b""),
            Result(302, None, "redirects are not followed: status 302"),
        ),
        ((429, {"Retry-After": "7"}, b""), Result(429, 7.0, "the answer was: status 429")),
        (
            (503, {"Retry-After": str(endpoint.PUSH_RETRY_AFTER_MS_MAX // 1000)}, b""),
            Result(503, endpoint.PUSH_RETRY_AFTER_MS_MAX / 1000, "the answer was: status 503"),
        ),
        (
            (503, {"Retry-After": "999999999999"}, b""),
            Result(503, endpoint.PUSH_RETRY_AFTER_MS_MAX / 1000, "the answer was: status 503"),
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
        monkeypatch.setattr(endpoint, "PUSH_REQUEST_MS", 50)
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
    monkeypatch.setattr(endpoint, "PUSHES_UNDER_WAY", 2)
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
