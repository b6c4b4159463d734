"""How parts of a request are read: a body that is late or too large, numbers, flags and revisions."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from lightrail.gateway import request as request_module
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.request import Request
from lightrail.namespace.rights import ANYBODY


def request(path: str = "/", headers: dict[str, str] | None = None, payload: Any = None) -> Request:
    kwargs = {} if payload is None else {"payload": payload}
    http: web.Request = make_mocked_request("POST", path, headers or {}, **kwargs)
    return Request(None, http, ANYBODY, "", ())  # type: ignore[arg-type]


def status_of(work: Any) -> int:
    with pytest.raises(ProblemError) as raised:
        asyncio.run(work)
    return raised.value.status


def test_a_late_body_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "HTTP_BODY_MS", 10)

    async def read() -> None:
        protocol = Mock(_reading_paused=False)
        payload = StreamReader(protocol, 2**16, loop=asyncio.get_running_loop())
        payload.feed_data(b"half of it")
        await request(payload=payload).body()

    assert status_of(read()) == 408


def test_a_large_body_is_413_by_its_length_and_by_its_bytes() -> None:
    async def said() -> None:
        await request(headers={"Content-Length": "11"}).body(10)

    async def sent() -> None:
        protocol = Mock(_reading_paused=False)
        payload = StreamReader(protocol, 2**16, loop=asyncio.get_running_loop())
        payload.feed_data(b"x" * 11)
        payload.feed_eof()
        await request(payload=payload).body(10)

    assert status_of(said()) == 413
    assert status_of(sent()) == 413


@pytest.mark.parametrize("text", ["-1", "x", "601", "nan", "inf", ""])
def test_seconds_have_a_range(text: str) -> None:
    with pytest.raises(ProblemError) as raised:
        request(f"/?timeout={text}").seconds("timeout", 0, 600)
    assert raised.value.status == 400
    assert request("/?timeout=0.5").seconds("timeout", 0, 600) == 0.5
    assert request().seconds("timeout", 7, 600) == 7


@pytest.mark.parametrize("text", ["-1", "x", "11", "1.5", "٣"])
def test_whole_numbers_have_a_range(text: str) -> None:
    with pytest.raises(ProblemError):
        request(f"/?count={text}").whole("count", 1, 0, 10)
    assert request("/?count=10").whole("count", 1, 0, 10) == 10


def test_flags_are_true_or_false() -> None:
    assert request("/?deep=true").flag("deep")
    assert not request("/?deep=false").flag("deep")
    assert not request("/").flag("deep")
    with pytest.raises(ProblemError):
        request("/?deep=perhaps").flag("deep")


@pytest.mark.parametrize(("tag", "revision"), [('"17"', 17), ('W/"17"', 17), ("*", None), (None, None)])
def test_an_etag_is_a_revision(tag: str | None, revision: int | None) -> None:
    assert request(headers={} if tag is None else {"If-Match": tag}).revision() == revision


def test_an_etag_that_was_never_given_matches_nothing() -> None:
    with pytest.raises(ProblemError) as raised:
        request(headers={"If-Match": '"x"'}).revision()
    assert raised.value.status == 412
