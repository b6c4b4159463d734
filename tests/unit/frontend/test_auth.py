"""Who a client is: PLAIN, SCRAM and ANONYMOUS against users in memory."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from lightrail.amqp import events
from lightrail.amqp.values import Symbol
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.frontend.auth import Authentication, Authenticator, Step, offered_mechanisms
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import Caller
from lightrail.service_bus.access_keys import keys_of, with_key
from lightrail.service_bus.frontend import HOOKS

Value = TypeVar("Value")
ITERATIONS = 4_096
SASL_NAMES = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


class FakeTransport:
    def __init__(self, host: str = "127.0.0.1", tls: Any = None) -> None:
        self.info = {"peername": (host, 40_000), "ssl_object": tls}

    def get_extra_info(self, name: str) -> Any:
        return self.info[name]


class FakeTls:
    def __init__(self, certificate: dict[str, Any] | None) -> None:
        self.certificate = certificate

    def getpeercert(self) -> dict[str, Any] | None:
        return self.certificate


def run(work: Coroutine[Any, Any, Value]) -> Value:
    return asyncio.run(work)


async def authenticator(*users: str, **settings: Any) -> Authenticator:
    coordinator = MemoryCoordinator()
    for name in users:
        await coordinator.add_user(UserRecord.make(name, f"{name}'s password", ITERATIONS))
    made = Authenticator(coordinator, Settings(**settings), HOOKS.anonymous_mechanisms, HOOKS.keys)
    await made.refresh()
    return made


async def begin(*users: str, host: str = "127.0.0.1", tls: Any = None, **settings: Any) -> Authentication:
    owner = await authenticator(*users, **settings)
    return owner.begin(FakeTransport(host, tls), (host, 1))  # type: ignore[arg-type]


# --- what is offered -----------------------------------------------------------------------------------


def test_mechanisms_on_offer() -> None:
    settings = Settings()
    everything = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")

    def offer(loopback: bool, tls: bool, users: bool) -> tuple[str, ...]:
        return offered_mechanisms(settings, loopback=loopback, tls=tls, has_users=users)

    assert offer(True, False, False) == ("ANONYMOUS", "PLAIN")
    assert offer(False, True, False) == ()
    assert offer(True, False, True) == everything
    assert offer(False, False, True) == everything[:2]
    assert offer(False, True, True) == everything
    settings = replace(settings, insecure_no_users=True, plain_without_tls=True, allow_anonymous=True)
    assert offer(False, False, False) == ("ANONYMOUS", "PLAIN")
    assert offer(False, False, True) == (*everything, "ANONYMOUS")


def test_without_users_everybody_on_this_machine_gets_in_and_nobody_else() -> None:
    here = run(begin())
    assert here.mechanisms == ("ANONYMOUS", "MSSBCBS", "PLAIN")
    assert here.anonymous
    there = run(begin(host="10.0.0.1"))
    assert there.mechanisms == ()
    assert not there.anonymous
    assert run(begin(host="10.0.0.1", insecure_no_users=True)).anonymous


def test_without_hooks_anonymous_has_one_name() -> None:
    async def test() -> None:
        made = Authenticator(MemoryCoordinator(), Settings())
        await made.refresh()
        here = made.begin_for("127.0.0.1", tls=False)
        assert here.mechanisms == ("ANONYMOUS", "PLAIN")
        assert (await here.start("ANONYMOUS", None)).user == "anonymous"
        assert "not offered" in (await here.start("MSSBCBS", None)).reason

    run(test())


def test_with_users_a_password_is_needed() -> None:
    here = run(begin("ann", token_wait=0))
    assert set(here.mechanisms) == set(SASL_NAMES)
    assert not here.anonymous
    assert "PLAIN" not in run(begin("ann", host="10.0.0.1")).mechanisms
    assert "PLAIN" in run(begin("ann", host="10.0.0.1", tls=FakeTls(None))).mechanisms
    assert run(begin("ann", allow_anonymous=True)).mechanisms[-2:] == ("ANONYMOUS", "MSSBCBS")


def test_who_puts_a_token_needs_no_password_and_has_no_right_before() -> None:
    async def test() -> None:
        directory = Directory(MemoryCoordinator())
        for host, tls in (("127.0.0.1", None), ("10.0.0.1", None), ("10.0.0.1", FakeTls(None))):
            here = await begin("ann", host=host, tls=tls)
            # Behind the others: a client that has a password shall show it.
            assert here.mechanisms[-2:] == ("ANONYMOUS", "MSSBCBS")
            assert not here.anonymous, "a client without SASL is refused"
            assert (await here.answer(events.SaslInit(Symbol("MSSBCBS"), None, None))).user == "anonymous"
            assert here.awaits_token
            assert here.caller("anonymous", directory).unproven
        everybody = await begin("ann", allow_anonymous=True)
        await everybody.answer(events.SaslInit(Symbol("ANONYMOUS"), None, None))
        assert not everybody.awaits_token
        assert not everybody.caller("anonymous", directory).unproven
        ann = await begin("ann")
        await ann.answer(events.SaslInit(Symbol("PLAIN"), b"\0ann\0ann's password", None))
        assert not ann.caller("ann", directory).unproven

    run(test())


def test_users_that_come_later_are_seen_by_the_next_connection() -> None:
    async def test() -> None:
        owner = await authenticator()
        await owner.coordinator.add_user(UserRecord.make("ann", "secret", ITERATIONS))
        assert owner.begin(FakeTransport(), ("127.0.0.1", 1)).anonymous  # type: ignore[arg-type]
        await owner.refresh()
        assert not owner.begin(FakeTransport(), ("127.0.0.1", 1)).anonymous  # type: ignore[arg-type]

    run(test())


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS", "PLAIN"])
def test_who_was_accepted_before_the_first_user_is_checked_when_it_logs_in_after(mechanism: str) -> None:
    async def test() -> None:
        owner = await authenticator()
        ended: list[None] = []
        owner.first_user = lambda: ended.append(None)
        directory = Directory(owner.coordinator)
        here, silent = (owner.begin_for("127.0.0.1", tls=False) for _ in range(2))
        await owner.coordinator.add_user(UserRecord.make("ann", "secret", ITERATIONS))
        step = await here.start(mechanism, b"\0ann\0wrong")
        if mechanism == "PLAIN":
            assert step.user is None
            assert (await here.start(mechanism, b"\0ann\0secret")).user == "ann"
        else:
            here.chosen = mechanism
            assert step.user == "anonymous"
            assert here.awaits_token
        assert not here.caller(step.user, directory).everything
        assert not here.is_outdated
        # One that says nothing about itself has the rights of nobody, and is closed.
        assert silent.is_outdated
        assert not silent.caller(None, directory).everything
        await owner.refresh()
        assert ended == [None], "it is called once"

    run(test())


def test_where_nobody_puts_tokens_anonymous_ends_with_the_first_user() -> None:
    async def test() -> None:
        owner = await authenticator(token_wait=0)
        here = owner.begin_for("127.0.0.1", tls=False)
        await owner.coordinator.add_user(UserRecord.make("ann", "secret", ITERATIONS))
        assert "expected a user name" in (await here.start("ANONYMOUS", None)).reason

    run(test())


def test_a_client_certificate_is_a_name() -> None:
    async def test() -> None:
        subject = ((("organizationName", "acme"),), (("commonName", "robot"),))
        authentication = await begin("ann", tls=FakeTls({"subject": subject}))
        assert authentication.mechanisms[0] == "EXTERNAL"
        assert (await authentication.start("EXTERNAL", b"")).user == "robot"
        without = await begin("ann", tls=FakeTls({}))
        assert "EXTERNAL" not in without.mechanisms
        assert (await without.start("EXTERNAL", b"")).user is None

    run(test())


# --- ANONYMOUS and PLAIN -------------------------------------------------------------------------------


async def start(mechanism: str, response: bytes | None, *users: str, **options: Any) -> Step:
    authentication = await begin(*users, **options)
    return await authentication.start(mechanism, response)


def test_anonymous() -> None:
    for mechanism in ("ANONYMOUS", "MSSBCBS"):
        assert run(start(mechanism, None)).user == "anonymous"
        assert run(start(mechanism, None, "ann", allow_anonymous=True)).user == "anonymous"
        refused = run(start(mechanism, None, "ann", token_wait=0))
        assert refused.user is None
        assert "not offered" in refused.reason


def test_without_users_plain_accepts_every_password_where_nobody_reads_it() -> None:
    assert run(start("PLAIN", b"\0guest\0guest")).user == "guest"
    there = run(start("PLAIN", b"\0guest\0guest", host="10.0.0.1", insecure_no_users=True))
    assert there.user is None
    open_to_all = {"insecure_no_users": True, "plain_without_tls": True}
    assert run(start("PLAIN", b"\0guest\0guest", host="10.0.0.1", **open_to_all)).user == "guest"

    async def caller() -> Caller:
        authentication = await begin()
        return authentication.caller("guest", Directory(MemoryCoordinator()))

    assert run(caller()) == Caller("guest", everything=True)


def test_plain() -> None:
    assert run(start("PLAIN", b"\0ann\0ann's password", "ann")).user == "ann"
    assert run(start("PLAIN", b"ann\0ann\0ann's password", "ann")).user == "ann"


@pytest.mark.parametrize(
    "response",
    [
        b"\0ann\0wrong",
        b"\0bob\0ann's password",
        b"bob\0ann\0ann's password",
        b"\0ann\0",
        b"",
        None,
        b"\xff\0\0",
        b"\0ann\0ann's password\0",
    ],
)
def test_plain_refused(response: bytes | None) -> None:
    step = run(start("PLAIN", response, "ann"))
    assert (step.user, step.challenge, step.data) == (None, None, None)
    assert step.reason
    assert "password'" not in step.reason.replace("wrong password", "")


# --- SCRAM ---------------------------------------------------------------------------------------------


class Scram:
    """A client, as RFC 5802 has it."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self.hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.bare = f"n={user},r=clientnonce"
        self.password = password
        self.salted = b""
        self.authentication = b""

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        assert fields["r"].startswith("clientnonce")
        assert len(fields["r"]) > len("clientnonce") + 16
        salt = base64.b64decode(fields["s"])
        self.salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), salt, int(fields["i"]))
        without_proof = f"c=biws,r={fields['r']}"
        self.authentication = f"{self.bare},{challenge.decode()},{without_proof}".encode()
        client_key = hmac.digest(self.salted, b"Client Key", self.hash)
        stored = hashlib.new(self.hash, client_key).digest()
        signature = hmac.digest(stored, self.authentication, self.hash)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def is_signed_by_server(self, data: bytes) -> bool:
        key = hmac.digest(self.salted, b"Server Key", self.hash)
        return data == b"v=" + base64.b64encode(hmac.digest(key, self.authentication, self.hash))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism: str) -> None:
    async def test() -> None:
        authentication = await begin("ann")
        client = Scram(mechanism, "ann", "ann's password")
        step = await authentication.start(mechanism, client.first())
        assert step.user is None
        assert step.challenge is not None
        last = await authentication.respond(client.final(step.challenge))
        assert last.user == "ann"
        assert last.data is not None
        assert client.is_signed_by_server(last.data)
        again = await authentication.respond(b"")
        assert again.user is None

    run(test())


