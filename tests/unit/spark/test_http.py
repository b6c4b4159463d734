"""GatewayClient: what it says again and for how long, what it raises, and where secrets are."""

import base64
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.spark.http import (
    Access,
    GatewayAwayError,
    GatewayClient,
    GatewayError,
    GatewayRefusedError,
    path_of,
)
from tests.support.fake_gateway import FakeGateway


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as fake:
        yield fake


def client(clock: Clock, *urls: str, **more: Any) -> GatewayClient:
    return GatewayClient(Access(urls, **more), retry_ms=10_000, monotonic=clock.monotonic, sleep=clock.sleep)


def test_an_answer_that_asks_to_try_again_is_asked_again(gateway: FakeGateway) -> None:
    clock = Clock()
    gateway.answers["POST", "/q/!batch"] = [
        (503, {"Retry-After": "1"}, {"detail": "full"}),
        (200, {}, {"stored": 1}),
    ]
    with client(clock, gateway.url) as asked:
        assert asked.post("/q/!batch", b"x").json() == {"stored": 1}
    assert clock.slept == [1.0]
    assert [body for _, _, body, _ in gateway.asked] == [b"x", b"x"]


def test_pauses_double_up_to_a_bound_and_end() -> None:
    clock = Clock()
    with (
        client(clock, "http://127.0.0.1:1") as asked,
        pytest.raises(GatewayAwayError, match=r"no answer .*tried for 10 s"),
    ):
        asked.get("/!journals")
    assert clock.slept[:3] == [0.1, 0.2, 0.4]
    assert max(clock.slept) <= limits.SPARK_RETRY_PAUSE_MS_MAX / 1000
    assert clock.now <= 10


def test_who_waits_for_a_gateway_hears_once_what_for(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    with client(clock, "http://127.0.0.1:1") as asked, pytest.raises(GatewayAwayError):
        asked.get("/!journals")
    assert len(clock.slept) > 5
    (said,) = caplog.messages
    assert said.startswith("http://127.0.0.1:1: no answer (")
    assert said.endswith("; trying for 10 s")


def test_the_next_gateway_is_asked_when_one_does_not_answer(gateway: FakeGateway) -> None:
    gateway.answers["GET", "/!journals"] = (200, {}, [])
    with client(Clock(), "http://127.0.0.1:1", gateway.url) as asked:
        assert asked.get("/!journals").json() == []


def test_a_refusal_is_not_said_again_and_tells_what_the_gateway_said(gateway: FakeGateway) -> None:
    gateway.answers["POST", "/q/!batch"] = (413, {}, {"detail": "too large", "condition": "c"})
    with (
        client(Clock(), gateway.url) as asked,
        pytest.raises(GatewayRefusedError, match="413 too large") as caught,
    ):
        asked.post("/q/!batch", b"x")
    assert (caught.value.status, caught.value.problem["condition"]) == (413, "c")
    assert len(gateway.asked) == 1
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, str(copy)) == (413, str(caught.value))


def test_a_status_that_is_expected_is_an_answer(gateway: FakeGateway) -> None:
    with client(Clock(), gateway.url) as asked:
        assert asked.get("/!readers/none", good=(404,)).status == 404


def test_secrets_come_from_files_and_never_travel(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.answers["GET", "/!journals"] = (200, {}, [])
    secret = tmp_path / "password"
    secret.write_text("hush hush\n")
    access = Access((gateway.url,), user="alice", password_file=str(secret))
    assert b"hush" not in pickle.dumps(access)
    with GatewayClient(access) as asked:
        asked.get("/!journals", {"none": None, "from": 7})
    _, path, _, headers = gateway.asked[0]
    assert path == "/!journals?from=7"
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"alice:hush hush").decode()


def test_options_count_more_than_the_environment() -> None:
    environ = {"LIGHTRAIL_URL": "http://b:1", "LIGHTRAIL_USER": "u", "LIGHTRAIL_PASSWORD_FILE": "/p"}
    assert Access.of_options({}, environ) == Access(("http://b:1",), "u", "/p")
    given = {"Gateway": "https://a:2/, http://c", "tokenFile": "/t"}
    assert Access.of_options(given, environ) == Access(("https://a:2", "http://c"), token_file="/t")
    assert Access.of_options({"user": "v"}, environ | {"LIGHTRAIL_TOKEN_FILE": "/t"}).token_file == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "expected the option gateway"),
        ({"gateway": "amqp://a"}, "expected http://HOST:PORT"),
        ({"gateway": "http://a/path"}, "expected http://HOST:PORT"),
        ({"gateway": "http://a:port"}, "can't be used"),
        ({"gateway": "http://u:p@a"}, "would stand in plans and logs"),
        ({"gateway": "http://a", "password": "p"}, "use passwordFile"),
    ],
)
def test_options_that_can_not_be_used_say_what_was_expected(options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Access.of_options(options, {})
    assert ":p@" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with (
        GatewayClient(Access(("http://a",), token_file="/none/token")) as asked,
        pytest.raises(GatewayError, match=r"/none/token can't be read"),
    ):
        asked.get("/")


def test_a_secret_may_be_a_variable_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(("http://a",), user="u")
    with pytest.raises(GatewayError, match="passwordFile or the environment variable LIGHTRAIL_PASSWORD"):
        access.authorization()
    monkeypatch.setenv("LIGHTRAIL_PASSWORD", "p")
    assert access.authorization() == "Basic " + base64.b64encode(b"u:p").decode()
    monkeypatch.setenv("LIGHTRAIL_TOKEN", "t")
    assert Access(("http://a",)).authorization() == "Bearer t"


def test_paths_are_encoded_by_segment() -> None:
    assert path_of("a b/q%", "!batch") == "/a%20b/q%25/!batch"
