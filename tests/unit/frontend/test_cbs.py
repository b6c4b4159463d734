"""$cbs: who a connection is by its tokens, at which names, and until when."""

import base64
import hmac
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus

import pytest

from lightrail.amqp import events
from lightrail.amqp.messages import Message
from lightrail.amqp.performatives import Accepted, Rejected
from lightrail.amqp.sections import Properties
from lightrail.cluster.users import UserRecord
from lightrail.frontend import client as clients
from lightrail.frontend.connection import ClientConnection
from lightrail.model import conditions
from lightrail.model.policy import QUEUE, Policy
from lightrail.namespace import tokens
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import ANYBODY, Caller, rights_of
from lightrail.namespace.service import Service
from lightrail.service_bus import development
from lightrail.service_bus.access_keys import keys_of, with_key
from tests.support.amqp.frontend_scene import Client, Scene
from tests.support.amqp.frontend_scene import play as play_scene
from tests.support.amqp.requests import Requester

Check = Callable[["Cbs"], Any]


class Cbs:
    """A nameless client with links to $cbs, and a user `ann` who may send and listen below a and b."""

    def __init__(self, scene: Scene, client: Client, requester: Requester, record: UserRecord) -> None:
        self.scene = scene
        self.client = client
        self.requester = requester
        self.record = record
        self.later: list[tuple[int, Callable[[], None]]] = []
        scene.frontend.timer = self._later  # type: ignore[method-assign]

    def _later(self, wait_ms: int, call: Callable[[], None]) -> Any:
        entry = (wait_ms, call)
        self.later.append(entry)
        outer = self

        class Handle:
            def cancel(self) -> None:
                if entry in outer.later:
                    outer.later.remove(entry)

        return Handle()

    @property
    def connection(self) -> ClientConnection:
        (connection,) = self.scene.connections
        return connection

    def token(self, ttl_s: int = 60, scope: tokens.Scope | None = None, **claims: Any) -> str:
        said: dict[str, Any] = {
            "user": "ann",
            "key_digest": tokens.key_digest(self.record),
            "expires_s": self.scene.time_ms // 1000 + ttl_s,
            "scope": scope,
        }
        return tokens.make(self.scene.authenticator.secret, tokens.Claims(**(said | claims)))

    def signature(self, resource: str) -> str:
        """A shared access signature by the user's key."""
        (key,) = keys_of(self.scene.authenticator.secret, self.record)
        sr, end = quote_plus(resource), self.scene.time_ms // 1000 + 60
        digest = hmac.digest(key.text.encode(), f"{sr}\n{end}".encode(), "sha256")
        sig = quote_plus(base64.b64encode(digest).decode())
        return f"SharedAccessSignature sr={sr}&sig={sig}&se={end}&skn=ann"

    async def put(self, audience: Any = "a", token: Any = None, type: Any = "jwt") -> int:
        """put-token; gives the status."""
        answer = await self.requester.ask(
            self.token() if token is None else token, operation="put-token", type=type, name=audience
        )
        assert isinstance(answer.application["status-description"], str)
        return int(answer.application["status-code"])

    async def attach(self, queue: str) -> str | None:
        """Attach a sender; gives the condition that it was refused with."""
        self.client.take(events.Detached)
        await self.client.sender(self.requester.session, f"s-{queue}", queue)
        self.scene.shard.ready()
        await self.client.turn()
        return self.detached()

    def detached(self) -> str | None:
        """The condition that a link was detached with since the last time."""
        conditions = [
            str(event.error.condition) for event in self.client.take(events.Detached) if event.error
        ]
        return conditions[0] if conditions else None

    async def ring(self, after_s: float) -> None:
        """So much later the timers ring that are due."""
        self.scene.time_ms += int(after_s * 1000)
        for wait_ms, call in list(self.later):
            if wait_ms <= after_s * 1000:
                self.later.remove((wait_ms, call))
                call()
        await self.client.turn()


