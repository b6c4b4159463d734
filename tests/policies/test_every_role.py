"""Fields of every role: rights, lists, expiry, TLS, names that come into being by use, descriptions."""

import asyncio
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from proton import Message, SSLDomain
from proton.utils import BlockingConnection

from lightrail.cluster.coordinator import Write
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.namespace.records import Permission, Right
from tests.policies.driver import Names, detached, instant, refused, seconds, send
from tests.policies.laws import checks, survives
from tests.support import wait
from tests.support.amqp.proton_blocking import connected
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.http_client import Http

ITERATIONS = 4_096


class Guarded(NamedTuple):
    """A broker with two users: root may do everything, alice nothing."""

    broker: Broker
    ca: str
    root: Http
    alice: Http

    def amqp(self, user: str) -> str:
        return f"amqp://{user}:{user}@{self.broker.amqp}"


def add_users(data: Path) -> None:
    async def add() -> None:
        coordinator = await SqliteCoordinator.open(str(data / FILE_NAME))
        for name in ("root", "alice"):
            await coordinator.add_user(UserRecord.make(name, name, ITERATIONS))
        every = Permission("root", "", frozenset(Right))
        await coordinator.write([Write(every.key, every.to_value())])
        await coordinator.close()

    data.mkdir(mode=0o700)
    asyncio.run(add())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    add_users(directory / "data")
    authority = Authority(directory / "ca")
    server = authority.sign("localhost", "DNS:localhost,IP:127.0.0.1")
    flags = ("--https", "127.0.0.1:0", "--amqps", "127.0.0.1:0")
    with (
        Broker(
            directory / "data", *flags, "--tls-certificate", server.certificate, "--tls-key", server.key
        ) as broker,
        Http(broker.http, "root", "root") as root,
        Http(broker.http, "alice", "alice") as alice,
    ):
        yield Guarded(broker, authority.path, root, alice)


def give(guarded: Guarded, name: str, **policy: object) -> str:
    assert guarded.root("POST", f"/{name}", {"role": "queue", **policy}).status == 201
    return name


# --- who may ---------------------------------------------------------------------------------------------


@checks("authorization")
@pytest.mark.parametrize(
    ("authorization", "may_send", "may_listen"),
    [("required", False, False), ("send", False, True), ("listen", True, False), ("none", True, True)],
)
def test_who_has_no_right_may_do_what_needs_none(
    guarded: Guarded, authorization: str, may_send: bool, may_listen: bool
) -> None:
    queue = give(guarded, f"rights/{authorization}", authorization=authorization)
    assert guarded.alice("POST", f"/{queue}", "x").status == (201 if may_send else 403)
    assert guarded.alice("DELETE", f"/{queue}/!head").status in ((200, 204) if may_listen else (403,))
    assert guarded.alice("DELETE", f"/{queue}/!policy").status == 403
    with connected(guarded.amqp("alice"), allowed_mechs="PLAIN") as alice:
        for allowed, sender in ((may_send, True), (may_listen, False)):
            if allowed:
                (alice.create_sender if sender else alice.create_receiver)(queue).close()
            else:
                assert refused(alice, queue, sender=sender).name == "amqp:unauthorized-access"


@checks("authorization")
def test_a_name_that_asks_for_rights_again_ends_the_links_without(guarded: Guarded) -> None:
    queue = give(guarded, "rights/change", authorization="none")
    with connected(guarded.amqp("alice"), allowed_mechs="PLAIN") as alice:
        alice.create_sender(queue).send(Message(body="x"))
        assert guarded.root("PUT", f"/{queue}/!policy", {"role": "queue"}).status == 200
        assert detached(alice).name == "amqp:unauthorized-access"


@checks("discoverability")
def test_a_list_shows_only_managers_what_is_for_managers(guarded: Guarded) -> None:
    give(guarded, "found/public", authorization="none")
    give(guarded, "found/hidden", authorization="none", discoverability="managers")

    def listed(http: Http) -> list[str]:
        return [each["name"] for each in http("GET", "/found/").json()["names"]]

    assert listed(guarded.root) == ["found/hidden", "found/public"]
    assert listed(guarded.alice) == ["found/public"]
    # Who knows the name may use it all the same.
    assert guarded.alice("POST", "/found/hidden", "x").status == 201


@checks("transport_protection")
def test_a_name_that_asks_for_tls_is_there_over_tls_alone(guarded: Guarded) -> None:
    context = ssl.create_default_context(cafile=guarded.ca)
    url = f"https://{guarded.broker.ready['https']}/secret"
    given = {"Authorization": "Basic cm9vdDpyb290"}

    def over_tls(body: bytes, kind: str) -> int:
        asked = urllib.request.Request(url, body, given | {"Content-Type": kind})
        with urllib.request.urlopen(asked, context=context, timeout=20) as answer:
            return int(answer.status)

    assert over_tls(b'{"role": "queue", "transport_protection": "tls"}', "application/json") == 201
    assert over_tls(b"x", "text/plain") == 201
    clear = guarded.root("POST", "/secret", "x")
    assert clear.status == 403
    assert "TLS" in clear.json()["detail"]
    with connected(guarded.amqp("root"), allowed_mechs="PLAIN") as root:
        condition = refused(root, "secret")
        assert condition.name == "amqp:unauthorized-access"
        assert "asks for TLS" in condition.description
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(guarded.ca)
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    address = f"amqps://root:root@localhost:{guarded.broker.ready['amqps'].rpartition(':')[2]}"
    with connected(address, ssl_domain=domain, allowed_mechs="PLAIN") as root:
        assert bytes(root.create_receiver("secret").receive().body) == b"x"