def test_wrong_passwords_count_for_the_address_that_a_balancer_names() -> None:
    async def test() -> None:
        owner = await authenticator("ann")
        authentication = owner.begin(FakeTransport("10.0.0.1"), ("203.0.113.7", 1))  # type: ignore[arg-type]
        assert authentication.source == "203.0.113.7"

    run(test())


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", "ann's password")])
def test_scram_refused_looks_the_same_for_unknown_users(user: str, password: str) -> None:
    async def test() -> None:
        owner = await authenticator("ann")
        salts = set()
        for _ in range(2):
            authentication = owner.begin(FakeTransport(), ("127.0.0.1", 1))  # type: ignore[arg-type]
            client = Scram("SCRAM-SHA-256", user, password)
            step = await authentication.start("SCRAM-SHA-256", client.first())
            assert step.challenge is not None
            salts.add(step.challenge.decode().split(",")[1])
            last = await authentication.respond(client.final(step.challenge))
            assert (last.user, last.challenge, last.data) == (None, None, None)
        assert len(salts) == 1

    run(test())


async def with_keys(*names: str) -> tuple[Authenticator, dict[str, str]]:
    """Users that have a password and a key each; the keys by name."""
    owner = await authenticator(*names)
    found = {}
    for name in names:
        record = await owner.coordinator.user(name)
        assert record is not None
        record = with_key(record)
        await owner.coordinator.replace_user(record)
        (key,) = keys_of(owner.secret, record)
        found[name] = key.text
    return owner, found


