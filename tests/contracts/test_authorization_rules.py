"""The rights of an authorization rule begin and end at its entity, over AMQP and HTTP, whatever is signed.

A directory of entities with rules is asked for the rights of every holder of a key at every name.
"""

import base64
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote_plus

import pytest
from aiohttp.test_utils import make_mocked_request

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.cluster.users import UserRecord
from lightrail.frontend.nodes.cbs import Cbs
from lightrail.gateway.callers import Callers
from lightrail.gateway.errors import ProblemError
from lightrail.model.policy import Policy
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.listing import children
from lightrail.namespace.records import AuthorizationRule, Right, policy_from
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError, may, rights_of
from lightrail.namespace.service import Service
from lightrail.service_bus.access_keys import keys_of, with_key
from lightrail.service_bus.gateway import HOOKS
from lightrail.service_bus.rule_keys import seal
from tests.support.amqp.frontend_scene import Scene
from tests.support.amqp.frontend_scene import play as play_scene

NOW_MS: Final = 1_700_000_000_000
KEY, OTHER = "p" * 43 + "=", "s" * 43 + "="
ENTITIES: Final = {
    "Orders": "queue",
    "orders": "queue",
    "Orders/below": "queue",
    "Topic": "router",
    "Topic/Subscriptions/billing": "queue",
    "Topic/Subscriptions/billing/deep": "queue",
    "apart": "queue",
}
NAMES: Final = (
    *ENTITIES,
    "",
    "Orders/$dlq",
    "Orders/$transfer",
    "Orders/$transfer/$dlq",
    "Topic/$scheduled",
    "Topic/$subscriptions/key",
    "Topic/Subscriptions/billing/$dlq",
    "Topic/Subscriptions/new",
    "Topic/new",
    "Ordersx",
)
OF_ORDERS: Final = {"Orders", "Orders/$dlq", "Orders/$transfer", "Orders/$transfer/$dlq"}
OF_TOPIC: Final = {
    "Topic",
    "Topic/$scheduled",
    "Topic/$subscriptions/key",
    "Topic/Subscriptions/billing",
    "Topic/Subscriptions/billing/$dlq",
    "Topic/Subscriptions/new",
}


