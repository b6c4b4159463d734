"""Clients without a user and without a token: what they may do, for how long, and how many of them."""

from collections.abc import Callable
from typing import Any

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.performatives import (
    Coordinator,
    DeleteOnClose,
    Open,
    Source,
    Target,
    encode_performative,
)
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.cluster.users import UserRecord
from lightrail.frontend import unproven
from lightrail.frontend.nodes.nodes import TOKEN_REQUEST_BYTES
from lightrail.frontend.sole_connections import CAPABILITY
from lightrail.model import conditions
from lightrail.model.policy import Policy, Role
from lightrail.namespace import tokens
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY
from tests.support.amqp.frontend_scene import Client, Scene
from tests.support.amqp.frontend_scene import play as play_scene
from tests.support.amqp.requests import Requester

WAIT_MS = 10_000


class Newcomer:
    """Clients of a broker whose user `ann` may send and listen below a; `public` is open to all users."""

    def __init__(self, scene: Scene, record: UserRecord) -> None:
        self.scene = scene
        self.record = record
        self.timers: list[tuple[int, Callable[[], None]]] = []
        scene.frontend.timer = self._timer  # type: ignore[method-assign]

    def _timer(self, wait_ms: int, call: Callable[[], None]) -> Any:
        entry = (self.scene.time_ms + wait_ms, call)
        self.timers.append(entry)
        timers = self.timers

        class Handle:
            def cancel(self) -> None:
                if entry in timers:
                    timers.remove(entry)

        return Handle()

    async def later(self, client: Client, wait_ms: int) -> None:
        """So much later: timers that are due have rung."""
        self.scene.time_ms += wait_ms
        for entry in list(self.timers):
            if entry[0] <= self.scene.time_ms and entry in self.timers:
                self.timers.remove(entry)
                entry[1]()
        await client.turn()

    async def come(
        self, mechanism: str = "MSSBCBS", host: str = "127.0.0.1", desired: str | None = None
    ) -> Client:
        """A client that has opened its connection without a user, and desires a capability."""
        settings = ConnectionSettings(
            is_server=False, container_id="client", idle_time_out_ms=0, uses_sasl=True
        )
        client = self.scene.client(host, settings)
        await client.turn()
        assert mechanism in client.take(events.SaslOffered)[0].mechanisms
        client.amqp.sasl_init(mechanism)
        await client.turn()
        assert client.take(events.SaslSucceeded)
        if desired is None:
            client.amqp.open()
        else:
            sent = Open(container_id="client", desired_capabilities=[Symbol(desired)])
            client.amqp.output.append(frames.frame(0, encode_performative(sent)))
        await client.turn()
        return client

    def token(self, ttl_s: int = 60) -> str:
        claims = tokens.Claims(
            "ann", tokens.key_digest(self.record), self.scene.time_ms // 1000 + ttl_s, scope=None
        )
        return tokens.make(self.scene.authenticator.secret, claims)

    async def put(self, requester: Requester, audience: str, ttl_s: int = 60) -> int:
        answer = await requester.ask(self.token(ttl_s), operation="put-token", type="jwt", name=audience)
        return int(answer.application["status-code"])

    def refusals(self, client: Client) -> list[str]:
        """Conditions that links were detached with."""
        return [str(each.error.condition) for each in client.take(events.Detached) if each.error]

    def end(self, client: Client) -> str | None:
        """The condition that the connection was closed with."""
        closed = client.take(events.Closed)
        return str(closed[0].error.condition) if closed and closed[0].error else None


def play(check: Callable[[Newcomer], Any], **settings: Any) -> None:
    async def test(scene: Scene) -> None:
        record = UserRecord.make("ann", "password", 4_096)
        await scene.coordinator.add_user(record)
        await scene.authenticator.refresh()
        service = scene.frontend.service
        await service.permit(ANYBODY, "ann", "a", frozenset({Right.SEND, Right.LISTEN}))
        await service.permit(ANYBODY, "anonymous", "a", frozenset({Right.SEND, Right.LISTEN}))
        await service.give(ANYBODY, "public", Policy(Role.QUEUE, {"authorization": "none"}))
        scene.time_ms = 1_700_000_000_000
        await check(Newcomer(scene, record))

    play_scene(test, **settings)


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS"])
def test_everything_but_cbs_and_coordinators_is_refused_before_a_token(mechanism: str) -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come(mechanism)
        session = client.amqp.begin()
        for address in ("a/q", "public", "$management", "a/q/$management", "$temporary/x", "a/$cbs"):
            for is_sender in (True, False):
                source = Source() if is_sender else Source(address=address)
                target = Target(address=address) if is_sender else Target()
                session.attach(f"{is_sender} {address}", is_sender, source=source, target=target)
                await client.turn()
                assert newcomer.refusals(client) == [conditions.UNAUTHORIZED_ACCESS], address
        dynamic = Source(dynamic=True, expiry_policy=Symbol("link-detach"))
        dynamic.dynamic_node_properties = {Symbol("lifetime-policy"): DeleteOnClose()}
        session.attach("dynamic", False, source=dynamic, target=Target())
        session.attach("anonymous relay", True, source=Source(), target=Target())
        session.attach("from a coordinator", False, source=Source(), target=Coordinator())
        session.attach("dynamic $cbs", False, source=Source(address="$cbs", dynamic=True), target=Target())
        session.attach("coordinator", False, source=Source(address="$cbs"), target=Coordinator())
        await client.turn()
        assert newcomer.refusals(client) == [conditions.UNAUTHORIZED_ACCESS] * 5
        session.attach("transactions", True, source=Source(), target=Coordinator())
        await client.turn()
        assert newcomer.refusals(client) == []
        requester = await Requester.attach(client, "$cbs", session=session)
        assert newcomer.refusals(client) == []
        assert await newcomer.put(requester, "a/q") == 202

    play(check)