def test_a_key_is_a_password_of_its_user_alone_until_it_is_deleted() -> None:
    async def test() -> None:
        owner, keys = await with_keys("ann", "bob")

        async def plain(user: str, password: str) -> str | None:
            authentication = owner.begin_for("127.0.0.1", tls=False)
            return (await authentication.start("PLAIN", f"\0{user}\0{password}".encode())).user

        assert await plain("ann", keys["ann"]) == "ann"
        assert await plain("ann", "ann's password") == "ann"
        assert await plain("bob", keys["ann"]) is None
        assert await plain("ann", keys["ann"][:-1]) is None
        assert await plain("nobody", keys["ann"]) is None
        ann = await owner.coordinator.user("ann")
        assert ann is not None
        await owner.coordinator.replace_user(replace(ann, access_keys=()))
        assert await plain("ann", keys["ann"]) is None

    run(test())


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_that_prefers_scram_proves_its_key_by_it(mechanism: str) -> None:
    async def test() -> None:
        owner, keys = await with_keys("ann", "bob")

        async def scram(user: str, password: str) -> str | None:
            authentication = owner.begin_for("10.0.0.1", tls=False)
            client = Scram(mechanism, user, password)
            step = await authentication.start(mechanism, client.first())
            assert step.challenge is not None
            last = await authentication.respond(client.final(step.challenge))
            assert last.user is None or (last.data and client.is_signed_by_server(last.data))
            return last.user

        assert await scram("ann", keys["ann"]) == "ann"
        assert await scram("ann", "ann's password") == "ann"
        hashed = owner.logins.hashes
        assert await scram("ann", keys["ann"]) == "ann"
        assert owner.logins.hashes == hashed, "a key is hashed once"
        assert await scram("bob", keys["ann"]) is None
        assert await scram("nobody", keys["ann"]) is None

    run(test())


