"""Who a request comes from: credentials are hashed once, remembered, and forgotten with their user."""

import asyncio
import base64
import hmac
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote_plus

import pytest
from aiohttp.test_utils import make_mocked_request

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.gateway.callers import CALLER_FRESH_MS, Callers
from lightrail.gateway.errors import ProblemError
from lightrail.model import limits
from lightrail.model.settings import Settings
from lightrail.namespace import tokens
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right
from lightrail.service_bus.access_keys import keys_of, with_key, without_key
from lightrail.service_bus.gateway import HOOKS

ITERATIONS = 4_096


class Transport:
    """As much of one as a request needs."""

    def __init__(self, peer: str = "127.0.0.1", tls: bool = False) -> None:
        self._extra = {"peername": (peer, 1), "sslcontext": object() if tls else None}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def request(header: str | None = None, path: str = "/", **transport: Any) -> Any:
    headers = {} if header is None else {"Authorization": header}
    return make_mocked_request("GET", path, headers, transport=Transport(**transport))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


GOOD = basic("alice", "secret")
Check = Callable[[Callers, MemoryCoordinator, Clock], Awaitable[None]]


def scene(check: Check, users: bool = True, **settings: Any) -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        if users:
            await coordinator.add_user(UserRecord.make("alice", "secret", ITERATIONS))
        clock = Clock()
        directory = Directory(coordinator)
        callers = Callers(
            coordinator,
            Settings(**settings),
            monotonic=clock,
            wall=clock,
            schemes={name: partial(verify, directory) for name, verify in HOOKS.schemes.items()},
            opens=partial(HOOKS.opens, directory),
        )
        await callers.refresh()
        await check(callers, coordinator, clock)

    asyncio.run(run())


async def status_of(callers: Callers, asked: Any) -> int:
    try:
        await callers.caller(asked)
    except ProblemError as problem:
        return problem.status
    return 200


def test_a_password_is_hashed_once_for_many_requests() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        found = await asyncio.gather(*(callers.caller(request(GOOD)) for _ in range(20)))
        assert {caller.user for caller in found} == {"alice"}
        clock.ms += 10 * CALLER_FRESH_MS
        await callers.caller(request(GOOD))
        assert callers.hashes == 1

    scene(check)


def test_a_new_password_ends_the_old_one_after_a_second() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        await callers.caller(request(GOOD))
        await coordinator.replace_user(UserRecord.make("alice", "other", ITERATIONS))
        assert await status_of(callers, request(GOOD)) == 200
        clock.ms += CALLER_FRESH_MS
        assert await status_of(callers, request(GOOD)) == 401
        assert await status_of(callers, request(basic("alice", "other"))) == 200

    scene(check)