def test_a_token_opens_its_name_and_neither_others_nor_those_that_are_open_to_all() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come()
        session = client.amqp.begin()
        requester = await Requester.attach(client, "$cbs", session=session)
        assert await newcomer.put(requester, "a/q") == 202
        for queue, refusals in (
            ("a/q", []),
            ("a/other", [conditions.UNAUTHORIZED_ACCESS]),
            ("public", [conditions.UNAUTHORIZED_ACCESS]),
        ):
            await client.sender(session, f"s-{queue}", queue)
            newcomer.scene.shard.ready()
            await client.turn()
            assert newcomer.refusals(client) == refusals, queue

    play(check)


def test_without_a_token_the_connection_is_closed_in_time() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come()
        assert len(newcomer.scene.frontend.unproven) == 1
        await newcomer.later(client, WAIT_MS - 1)
        assert newcomer.end(client) is None
        await newcomer.later(client, 1)
        assert newcomer.end(client) == conditions.UNAUTHORIZED_ACCESS
        assert len(newcomer.scene.frontend.unproven) == 0

    play(check)


def test_a_refused_token_gives_no_more_time() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come()
        requester = await Requester.attach(client, "$cbs", session=client.amqp.begin())
        answer = await requester.ask("no token", operation="put-token", type="jwt", name="a")
        assert answer.application["status-code"] == 401
        await newcomer.later(client, WAIT_MS)
        assert newcomer.end(client) == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_a_connection_whose_last_token_has_expired_gets_the_time_again() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come()
        requester = await Requester.attach(client, "$cbs", session=client.amqp.begin())
        assert await newcomer.put(requester, "a", ttl_s=60) == 202
        assert len(newcomer.scene.frontend.unproven) == 0
        await newcomer.later(client, 60_000)
        assert len(newcomer.scene.frontend.unproven) == 1
        await newcomer.later(client, WAIT_MS - 1)
        assert await newcomer.put(requester, "a", ttl_s=3_600) == 202
        await newcomer.later(client, WAIT_MS)
        assert newcomer.end(client) is None
        deleted = await requester.ask(None, operation="delete-token", type="jwt", name="a")
        assert deleted.application["status-code"] == 202
        await newcomer.later(client, WAIT_MS)
        assert newcomer.end(client) == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_an_ended_connection_is_no_longer_counted() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come()
        client.transport.abort()
        await newcomer.scene.settle()
        assert len(newcomer.scene.frontend.unproven) == 0
        assert newcomer.timers == []

    play(check)


@pytest.mark.parametrize("bound", ["UNPROVEN_MAX", "UNPROVEN_OF_SOURCE"])
def test_their_number_is_bounded_and_those_with_a_token_do_not_count(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(newcomer: Newcomer) -> None:
        proven = await newcomer.come()
        requester = await Requester.attach(proven, "$cbs", session=proven.amqp.begin())
        assert await newcomer.put(requester, "a") == 202
        monkeypatch.setattr(unproven, bound, 1)
        first, second = await newcomer.come(), await newcomer.come()
        assert newcomer.end(first) is None
        assert newcomer.end(second) == conditions.RESOURCE_LIMIT_EXCEEDED
        if bound == "UNPROVEN_OF_SOURCE":
            # Who floods from one address keeps nobody else out.
            assert newcomer.end(await newcomer.come(host="10.0.0.7")) is None
        first.transport.abort()
        await newcomer.scene.settle()
        assert newcomer.end(await newcomer.come()) is None

    play(check)


def test_sessions_links_and_requests_are_few_and_small_before_a_token() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come()
        session = client.amqp.begin()
        links = []
        for number in range(unproven.UNPROVEN_LINKS_MAX + 1):
            links.append(await client.sender(session, f"s{number}", "$cbs"))
        assert newcomer.refusals(client) == [conditions.RESOURCE_LIMIT_EXCEEDED]
        session.attach("transactions", True, source=Source(), target=Coordinator())
        await client.turn()
        assert newcomer.refusals(client) == [conditions.RESOURCE_LIMIT_EXCEEDED]
        assert links[0].peer_max_message_size == TOKEN_REQUEST_BYTES
        for _ in range(unproven.UNPROVEN_SESSIONS_MAX):
            client.amqp.begin()
        await client.turn()
        assert newcomer.end(client) == conditions.RESOURCE_LIMIT_EXCEEDED

    play(check)


def test_a_client_that_shows_tokens_claims_no_container() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come(desired=CAPABILITY)
        assert conditions.UNAUTHORIZED_ACCESS.encode() in client.heard
        assert client.transport.closing or client.transport.ended
        assert await newcomer.scene.coordinator.entries("containers/") == []

    play(check)


def test_with_allow_anonymous_and_without_users_nobody_has_to_show_a_token() -> None:
    async def check(newcomer: Newcomer) -> None:
        client = await newcomer.come()
        await newcomer.later(client, WAIT_MS)
        assert newcomer.end(client) is None
        session = client.amqp.begin()
        await client.sender(session, "s", "a/q")
        assert newcomer.refusals(client) == []

    play(check, allow_anonymous=True)
