"""Who gets in over HTTP: users by Basic and tokens, their rights by prefix, and what ends them."""

import asyncio
import ssl
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.logins import LOGIN_SOURCE_FREE, LOGIN_SOURCE_MS
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.namespace.records import Permission, Right
from tests.support import wait
from tests.support.batches import message, post, texts
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.http_client import Http

ITERATIONS = 4_096


def at_coordinator(data: Path, work: Callable[[SqliteCoordinator], Awaitable[Any]]) -> None:
    async def run() -> None:
        coordinator = await SqliteCoordinator.open(str(data / FILE_NAME))
        try:
            await work(coordinator)
        finally:
            await coordinator.close()

    asyncio.run(run())


def user(name: str, password: str) -> UserRecord:
    return UserRecord.make(name, password, ITERATIONS)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("callers") / "data"
    data.mkdir(mode=0o700)

    async def prepare(coordinator: SqliteCoordinator) -> None:
        for name in ("root", "alice", "bob", "carol", "dora", "emil"):
            await coordinator.add_user(user(name, f"{name} pass:word"))
        every = Permission("root", "", frozenset(Right))
        await coordinator.write([Write(every.key, every.to_value())])

    at_coordinator(data, prepare)
    with Broker(data) as running:
        yield running


@pytest.fixture
def root(guarded: Broker) -> Iterator[Http]:
    with Http(guarded.http, "root", "root pass:word") as client:
        yield client


def test_without_a_name_nobody_gets_in_but_health_is_open(guarded: Broker) -> None:
    with Http(guarded.http) as nobody:
        refused = nobody("GET", "/!queues")
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        for path in ("/healthz", "/metrics", "/!openapi.json"):
            assert nobody("GET", path).status == 200
        wait.until(lambda: nobody("GET", "/readyz").status == 200, "the gateway knows all processes")
    for name, password in (("root", "wrong"), ("nobody", "root pass:word")):
        with Http(guarded.http, name, password) as stranger:
            assert stranger("GET", "/!queues").status == 401


def test_pages_refuse_on_a_page_and_data_as_a_problem(guarded: Broker) -> None:
    with Http(guarded.http) as nobody:
        for path, kind in (("/!ui", "text/html"), ("/!ui/data/overview", "application/problem+json")):
            refused = nobody("GET", path)
            assert refused.status == 401
            assert refused.headers["content-type"].startswith(kind)
            assert refused.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize("header", ["Basic", "Basic %%%", "Basic YQ==", "Digest x", "Bearer a.b.c", "x"])
def test_credentials_that_can_not_be_read_are_401(guarded: Broker, header: str) -> None:
    with Http(guarded.http) as client:
        assert client("GET", "/!queues", headers={"Authorization": header}).status == 401


def test_rights_are_by_prefix(guarded: Broker, root: Http) -> None:
    assert root("POST", "/shop/orders", {"role": "queue"}).status == 201
    with Http(guarded.http, "alice", "alice pass:word") as alice:
        assert alice("POST", "/shop/orders", "x").status == 403
        assert alice("GET", "/shop/orders").status == 403
        permitted = root("PUT", "/!permissions/alice?prefix=shop", {"rights": ["send"]})
        assert permitted.json() == {"user": "alice", "prefix": "shop", "rights": ["send"]}
        assert alice("POST", "/shop/orders", "x").status == 201
        assert alice("DELETE", "/shop/orders/!head").status == 403
        assert alice("DELETE", "/shop/orders/!policy").status == 403
        assert alice("POST", "/shop/more", {"role": "queue"}).status == 403
        root("PUT", "/!permissions/alice?prefix=shop", {"rights": ["send", "listen"]})
        assert alice("DELETE", "/shop/orders/!head?timeout=10").body == b"x"
        assert alice("GET", "/!permissions").json() == {"permissions": []}
        assert alice("GET", "/!definitions").status == 403
        assert root("DELETE", "/!permissions/alice?prefix=shop").status == 204
        assert alice("POST", "/shop/orders", "x").status == 403
    listed = root("GET", "/!permissions?user=root").json()["permissions"]
    assert listed == [{"user": "root", "prefix": "", "rights": ["listen", "manage", "send"]}]
    assert root("PUT", "/!permissions/ghost", {"rights": ["send"]}).status == 404
    assert root("PUT", "/!permissions/alice", {"rights": ["fly"]}).status == 422


def test_who_may_not_give_rights_does_not_learn_which_users_there_are(guarded: Broker) -> None:
    with Http(guarded.http, "alice", "alice pass:word") as alice:
        answers = [alice("PUT", f"/!permissions/{name}", {"rights": ["send"]}) for name in ("ghost", "root")]
    assert [answer.status for answer in answers] == [403, 403]
    assert answers[0].json()["detail"] == answers[1].json()["detail"]


def test_wrong_passwords_over_http_are_slowed_down_and_the_log_has_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    at_coordinator(data, lambda coordinator: coordinator.add_user(user("ann", "ann pass:word")))

    def status(password: str) -> tuple[int, float]:
        begun = time.monotonic()
        with Http(broker.http, "ann", password) as client:
            return client("GET", "/!permissions").status, time.monotonic() - begun

    with Broker(data, "--shards", "1") as broker:
        for number in range(LOGIN_SOURCE_FREE + 1):
            assert status(f"guess {number}")[0] == 401
        slow_s = 0.8 * LOGIN_SOURCE_MS / 1000
        answer, seconds = status("one more guess")
        assert answer == 401
        assert seconds >= slow_s
        assert status("ann pass:word")[0] == 200
        assert status("ann pass:word")[0] == 200
        assert broker.said().count("wrong password") == 1