def play(check: Check, **settings: Any) -> None:
    async def test(scene: Scene) -> None:
        record = with_key(UserRecord.make("ann", "password", 4_096))
        await scene.coordinator.add_user(record)
        await scene.authenticator.refresh()
        for prefix in ("a", "b"):
            rights = frozenset({Right.SEND, Right.LISTEN})
            await scene.frontend.service.permit(ANYBODY, "ann", prefix, rights)
        scene.time_ms = 1_700_000_000_000
        client = scene.client()
        requester = await Requester.attach(client, "$cbs")
        await check(Cbs(scene, client, requester, record))

    play_scene(test, allow_anonymous=True, **settings)


def test_a_token_opens_its_audience_and_nothing_else() -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.attach("a/q") == conditions.UNAUTHORIZED_ACCESS
        assert await cbs.put("a") == 202
        assert await cbs.attach("a/q") is None
        assert await cbs.attach("b/q") == conditions.UNAUTHORIZED_ACCESS
        assert await cbs.put("b") == 202
        assert await cbs.attach("b/q") is None

    play(check)


@pytest.mark.parametrize(
    ("audience", "name"),
    [
        ("a", "a"),
        ("/a/", "a"),
        ("a/q%20r", "a/q r"),
        ("amqp://broker/a/b", "a/b"),
        ("AMQPS://broker:5671/a", "a"),
        ("sb://ns.example/a", "a"),
        ("http://broker/a/q", "a/q"),
        ("", ""),
        ("amqp://broker/", ""),
        ("amqp://broker", ""),
    ],
)
def test_an_audience_is_a_name_or_the_path_of_a_uri(audience: str, name: str) -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put(audience) == 202
        assert cbs.connection.client.caller_for(f"{name}/x".lstrip("/")).user == "ann"
        assert cbs.connection.client.caller_for("other").user == ("anonymous" if name else "ann")
        # Links count towards the share of the user who has the right to the name.
        assert cbs.connection.client.user_at(f"{name}/x".lstrip("/")) == "ann"
        assert cbs.connection.client.user_at("other") == ("anonymous" if name else "ann")

    play(check)


@pytest.mark.parametrize(
    ("resource", "status"),
    [
        ("amqp://Broker/a/Orders", 202),
        ("amqp://broker/a/orders", 202),  # as the client for Go signs for a/Orders
        ("amqp://broker/a/ORDERS", 202),
        ("amqp://broker/a", 202),
        ("sb://BROKER", 202),
        ("a", 202),
        ("broker", 401),  # without a scheme it is a name
        ("broker/a", 401),
        ("other", 401),
        ("broker/b", 401),
        ("amqp://broker/A", 401),
        ("amqp://broker/a/order", 401),
    ],
)
def test_a_signature_is_for_its_name_in_any_spelling_where_none_exists(resource: str, status: int) -> None:
    async def check(cbs: Cbs) -> None:
        found = await cbs.put(
            "amqp://broker/a/Orders", cbs.signature(resource), "servicebus.windows.net:sastoken"
        )
        assert found == status
        assert await cbs.attach("a/orders") == conditions.UNAUTHORIZED_ACCESS
        assert await cbs.attach("a/Orders") == (None if status == 202 else conditions.UNAUTHORIZED_ACCESS)

    play(check)


@pytest.mark.parametrize("signed", ["a/orders", "a/Orders", "a/ORDERS"])
@pytest.mark.parametrize("asked", ["a/orders", "a/Orders", "a/ORDERS"])
@pytest.mark.parametrize("existing", [("a/Orders",), ("a/orders",), ("a/orders", "a/Orders")])
def test_a_signature_opens_the_name_that_it_means_and_none_that_differs_in_case(
    signed: str, asked: str, existing: tuple[str, ...]
) -> None:
    def meant(name: str) -> str | None:
        return name if name in existing else existing[0] if len(existing) == 1 else None

    async def check(cbs: Cbs) -> None:
        for name in existing:
            await cbs.scene.frontend.service.give(ANYBODY, name, QUEUE)
        token = cbs.signature(f"sb://broker/{signed}")
        status = await cbs.put(f"sb://broker/{asked}", token, "servicebus.windows.net:sastoken")
        is_good = signed == asked or (meant(signed) is not None and meant(signed) == meant(asked))
        assert status == (202 if is_good else 401)
        for name in existing:
            opened = await cbs.attach(name) is None
            assert opened is (status == 202 and name == meant(asked))

    play(check)