@survives("authorization", "discoverability", "transport_protection")
def test_after_a_kill_9_the_same_is_open_to_the_same(tmp_path: Path) -> None:
    data = tmp_path / "data"
    add_users(data)
    with Broker(data) as broker:
        with Http(broker.http, "root", "root") as root:
            for name, fields in (
                ("open", {"authorization": "listen", "discoverability": "managers"}),
                ("closed", {}),
                ("secret", {"authorization": "none", "transport_protection": "tls"}),
            ):
                assert root("POST", f"/{name}", {"role": "queue", **fields}).status == 201
        broker.kill_everything()
    with Broker(data) as broker, Http(broker.http, "alice", "alice") as alice:
        assert alice("POST", "/open", "x").status == 201
        assert alice("DELETE", "/open/!head").status == 403
        assert alice("POST", "/closed", "x").status == 403
        assert alice("POST", "/secret", "x").status == 403
        listed = alice("GET", "/", headers={"Accept": "application/json"}).json()["names"]
        assert "open" not in [each["name"] for each in listed]


# --- how long --------------------------------------------------------------------------------------------


@checks("expires_at")
@pytest.mark.parametrize("role", ["queue", "router", "connection-point", "metadata"])
def test_a_name_falls_back_to_none_when_its_time_is_over(names: Names, role: str) -> None:
    fields = {"reference": "https://example.org"} if role == "metadata" else {}
    ends = instant(0.5)
    name = names.give("short", role, expires_at=ends, **fields)
    assert names.http("GET", f"/{name}/!policy").status == 200
    wait.until(lambda: names.http("GET", f"/{name}/!policy").status == 404, "it falls back")
    assert names.role(name) == "none"
    assert instant(0) >= ends


@checks("expires_at")
def test_it_is_renewed_by_put_and_what_is_in_it_stays(names: Names) -> None:
    first = instant(1.0)
    queue = names.queue(expires_at=first)
    names.send(queue, "kept")
    names.put(queue, expires_at=instant(3600))
    wait.until(lambda: instant(0) > first, "the first time is over")
    assert names.texts(queue) == ["kept"]


@checks("expires_at")
def test_links_of_an_expired_name_are_told(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(expires_at=instant(0.5))
    amqp.create_receiver(queue)
    condition = detached(amqp)
    assert condition.name == "amqp:resource-deleted"
    assert seconds(instant(0)) > 0


# --- names that come into being by use -------------------------------------------------------------------


@checks("auto_create")
def test_the_nearest_name_above_says_whether_use_makes_queues(names: Names, amqp: BlockingConnection) -> None:
    names.give("closed", "none", auto_create=False)
    names.give("closed/open", "none", auto_create=True)
    closed, opened = names.name("closed/q"), names.name("closed/open/q")
    assert names.post(closed).status == 404
    assert refused(amqp, closed, sender=True).name == "amqp:not-found"
    assert names.role(closed) == "none"
    send(amqp, opened, Message(body="x"))
    assert names.role(opened) == "queue"
    names.put(names.name("closed"), "none", auto_create=True)
    names.send(closed, "x")
    assert names.role(closed) == "queue"


@checks("template")
def test_queues_below_come_into_being_with_the_template(names: Names, amqp: BlockingConnection) -> None:
    names.give("bounded", "none", template={"max_length": 1, "lock_duration": 5})
    by_http, by_amqp = names.name("bounded/http"), names.name("bounded/deeper/amqp")
    names.send(by_http, "x")
    assert names.post(by_http).status == 503
    send(amqp, by_amqp, Message(body="x"))
    for name in (by_http, by_amqp):
        assert names.policy(name) == {"max_length": 1, "lock_duration": 5}


@checks("service_bus")
@pytest.mark.parametrize("role", ["queue", "router"])
def test_what_only_clients_of_service_bus_read_changes_nothing(names: Names, role: str) -> None:
    name = names.give("kept", role, service_bus="EnablePartitioning=true MaxSizeInMegabytes=1")
    assert names.policy(name) == {"service_bus": "EnablePartitioning=true MaxSizeInMegabytes=1"}
    if role == "router":
        names.subscribe(name, names.queue())
    assert names.post(name, "x" * 100).status == 201


@checks("description")
def test_people_are_told_what_it_is_for(names: Names) -> None:
    queue = names.queue(description="Orders of the shop, for the packers: größere zuerst.")
    assert names.http("GET", f"/{queue}").json()["policy"]["description"].endswith("größere zuerst.")