def test_a_token_ends_by_itself() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        record = await coordinator.user("alice")
        assert record is not None
        scope = (("a", frozenset({Right.SEND})),)
        claims = tokens.Claims("alice", tokens.key_digest(record), clock.ms // 1000 + 5, scope)
        header = "Bearer " + tokens.make(await coordinator.secret(), claims)
        assert (await callers.caller(request(header))).scope == scope
        clock.ms += 4_000
        assert await status_of(callers, request(header)) == 200
        clock.ms += 1_000
        assert await status_of(callers, request(header)) == 401
        assert callers.hashes == 0

    scene(check)


async def signing(coordinator: MemoryCoordinator) -> str:
    """Another key of alice's."""
    record = await coordinator.user("alice")
    assert record is not None
    record = with_key(record)
    await coordinator.replace_user(record)
    return list(keys_of(await coordinator.secret(), record))[-1].text


def signed(key: str, resource: str, end_s: int = 2_000, user: str = "alice") -> str:
    """As Azure's clients do it."""
    sr = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{sr}\n{end_s}".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={end_s}&skn={user}"


@pytest.mark.parametrize(
    ("resource", "path", "status"),
    [
        ("https://host:1", "/a/b", 200),
        ("sb://host/", "/a", 200),
        ("sb://host/a", "/a?api-version=1", 200),
        ("sb://host/a", "/a%2Fb", 200),
        ("sb://host/a/", "/a/b", 200),
        ("sb://host/a b", "/a%20b", 200),
        ("sb://host/a", "/ab", 401),
        ("sb://host/A", "/a", 200),
        ("sb://host/a", "/A", 200),
        ("sb://host/a", "/", 401),
        ("https://host/a/b%20c?api-version=1", "/A/B%20c?api-version=1", 200),
        ("https://host/a?api-version=1", "/a/b", 401),
    ],
)
def test_a_signature_is_for_its_path_and_below(resource: str, path: str, status: int) -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        header = signed(await signing(coordinator), resource)
        for _ in range(2):
            assert await status_of(callers, request(header, path)) == status
        assert callers.hashes == 0

    scene(check)


def test_a_signature_of_no_key_is_refused() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        key = await signing(coordinator)
        for header in (
            signed("another", "sb://host/"),
            signed(key, "sb://host/", user="bob"),
            signed(key, "sb://host/", end_s=999),
            "SharedAccessSignature sr=a",
        ):
            assert await status_of(callers, request(header)) == 401

    scene(check)


def test_a_signature_ends_by_itself_and_with_its_key() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        header = signed(await signing(coordinator), "sb://host/", end_s=1_100)
        assert await status_of(callers, request(header)) == 200
        record = await coordinator.user("alice")
        assert record is not None
        other = await signing(coordinator)
        clock.ms += CALLER_FRESH_MS
        assert await status_of(callers, request(header)) == 200, "another key changes nothing"
        record = await coordinator.user("alice")
        assert record is not None
        first = next(iter(keys_of(await coordinator.secret(), record)))
        await coordinator.replace_user(without_key(record, first.id))
        clock.ms += CALLER_FRESH_MS
        assert await status_of(callers, request(header)) == 401
        header = signed(other, "sb://host/", end_s=1_100)
        assert await status_of(callers, request(header)) == 200
        clock.ms = 1_100_000
        assert await status_of(callers, request(header)) == 401

    scene(check)


def test_nobody_is_hashed_for_who_has_gone() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        waiting = [
            asyncio.create_task(callers.caller(request(basic("alice", f"wrong {number}"))))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await status_of(callers, request(GOOD)) == 200
        assert callers.hashes <= 3

    scene(check)


def test_without_users_only_this_machine_gets_in() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        assert (await callers.caller(request())).everything
        assert await status_of(callers, request(peer="192.0.2.1")) == 403

    scene(check, users=False)


def test_credentials_are_checked_from_the_first_user_on() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        assert (await callers.caller(request(GOOD))).everything
        await coordinator.add_user(UserRecord.make("alice", "secret", ITERATIONS))
        assert await status_of(callers, request(basic("alice", "wrong"))) == 401
        found = await callers.caller(request(GOOD))
        assert (found.user, found.everything) == ("alice", False)

    scene(check, users=False)


def test_without_users_everybody_gets_in_where_that_was_said() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        assert (await callers.caller(request(peer="192.0.2.1", tls=True))).tls

    scene(check, users=False, insecure_no_users=True)


@pytest.mark.parametrize(
    ("settings", "transport", "status"),
    [
        ({}, {"peer": "192.0.2.1"}, 403),
        ({}, {"peer": "192.0.2.1", "tls": True}, 200),
        ({"plain_without_tls": True}, {"peer": "192.0.2.1"}, 200),
        ({}, {"peer": "::1"}, 200),
    ],
)
def test_passwords_travel_beyond_this_machine_over_tls(
    settings: dict[str, Any], transport: dict[str, Any], status: int
) -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        assert await status_of(callers, request(GOOD, **transport)) == status

    scene(check, **settings)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8080", 200), ("127.0.0.1:8080", 200), ("[::1]:8080", 200), ("evil.test", 403)],
)
def test_without_users_no_name_of_another_site_leads_here(host: str, status: int) -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        asked = make_mocked_request("GET", "/", {"Host": host}, transport=Transport())
        assert await status_of(callers, asked) == status

    scene(check, users=False)


@pytest.mark.parametrize(
    ("method", "origin", "status"),
    [
        ("POST", "https://evil.test", 403),
        ("DELETE", "null", 403),
        ("GET", "https://evil.test", 200),
        ("POST", "http://localhost:1", 200),
    ],
)
def test_pages_of_other_sites_change_nothing(method: str, origin: str, status: int) -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        headers = {"Host": "localhost:1", "Origin": origin, "Authorization": GOOD}
        asked = make_mocked_request(method, "/", headers, transport=Transport())
        assert await status_of(callers, asked) == status

    scene(check)


def test_anonymous_is_let_in_where_that_was_said() -> None:
    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        caller = await callers.caller(request())
        assert (caller.user, caller.everything) == ("anonymous", False)

    scene(check, allow_anonymous=True)


def test_a_scheme_is_known_by_its_hook_alone() -> None:
    async def check(known: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        plain = Callers(coordinator, Settings(), monotonic=clock, wall=clock)
        await plain.refresh()
        for callers, header, text in (
            (plain, "SharedAccessSignature sr=x", "expected Basic or Bearer credentials"),
            (known, "Other x", "expected Basic, Bearer or SharedAccessSignature credentials"),
            (known, "sharedaccesssignature sr=x", "lacks"),
        ):
            with pytest.raises(ProblemError, match=text) as refused:
                await callers.caller(request(header))
            assert refused.value.status == 401

    scene(check)


def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLERS_MAX", 2)

    async def check(callers: Callers, coordinator: MemoryCoordinator, clock: Clock) -> None:
        for name in ("b", "c", "d"):
            await coordinator.add_user(UserRecord.make(name, "secret", ITERATIONS))
            await callers.caller(request(basic(name, "secret")))
        assert len(callers._known) == 2

    scene(check)