def test_a_subscription_of_another_process_is_open_to_its_token_at_once() -> None:
    async def check(cbs: Cbs) -> None:
        other = Service(cbs.scene.coordinator, Directory(cbs.scene.coordinator))
        await other.give(ANYBODY, "a/topic", Policy.parse({"role": "router"}))
        await other.give(ANYBODY, "b/billing", Policy.parse({"role": "queue"}))
        await other.subscribe(ANYBODY, "a/topic", "b/billing", id="x")
        path = "a/topic/Subscriptions/x"
        signature = cbs.signature(f"sb://broker/{path}")
        assert await cbs.put(f"sb://broker/{path}", signature, "servicebus.windows.net:sastoken") == 202
        assert await cbs.attach(path) is None
        client = cbs.connection.client
        client.claims = None
        dead = f"{path}/$DeadLetterQueue"
        signature = cbs.signature(f"sb://broker/{dead}")
        assert await cbs.put(f"sb://broker/{dead}", signature, "servicebus.windows.net:sastoken") == 202
        directory = cbs.scene.frontend.service.directory
        assert rights_of(directory, client.caller_for("b/billing/$dlq"), "b/billing/$dlq")
        assert await cbs.attach("b/billing/below") == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_the_scope_of_a_token_bounds_what_its_user_may() -> None:
    async def check(cbs: Cbs) -> None:
        scope = (("a/one", frozenset({Right.SEND})),)
        assert await cbs.put("a", cbs.token(scope=scope)) == 202
        assert await cbs.attach("a/one") is None
        assert await cbs.attach("a/two") == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_the_nearest_audience_decides() -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put("") == 202
        assert await cbs.put("a/one", cbs.token(scope=(("b", frozenset({Right.SEND})),))) == 202
        assert await cbs.attach("a/two") is None
        assert await cbs.attach("a/one") == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_links_go_when_their_token_has_run_out() -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put("a", cbs.token(60)) == 202
        assert await cbs.put("b", cbs.token(90)) == 202
        assert await cbs.attach("a/q") is None
        assert await cbs.attach("b/q") is None
        await cbs.ring(59)
        assert cbs.detached() is None
        await cbs.ring(61)
        assert cbs.detached() == conditions.UNAUTHORIZED_ACCESS
        assert await cbs.attach("a/r") == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_links_stay_when_the_token_was_renewed() -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put("a", cbs.token(60)) == 202
        assert await cbs.attach("a/q") is None
        cbs.scene.time_ms += 30_000
        assert await cbs.put("a", cbs.token(60)) == 202
        assert len(cbs.later) == 1
        await cbs.ring(31)
        assert cbs.detached() is None
        assert await cbs.attach("a/r") is None
        await cbs.ring(60)
        assert cbs.detached() == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_a_timer_that_rings_early_rings_again() -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put("a", cbs.token(60)) == 202
        assert await cbs.attach("a/q") is None
        ((_, call),) = cbs.later
        cbs.later.clear()
        call()
        await cbs.client.turn()
        assert cbs.detached() is None
        await cbs.ring(60)
        assert cbs.detached() == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_links_that_have_their_right_without_the_token_stay() -> None:
    async def check(cbs: Cbs) -> None:
        cbs.connection.client.caller = Caller("ann")
        assert await cbs.put("a", cbs.token(60)) == 202
        assert await cbs.attach("a/q") is None
        await cbs.ring(61)
        assert cbs.detached() is None

    play(check)


def test_a_token_can_be_taken_back() -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put("a") == 202
        assert await cbs.attach("a/q") is None
        answer = await cbs.requester.ask(operation="delete-token", type="jwt", name="amqp://x/a")
        assert answer.application["status-code"] == 202
        assert cbs.detached() == conditions.UNAUTHORIZED_ACCESS
        again = await cbs.requester.ask(operation="delete-token", type="jwt", name="a")
        assert again.application["status-code"] == 404

    play(check)