def test_batches_are_numbered_by_user_and_need_the_right_to_send(guarded: Broker, root: Http) -> None:
    assert root("POST", "/lots/orders", {"role": "queue"}).status == 201
    root("PUT", "/!permissions/bob?prefix=lots", {"rights": ["send"]})
    assert post(root, "lots/orders", "loader", 7, [message("a")]).json()["stored"] == 1
    with Http(guarded.http, "bob", "bob pass:word") as bob:
        assert post(bob, "lots/orders", "loader", 7, [message("b")]).json()["stored"] == 1
        assert post(bob, "lots/orders", "loader", 7, [message("b")]).json()["duplicate"]
        root("PUT", "/!permissions/bob?prefix=lots", {"rights": ["listen"]})
        assert post(bob, "lots/orders", "loader", 8, [message("c")]).status == 403
    assert texts(root, "lots/orders") == ["a", "b"]


def test_a_token_says_less_than_its_user(guarded: Broker, root: Http) -> None:
    root("POST", "/token/in", {"role": "queue"})
    root("POST", "/token/out", {"role": "queue"})
    wanted = {"scope": [{"prefix": "token/in", "rights": ["send"]}], "ttl": 60}
    made = root("POST", "/!tokens", wanted)
    assert made.status == 201
    bearer = {"Authorization": f"Bearer {made.json()['token']}"}
    with Http(guarded.http) as client:
        assert client("POST", "/token/in", "x", bearer).status == 201
        assert client("POST", "/token/out", "x", bearer).status == 403
        assert client("DELETE", "/token/in/!head", headers=bearer).status == 403
        assert client("POST", "/!tokens", wanted, bearer).status == 403
        broken = {"Authorization": bearer["Authorization"][:-2] + "xx"}
        assert client("POST", "/token/in", "x", broken).status == 401
    wrong: list[dict[str, Any]]
    wrong = [{"ttl": 0}, {"scope": "all"}, {"scope": [{"rights": ["fly"]}]}, {"scop": []}]
    for bad in wrong:
        assert root("POST", "/!tokens", bad).status == 422


def test_a_token_ends_with_the_password_and_a_user_within_seconds(guarded: Broker) -> None:
    with Http(guarded.http, "bob", "bob pass:word") as bob, Http(guarded.http) as client:
        token = bob("POST", "/!tokens", {}).json()["token"]
        bearer = {"Authorization": f"Bearer {token}"}
        assert client("GET", "/!permissions", headers=bearer).status == 200

        async def change(coordinator: SqliteCoordinator) -> None:
            await coordinator.replace_user(user("bob", "another"))

        at_coordinator(guarded.data, change)
        wait.until(lambda: bob("GET", "/!permissions").status == 401, "the old password is out", 5)
        wait.until(
            lambda: client("GET", "/!permissions", headers=bearer).status == 401, "the token is out", 5
        )
    with Http(guarded.http, "bob", "another") as bob:
        assert bob("GET", "/!permissions").status == 200


def test_a_user_that_is_removed_is_out_within_seconds(guarded: Broker) -> None:
    with Http(guarded.http, "carol", "carol pass:word") as carol:
        assert carol("GET", "/!permissions").status == 200
        at_coordinator(guarded.data, lambda coordinator: coordinator.remove_user("carol"))
        wait.until(lambda: carol("GET", "/!permissions").status == 401, "she is out", 5)


def test_https_shows_the_certificate_and_serves_the_same(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.sign("server", "IP:127.0.0.1")
    flags = ("--https", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    with Broker(tmp_path / "data", *flags) as broker:
        context = ssl.create_default_context(cafile=authority.path)
        url = f"https://{broker.ready['https']}"
        policy = b'{"role": "queue", "transport_protection": "tls"}'
        made = urllib.request.Request(f"{url}/secret", policy, {"Content-Type": "application/json"})
        with urllib.request.urlopen(made, context=context, timeout=20) as answer:
            assert answer.status == 201
        with Http(broker.http) as clear:
            refused = clear("POST", "/secret", "x")
            assert refused.status == 403
            assert "TLS" in refused.json()["detail"]
        message = urllib.request.Request(f"{url}/secret", b"x", {"Content-Type": "text/plain"})
        with urllib.request.urlopen(message, context=context, timeout=20) as answer:
            assert answer.status == 201


def test_names_of_queues_in_metrics_are_for_managers_of_everything(guarded: Broker, root: Http) -> None:
    assert root("POST", "/listed", {"role": "queue"}).status == 201
    assert root("POST", "/listed", "message").status == 201
    with Http(guarded.http) as stranger, Http(guarded.http, "dora", "dora pass:word") as dora:
        assert stranger("GET", "/metrics").status == 200
        assert stranger("GET", "/metrics/detailed").status == 401
        assert dora("GET", "/metrics/detailed").status == 403
    wait.until(
        lambda: 'queue="listed"' in root("GET", "/metrics/detailed?queue=listed").body.decode(),
        "who manages everything sees it",
    )


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("PUT", "/strange?api-version=2021-05", {}, 401),
        ("PUT", "/strange/!policy", {"Content-Type": "application/atom+xml"}, 403),
        ("PUT", "/strange/!policy", {"Content-Type": "application/json"}, 403),
        ("POST", "/strange", {"Content-Type": "application/atom+xml"}, 403),
    ],
)
def test_the_right_is_asked_before_the_body_is_read(
    guarded: Broker, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with Http(guarded.http, "emil", "emil pass:word") as emil:
        assert emil(method, path, b"<no <policy", headers=headers).status == status
