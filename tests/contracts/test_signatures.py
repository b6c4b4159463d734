"""A signature opens what its resource names and nothing else, whatever its holder calls the broker, over AMQP
and over HTTP alike."""

import base64
import hmac
from functools import partial
from itertools import product
from random import Random
from typing import Any, Final
from urllib.parse import quote, quote_plus

import pytest
from aiohttp.test_utils import make_mocked_request

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.cluster.users import UserRecord
from lightrail.frontend.nodes.cbs import Cbs
from lightrail.gateway.callers import Callers
from lightrail.gateway.errors import ProblemError
from lightrail.model.policy import QUEUE
from lightrail.model.settings import Settings
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY, Caller, rights_of
from lightrail.service_bus.access_keys import keys_of, with_key
from lightrail.service_bus.gateway import HOOKS
from tests.support.amqp.frontend_scene import Scene
from tests.support.amqp.frontend_scene import play as play_scene

NOW_MS: Final = 1_700_000_000_000
NAMES: Final = (
    "orders",
    "Orders",
    "orders/eu",
    "secret",
    "secret/orders",
    "broker",
    "broker/orders",
    "a b?c",
)
HOSTS: Final = (
    "broker",
    "orders",
    "secret",
    "127.0.0.1",
    "[::1]",
    "localhost",
    "lightrail.shop.svc.cluster.local",
)
"""Hosts that a holder may give the broker, names among them."""
RESOURCES: Final = (
    *(
        (f"{scheme}://{host}/{quote(name)}", name)
        for scheme in ("sb", "AMQP")
        for host in HOSTS[:3]
        for name in NAMES
    ),
    *((f"amqps://{host}:5671/{quote(name)}/", name) for host in HOSTS[1:4] for name in NAMES[:3]),
    *((f"https://{host}{end}", "") for host in HOSTS for end in ("", "/", ":8080/")),
    *((f"{start}{quote(name)}", name) for start in ("", "/") for name in NAMES),
    *((f"{host}/{name}", f"{host}/{name}") for host in HOSTS[:4] for name in NAMES[:4]),
    ("127.0.0.1:5672", "127.0.0.1:5672"),
)
"""Texts that a client signs, and the name that each of them names; empty for every name."""


def opens(resource: str, name: str) -> bool:
    """The law for names that exist: beside `Orders`, `orders` is another one; `secret/Orders` is the only one
    that differs in case."""
    if resource not in NAMES:
        resource = next((each for each in NAMES if each.lower() == resource.lower()), resource)
    return not resource or name == resource or name.startswith(f"{resource}/")


class Holder:
    """A client with one signature after the other, at a frontend and at a gateway of the same users."""

    def __init__(self, scene: Scene, callers: Callers, record: UserRecord) -> None:
        self.scene = scene
        self.callers = callers
        self.key = next(iter(keys_of(scene.authenticator.secret, record))).text

    def sign(self, resource: str) -> str:
        sr, end = quote_plus(resource), NOW_MS // 1000 + 60
        digest = hmac.digest(self.key.encode(), f"{sr}\n{end}".encode(), "sha256")
        sig = quote_plus(base64.b64encode(digest).decode())
        return f"SharedAccessSignature sr={sr}&sig={sig}&se={end}&skn=ann"

    def opened(self, caller: Caller) -> set[str]:
        """The names at which a caller has rights."""
        return {name for name in NAMES if rights_of(self.scene.frontend.service.directory, caller, name)}

    async def put(self, token: str, audience: str) -> set[str]:
        """The names that a token opens over AMQP when it is put for this audience."""
        asked = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        request = write_message(Message(Properties(message_id=1, reply_to="me"), asked, token))
        (connection,) = self.scene.connections
        await Cbs(self.scene.authenticator).answer(connection, request)
        client = connection.client
        found = {name for name in self.opened(ANYBODY) if name in self.opened(client.caller_for(name))}
        client.claims = None
        return found

    async def get(self, token: str, host: str, name: str) -> set[str]:
        """The names that a token opens over HTTP in a request for one of them."""
        headers: dict[str, str] = {"Authorization": token, "Host": host}
        asked = make_mocked_request("GET", f"/{quote(name)}/!messages", headers, transport=Transport())
        try:
            caller = await self.callers.caller(asked)
        except ProblemError:
            return set()
        return self.opened(caller) | {name}


class Transport:
    """As much of one as a request needs."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


@pytest.fixture(scope="module")
def mistakes() -> list[str]:
    """Signatures that opened another name, or did not open theirs."""
    found: list[str] = []

    async def test(scene: Scene) -> None:
        record = with_key(UserRecord.make("ann", "password", 4_096))
        await scene.coordinator.add_user(record)
        await scene.authenticator.refresh()
        await scene.frontend.service.permit(ANYBODY, "ann", "", frozenset(Right))
        for name in NAMES:
            await scene.frontend.service.give(ANYBODY, name, QUEUE)
        scene.time_ms = NOW_MS
        await scene.client().open()
        callers = Callers(
            scene.coordinator,
            Settings(),
            monotonic=lambda: 0,
            wall=lambda: NOW_MS,
            schemes={
                name: partial(verify, scene.frontend.directory) for name, verify in HOOKS.schemes.items()
            },
            opens=partial(HOOKS.opens, scene.frontend.directory),
        )
        await callers.refresh()
        holder = Holder(scene, callers, record)
        random = Random(1)
        for resource, named in RESOURCES:
            token = holder.sign(resource)
            allowed = {name for name in NAMES if opens(named, name)}
            for host, name in random.sample(list(product(HOSTS, ("", *NAMES))), 4):
                path = quote(name)
                for audience in (f"amqp://{host}/{path}", f"sb://{host}:1/{path}", f"{host}/{path}", path):
                    opened = await holder.put(token, audience)
                    is_named = opens(named, name) and audience != f"{host}/{path}"
                    if not opened <= allowed or (is_named and name and name not in opened):
                        found.append(f"{resource} at {audience}: {opened} of {allowed}")
            for host, name in random.sample(list(product(HOSTS, NAMES)), 12):
                opened = await holder.get(token, f"{host}:1", name)
                if opened != (allowed if name in allowed else set()):
                    found.append(f"{resource} at http://{host}/{name}: {opened} of {allowed}")

    play_scene(test, allow_anonymous=True)
    return found


def test_a_signature_opens_what_its_resource_names_and_nothing_else(mistakes: list[str]) -> None:
    assert mistakes == []