def test_set_token_is_answered_by_its_outcome_and_is_for_everything() -> None:
    async def check(cbs: Cbs) -> None:
        for type, token, expected in (
            ("jwt", cbs.token(), Accepted),
            ("sas", cbs.token(), Rejected),
            ("jwt", "nonsense", Rejected),
        ):
            message = Message(Properties(subject="set-token"), {"token-type": type}, token)
            await cbs.requester.send(message)
            (state,) = cbs.requester.outcomes()
            assert isinstance(state, expected)
        assert await cbs.requester.answers() == []
        assert await cbs.attach("a/q") is None
        assert await cbs.attach("b/q") is None

    play(check)


@pytest.mark.parametrize(
    ("expected", "change"),
    [
        (400, {"type": "saml"}),
        (400, {"type": None}),
        (400, {"type": 7}),
        (400, {"audience": None}),
        (400, {"audience": "a//b"}),
        (404, {"audience": "$system"}),
        (400, {"token": 7}),
        (401, {"token": "nonsense"}),
        (401, {"token": b"\xff\xff"}),
        (401, {"token": "expired"}),
        (401, {"token": "password"}),
        (401, {"token": "unknown"}),
    ],
)
def test_what_can_not_be_taken_is_said_with_its_status(expected: int, change: dict[str, Any]) -> None:
    async def check(cbs: Cbs) -> None:
        made = {
            "expired": cbs.token(-1),
            "password": cbs.token(key_digest="0" * 32),
            "unknown": cbs.token(user="bob"),
        }
        token = change.get("token")
        fields = {**change, "token": made.get(token, token) if isinstance(token, str) else token}
        assert await cbs.put(**fields) == expected
        assert await cbs.attach("a/q") == conditions.UNAUTHORIZED_ACCESS

    play(check)


def test_operations_that_are_none_are_501_with_a_condition() -> None:
    async def check(cbs: Cbs) -> None:
        answer = await cbs.requester.ask("x", operation="explode", name="a", type="jwt")
        assert answer.application["status-code"] == 501
        assert answer.application["error-condition"] == conditions.NOT_IMPLEMENTED

    play(check)


def test_the_tokens_of_a_connection_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLAIMS_BYTES_MAX", 2 * (clients.CLAIM_BYTES + 1))

    async def check(cbs: Cbs) -> None:
        assert [await cbs.put(audience) for audience in ("a", "b", "c", "a")] == [202, 202, 400, 202]
        deleted = await cbs.requester.ask(None, operation="delete-token", type="jwt", name="a")
        assert deleted.application["status-code"] == 202
        assert [await cbs.put(audience) for audience in ("long", "c")] == [400, 202]

    play(check)


def test_the_first_token_of_a_connection_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def check(cbs: Cbs) -> None:
        caplog.set_level("DEBUG", "lightrail.frontend.nodes.cbs")
        for audience in ("a", "b", "a"):
            await cbs.put(audience)
        levels = [each.levelname for each in caplog.records if "acts as user" in each.getMessage()]
        assert levels == ["INFO", "DEBUG", "DEBUG"]

    play(check)


def test_a_scope_counts_towards_the_bound_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLAIMS_BYTES_MAX", clients.CLAIM_BYTES + 3 * clients.CLAIM_SCOPE_BYTES)

    async def check(cbs: Cbs) -> None:
        assert await cbs.put("a") == 202
        claims = cbs.connection.client.claims
        assert claims is not None
        for count in (2, 3):
            scope = tuple((f"{number}", frozenset({Right.SEND})) for number in range(count))
            claim = clients.Claim(Caller("ann", scope=scope), 1 << 50)
            if count == 3:
                with pytest.raises(clients.TooManyTokensError):
                    claims.put("a", claim)
            else:
                claims.put("a", claim)

    play(check)