def test_a_wrong_proof_takes_the_same_work_with_and_without_keys() -> None:
    async def test() -> None:
        owner, _ = await with_keys("ann")
        await owner.coordinator.add_user(UserRecord.make("cid", "a password", ITERATIONS))
        work = []
        for user in ("ann", "cid", "nobody"):
            before = owner.logins.hashes
            authentication = owner.begin_for("127.0.0.1", tls=False)
            client = Scram("SCRAM-SHA-256", user, "wrong")
            step = await authentication.start("SCRAM-SHA-256", client.first())
            assert step.challenge is not None
            assert (await authentication.respond(client.final(step.challenge))).user is None
            work.append(owner.logins.hashes - before)
        assert work == [1, 1, 1]

    run(test())


def test_scram_garbage() -> None:
    async def test() -> None:
        authentication = await begin("ann")
        assert (await authentication.start("SCRAM-SHA-256", b"rubbish")).reason
        assert "found none open" in (await authentication.respond(b"c=biws")).reason
        step = await authentication.start("SCRAM-SHA-256", Scram("SCRAM-SHA-256", "ann", "").first())
        assert step.challenge is not None
        assert (await authentication.respond(None)).user is None

    run(test())


def test_checks_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        owner = await authenticator("ann")
        running = most = 0

        async def slow(check: Any, *arguments: Any) -> bool:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            running -= 1
            return True

        monkeypatch.setattr(asyncio, "to_thread", slow)
        steps = await asyncio.gather(
            *(
                owner.begin(FakeTransport(), ("127.0.0.1", 1)).start("PLAIN", b"\0ann\0x")  # type: ignore[arg-type]
                for _ in range(20)
            )
        )
        assert {step.user for step in steps} == {"ann"}
        assert most == 2

    run(test())