def signed(key: str, resource: str, name: str = "all", end: int = NOW_MS // 1000 + 60) -> str:
    sr = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{sr}\n{end}".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={end}&skn={quote_plus(name)}"


class Transport:
    """As much of one as a request needs."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


@dataclass
class Holder:
    """A client with a key, at a frontend and at a gateway of the same names."""

    scene: Scene
    callers: Callers

    def names(self, caller_at: Callable[[str], Caller], right: Right = Right.LISTEN) -> set[str]:
        """The names at which a caller has a right."""
        directory = self.scene.frontend.directory
        directory.refresh()
        return {name for name in NAMES if right in rights_of(directory, caller_at(name), name)}

    async def put(self, token: str, audience: str) -> tuple[int, set[str]]:
        """The status of a token that is put for this audience, and the names that it opens."""
        asked = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        request = write_message(Message(Properties(message_id=1, reply_to="me"), asked, token))
        (connection,) = self.scene.connections
        answer = await Cbs(self.scene.authenticator).answer(connection, request)
        assert answer is not None
        client = connection.client
        found = self.names(client.caller_for)
        client.claims = None
        return int(answer.application["status-code"]), found

    async def asked(self, path: str, authorization: str) -> Caller | None:
        headers = {"Authorization": authorization, "Host": "broker"}
        try:
            return await self.callers.caller(make_mocked_request("GET", path, headers, transport=Transport()))
        except ProblemError:
            return None

    async def get(self, path: str, authorization: str, right: Right = Right.LISTEN) -> set[str]:
        """The names that credentials of a request open."""
        caller = await self.asked(path, authorization)
        return set() if caller is None else self.names(lambda _: caller, right)


def rule(
    scene: Scene, name: str = "all", *rights: Right, keys: tuple[str, str] = (KEY, OTHER)
) -> AuthorizationRule:
    primary, secondary = (seal(scene.authenticator.secret, name, each) for each in keys)
    return AuthorizationRule(name, frozenset(rights or Right), primary, secondary, 1, 1)


def play(test: Callable[[Holder], Awaitable[None]]) -> None:
    """Rules `all` of Orders and Topic, with one key; of `apart` with others. A user of that name, too."""

    async def run(scene: Scene) -> None:
        scene.time_ms = NOW_MS
        await scene.coordinator.add_user(with_key(UserRecord.make("all", "password", 4_096)))
        await scene.authenticator.refresh()
        service, directory = scene.frontend.service, scene.frontend.directory
        for name, role in ENTITIES.items():
            rules = (rule(scene),) if name in ("Orders", "Topic") else ()
            if name == "apart":
                rules = (rule(scene, keys=("x" * 44, "y" * 44)),)
            await service.give(ANYBODY, name, Policy.parse({"role": role}), rules=rules)
        await service.subscribe(ANYBODY, "Topic", "Topic/Subscriptions/billing", id="billing")
        await service.subscribe(ANYBODY, "Topic", "apart", id="apart")
        await scene.client().open()
        callers = Callers(
            scene.coordinator,
            Settings(),
            monotonic=lambda: 0,
            wall=lambda: NOW_MS,
            schemes={name: partial(verify, directory) for name, verify in HOOKS.schemes.items()},
            opens=partial(HOOKS.opens, directory),
            shown_key=HOOKS.shown_keys(directory),
        )
        await callers.refresh()
        await test(Holder(scene, callers))

    play_scene(run, allow_anonymous=True)


def test_a_signature_is_good_at_its_entity_and_what_belongs_to_it_and_nowhere_else() -> None:
    async def test(holder: Holder) -> None:
        for key in (KEY, OTHER):
            for path, opened in {
                "Orders": OF_ORDERS,
                "Orders/$management": OF_ORDERS,
                # Two names that differ in case: a third spelling is none of them.
                "ORDERS": set[str](),
                "Orders/$DeadLetterQueue": {"Orders/$dlq"},
                "Orders/below": set(),
                "orders": set(),
                # By another spelling of the name, it is the name alone.
                "topic": {"Topic"},
                "Topic": OF_TOPIC,
                "topic/subscriptions/BILLING": {
                    "Topic/Subscriptions/billing",
                    "Topic/Subscriptions/billing/$dlq",
                },
                # Its queue is an entity of its own.
                "Topic/Subscriptions/apart": set(),
                "apart": set(),
                "Topic/Subscriptions/billing/deep": set(),
                "": set(),
                "$cbs": set(),
            }.items():
                status, found = await holder.put(signed(key, f"sb://broker/{path}"), f"sb://broker/{path}")
                assert found == opened, path
                if opened:
                    assert status == 202

    play(test)


def test_a_signature_for_one_entity_opens_no_other_one_that_has_the_same_rule_and_key() -> None:
    async def test(holder: Holder) -> None:
        status, found = await holder.put(signed(KEY, "sb://broker/Orders"), "sb://broker/Topic")
        assert (status, found) == (401, set())
        status, found = await holder.put(signed(KEY, "sb://broker/"), "sb://broker/Orders")
        assert (status, found) == (401, set())
        assert await holder.get("/Orders/!head", signed(KEY, "sb://broker/Topic")) == set()
        # A token for everything is of the user of that name.
        record = await holder.scene.coordinator.user("all")
        assert record is not None
        (of_user,) = keys_of(holder.scene.authenticator.secret, record)
        await holder.scene.frontend.service.permit(ANYBODY, "all", "apart", frozenset({Right.LISTEN}))
        assert await holder.put(signed(of_user.text, "sb://broker/"), "sb://broker/") == (202, {"apart"})
        assert await holder.put(signed(of_user.text, "sb://broker/apart"), "sb://broker/apart") == (
            202,
            {"apart"},
        )

    play(test)


def test_the_same_holds_over_http_for_signatures_and_for_name_and_key() -> None:
    async def test(holder: Holder) -> None:
        for key in (KEY, OTHER):
            assert await holder.get("/Orders/!head", signed(key, "sb://broker/Orders")) == OF_ORDERS
            assert await holder.get("/Topic", signed(key, "https://broker/Topic")) == OF_TOPIC
            basic = "Basic " + base64.b64encode(f"all:{key}".encode()).decode()
            assert await holder.get("/anything", basic) == OF_ORDERS | OF_TOPIC
        wrong = "Basic " + base64.b64encode(f"all:{KEY}x".encode()).decode()
        assert await holder.get("/anything", wrong) == set()

    play(test)


@pytest.mark.parametrize(
    "forged",
    [
        signed("q" * 44, "sb://broker/Orders"),
        signed(KEY, "sb://broker/Orders", "ALL"),
        signed(KEY, "sb://broker/Orders", "all "),
        signed(KEY, "sb://broker/Orders", "all\0"),
        signed(KEY, "sb://broker/Orders", "Orders/all"),
        signed(KEY, "sb://broker/Orders", "\ud7ff" * 200),
        signed(KEY, "sb://broker/Orders").replace("skn=all", "skn=%ED%A0%80"),
        signed(KEY, "sb://broker/Orders").replace("skn=all", "skn=%FF"),
        signed(KEY, "sb://broker/Orders").replace("Orders", "Topic"),
        signed(KEY, "sb://broker/Orders", end=NOW_MS // 1000),
    ],
)
def test_a_forged_signature_opens_nothing(forged: str) -> None:
    async def test(holder: Holder) -> None:
        assert await holder.put(forged, "sb://broker/Orders") == (401, set())
        assert await holder.get("/Orders/!head", forged) == set()

    play(test)


def test_rights_are_those_that_the_rule_has_now() -> None:
    async def test(holder: Holder) -> None:
        scene, service = holder.scene, holder.scene.frontend.service
        policy, token = Policy.parse({"role": "queue"}), signed(KEY, "sb://broker/Orders")
        assert await holder.get("/Orders", token, Right.MANAGE) == OF_ORDERS
        await service.change(ANYBODY, "Orders", policy, rules=(rule(scene, "all", Right.SEND),))
        assert await holder.get("/Orders", token, Right.MANAGE) == set()
        assert await holder.get("/Orders", token, Right.LISTEN) == set()
        assert await holder.get("/Orders", token, Right.SEND) == {"Orders"}, "nobody sends to dead letters"
        # The entity is deleted, and made anew with a rule of the same name.
        await service.drop(ANYBODY, "Orders")
        assert await holder.put(token, "sb://broker/Orders") == (401, set())
        keys = ("n" * 44, "m" * 44)
        await service.give(ANYBODY, "Orders", policy, rules=(rule(scene, keys=keys),))
        assert await holder.put(token, "sb://broker/Orders") == (401, set())
        assert await holder.get("/Orders", token, Right.SEND) == set()
        # The same in another spelling is another entity.
        await service.drop(ANYBODY, "Orders")
        assert await holder.put(token, "sb://broker/Orders") == (401, set())
        assert await holder.put(signed(keys[0], "sb://broker/Orders"), "sb://broker/Orders") == (401, set())

    play(test)


def test_a_manager_by_a_rule_reaches_no_other_entity() -> None:
    async def test(holder: Holder) -> None:
        service, directory = holder.scene.frontend.service, holder.scene.frontend.directory
        caller = await holder.asked("/Orders", signed(KEY, "sb://broker/Orders"))
        of_topic = await holder.asked("/Topic", signed(KEY, "sb://broker/Topic"))
        assert caller is not None
        assert of_topic is not None
        # What it forwards to, or gives its dead letters, has to be its own.
        for fields in ({"forward_to": "apart"}, {"dead_letter": "apart"}, {"forward_to": "Orders/below"}):
            with pytest.raises(ForbiddenError, match="end at the entity"):
                await service.change(caller, "Orders", Policy.parse({"role": "queue", **fields}))
        with pytest.raises(ForbiddenError):
            await service.subscribe(of_topic, "Topic", "Orders")
        await service.subscribe(of_topic, "Topic", "Topic/Subscriptions/billing", id="again")
        # Policies that decide about names below, which are other entities.
        for below in ('{"role": "queue", "auto_create": true}', '{"role": "queue", "template": {}}'):
            with pytest.raises(ForbiddenError, match="names below"):
                await service.change(caller, "Orders", policy_from(below))
        # Rights of users at its name would be rights at names below.
        with pytest.raises(ForbiddenError):
            await service.permit(caller, "all", "Orders", frozenset(Right))
        with pytest.raises(ForbiddenError):
            await service.give(caller, "Orders/another", Policy.parse({"role": "queue"}))
        assert [each.record.name async for each in children(directory, caller, "Orders")] == []
        made = await service.give(of_topic, "Topic/Subscriptions/new", Policy.parse({"role": "queue"}))
        assert may(directory, of_topic, Right.LISTEN, made)
        await service.drop(caller, "Orders")
        assert directory.find("Orders/below") is not None

    play(test)


def test_a_rule_that_another_process_has_just_set_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(holder: Holder) -> None:
        scene, directory = holder.scene, holder.scene.frontend.directory
        other = Service(scene.coordinator, Directory(scene.coordinator))
        refresh, current, read = directory.refresh, scene.coordinator.current, list[str]()

        async def note(key: str) -> Any:
            read.append(key)
            return await current(key)

        # The view of this process is older than the answer that the administration client got.
        monkeypatch.setattr(directory, "refresh", lambda: refresh() if read else None)
        monkeypatch.setattr(scene.coordinator, "current", note)
        await other.change(ANYBODY, "orders", Policy.parse({"role": "queue"}), rules=(rule(scene),))
        assert await holder.put(signed(KEY, "sb://broker/orders"), "sb://broker/orders") == (
            202,
            {"orders"},
        )
        assert read == ["names/orders"]

    play(test)