def test_a_token_of_one_of_a_thousand_entities_has_the_uses_of_that_one_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put("a/0") == 202
        claims = cbs.connection.client.claims
        assert claims is not None
        for number in range(1_000):
            claims.put(f"a/{number}", clients.Claim(Caller("ann"), 1 << 50))
        guard = cbs.scene.frontend.guard
        for number in range(1_000):
            name = Name(f"a/{number}", Policy.parse({"role": "queue"}))
            guard.hold(cbs.connection.client, Right.LISTEN, name, lambda _condition, _why: None)
        checked: list[str] = []

        def check_one(_client: object, _right: Right, former: Name) -> Name:
            checked.append(former.name)
            return former

        monkeypatch.setattr(guard, "check", check_one)
        assert await cbs.put("a/17") == 202
        assert checked == ["a/17"]
        assert await cbs.put("a") == 202
        assert len(checked) == 1_001
        assert await cbs.put("b") == 202
        assert len(checked) == 1_001

    play(check)


def test_beyond_this_machine_tokens_need_tls() -> None:
    async def check(cbs: Cbs) -> None:
        cbs.connection.client.loopback = False
        assert await cbs.put("a") == 403
        cbs.scene.authenticator.settings = type(cbs.scene.authenticator.settings)(plain_without_tls=True)
        assert await cbs.put("a") == 202

    play(check)


def test_a_token_speaks_at_the_management_node_too() -> None:
    async def check(cbs: Cbs) -> None:
        await cbs.scene.frontend.service.permit(ANYBODY, "ann", "a", frozenset({Right.MANAGE}))
        manager = await Requester.attach(cbs.client, "$management", session=cbs.requester.session)
        create = {"operation": "CREATE", "type": "lightrail.queue", "name": "a/q"}
        assert (await manager.ask({}, **create)).application["statusCode"] == 401
        assert await cbs.put("a") == 202
        assert (await manager.ask({}, **create)).application["statusCode"] == 201

    play(check)


def test_nothing_waits_for_a_connection_that_is_gone() -> None:
    async def check(cbs: Cbs) -> None:
        assert await cbs.put("a") == 202
        assert len(cbs.later) == 1
        cbs.client.transport.abort()
        await cbs.scene.settle()
        assert cbs.later == []
        assert cbs.scene.frontend.guard._by_client == {}

    play(check)


def test_the_capability_is_offered() -> None:
    async def check(cbs: Cbs) -> None:
        peer = cbs.client.amqp.peer_open
        assert peer is not None
        assert peer.offered_capabilities == [
            "ANONYMOUS-RELAY",
            "AMQP_CBS_V1_0",
            "SHARED-SUBS",
            "lightrail:renew-locks",
            "sole-connection-for-container",
        ]

    play(check)


def development_signature(scene: Scene, resource: str, key: str = development.KEY) -> str:
    sr, end = quote_plus(resource), scene.time_ms // 1000 + 60
    digest = hmac.digest(key.encode(), f"{sr}\n{end}".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={end}&skn={development.KEY_NAME}"


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.7"])
def test_the_development_key_opens_what_is_open_while_no_user_is_defined(host: str) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client(host)
        requester = await Requester.attach(client, "$cbs")

        async def put(audience: str, token: str) -> int:
            answer = await requester.ask(
                token, operation="put-token", type="servicebus.windows.net:sastoken", name=audience
            )
            return int(answer.application["status-code"])

        assert await put("a/q", development_signature(scene, "sb://h/a/q", "another key")) == 401
        assert await put("a/q", development_signature(scene, "sb://h/a/q")) == 202
        caller = scene.connections[0].client.caller_for("a/q")
        assert Right.MANAGE in rights_of(scene.frontend.directory, caller, "a/q")
        # As every signature, it opens its resource alone.
        assert rights_of(scene.frontend.directory, caller, "b") == frozenset()

    play_scene(test, insecure_no_users=True, plain_without_tls=True)


def test_the_development_key_opens_nothing_where_a_user_is_defined() -> None:
    async def check(cbs: Cbs) -> None:
        token = development_signature(cbs.scene, "sb://h/a")
        assert await cbs.put("a", token) == 401
        # A connection of the time before, and a frontend that has not heard of the user.
        cbs.scene.authenticator.has_users = False
        assert await cbs.put("a", token) == 202
        caller = cbs.connection.client.caller_for("a")
        assert rights_of(cbs.scene.frontend.directory, caller, "a") == frozenset()

    play(check)
