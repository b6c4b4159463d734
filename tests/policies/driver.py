"""Drivers: the names of one test, over plain HTTP and by python-qpid-proton, in as few words as possible."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from proton import UNDESCRIBED, Array, Condition, Data, Delivery, Link, Message, Receiver, Timeout, symbol
from proton.reactor import LinkOption, ReceiverOption
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender, LinkDetached

from tests.support import wait
from tests.support.amqp.proton_blocking import connected, drain, take
from tests.support.broker import Broker
from tests.support.http_client import Http, Response

TIMEOUT_S = 20
"""How long a message that has to come is waited for."""


def instant(seconds: float) -> str:
    """A time so many seconds from now as policies have it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def seconds(text: str) -> float:
    """The other way round: seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@dataclass
class Locked:
    """A message that was peek-locked over HTTP."""

    body: str
    location: str
    """The path of its lock."""
    properties: dict[str, Any]

    @property
    def until(self) -> float:
        """When the lock runs out, in seconds since 1970."""
        return seconds(self.properties["LockedUntilUtc"])


class Names:
    """Names below a prefix of their own. Methods take and give whole names, as AMQP addresses have them."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self.broker = broker
        self.prefix = prefix
        self._http: Http | None = None

    @property
    def http(self) -> Http:
        """Requests as they are."""
        if self._http is None:
            self._http = Http(self.broker.http, deadline_s=60)
        return self._http

    def move_to(self, broker: Broker) -> None:
        """Another broker on the same directory."""
        self.close()
        self.broker = broker

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    @contextlib.contextmanager
    def amqp(self) -> Iterator[BlockingConnection]:
        """A connection of python-qpid-proton."""
        with connected(self.broker.amqp) as connection:
            yield connection

    # --- names -----------------------------------------------------------------------------------------

    def name(self, name: str) -> str:
        """A name of this test, without a role yet."""
        return f"{self.prefix}/{name}"

    def give(self, name: str, role: str, **policy: Any) -> str:
        """A role by POST; answers the whole name."""
        found = self.http("POST", f"/{self.name(name)}", {"role": role, **policy})
        assert found.status == 201, found.body
        return self.name(name)

    def queue(self, name: str = "queue", **policy: Any) -> str:
        return self.give(name, "queue", **policy)

    def router(self, name: str = "router", **policy: Any) -> str:
        return self.give(name, "router", **policy)

    def subscribe(self, router: str, target: str, **fields: Any) -> None:
        made = self.http("POST", f"/{router}/!subscriptions", {"target": target, **fields})
        assert made.status == 201, made.body

    def put(self, name: str, role: str = "queue", **policy: Any) -> None:
        """Another policy of the same role by PUT."""
        found = self.http("PUT", f"/{name}/!policy", {"role": role, **policy})
        assert found.status == 200, found.body

    def put_now(self, name: str, **policy: Any) -> None:
        """The same for a queue, and its shard has it: a shard looks whenever somebody attaches."""
        self.put(name, **policy)
        with self.amqp() as connection:
            connection.create_sender(name)

    def policy(self, name: str) -> dict[str, Any]:
        """As it was given, without the role."""
        found: dict[str, Any] = self.http("GET", f"/{name}/!policy").json()
        found.pop("role")
        return found

    def role(self, name: str) -> str:
        found = self.http("GET", f"/{name}")
        return "none" if found.status == 404 else str(found.json()["role"])

    # --- messages --------------------------------------------------------------------------------------

    def post(
        self, name: str, body: str = "x", own: dict[str, Any] | None = None, **properties: Any
    ) -> Response:
        """A message, and whatever the answer is. `own`: application properties."""
        headers = {f"LightRail-Property-{key}": json.dumps(value) for key, value in (own or {}).items()}
        headers["BrokerProperties"] = json.dumps(properties)
        return self.http("POST", f"/{name}?body=text", body, headers)

    def send(self, name: str, *bodies: str, own: dict[str, Any] | None = None, **properties: Any) -> str:
        """Messages that are stored; the location of the last one (empty at a router)."""
        for body in bodies:
            sent = self.post(name, body, own, **properties)
            assert sent.status == 201, sent.body
        return sent.headers.get("location", "")

    def receive(self, name: str, timeout: float = TIMEOUT_S) -> Response:
        return self.http("DELETE", f"/{name}/!head?timeout={timeout}")

    def take(self, name: str, count: int = 1) -> list[str]:
        """So many messages, waited for."""
        found = [self.receive(name) for _ in range(count)]
        assert {each.status for each in found} == {200}
        return [each.body.decode() for each in found]

    def rest(self, name: str) -> list[str]:
        """Everything that is ready now; the queue is empty afterwards."""
        found = []
        while (got := self.receive(name, 0)).status == 200:
            found.append(got.body.decode())
        return found

    def lock(self, name: str) -> Locked:
        """The next message, waited for and locked."""
        got = self.http("POST", f"/{name}/!head?timeout={TIMEOUT_S}")
        assert got.status == 201, got.body
        return Locked(got.body.decode(), got.headers["location"], got.properties)

    def complete(self, locked: Locked) -> int:
        """The status: 200, or 410 when the lock has run out."""
        return self.http("DELETE", locked.location).status

    def fail(self, locked: Locked) -> None:
        """Given back as a failed delivery."""
        assert self.http("PUT", locked.location, {"outcome": "modified"}).status == 200

    def peek(self, name: str) -> list[dict[str, Any]]:
        """What is there, nothing of it taken."""
        found: list[dict[str, Any]] = self.http("GET", f"/{name}/!messages").json()["messages"]
        return found

    def texts(self, name: str) -> list[str]:
        """The bodies of what is there, nothing of it taken."""
        return [each["body"]["text"] for each in self.peek(name)]

    def figures(self, name: str) -> dict[str, Any]:
        """How many are ready, in flight, parked; counters of the queue among them."""
        found: dict[str, Any] = self.http("GET", f"/{name}/!figures").json()
        counters: dict[str, Any] = found["counters"]
        return found | counters

    def until_figure(self, name: str, figure: str, value: int) -> None:
        wait.until(lambda: self.figures(name)[figure] == value, f"{figure} of {name} is {value}")

    def dead(self, name: str) -> Response:
        """The next dead letter of a queue, waited for and taken."""
        return self.receive(f"{name}/$dlq")


def transferred(names: Names, source: str, target: str | None, **asked: Any) -> int:
    """A move, copy or redrive that is done; how many messages it took along."""
    began = names.http("POST", "/!transfers", {"from": source, "to": target, **asked})
    assert began.status == 202, began.body

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = names.http("GET", began.headers["location"]).json()
        return None if found["state"] == "running" else found

    found = wait.until(ended, f"{source} is transferred")
    assert found is not None
    assert (found["state"], found["error"]) == ("done", None)
    return int(found["moved"])


# --- python-qpid-proton ----------------------------------------------------------------------------------


class Shared(LinkOption):
    """The capability of a source at a router that says: a subscription of all links of this name."""

    def apply(self, link: Link) -> None:
        link.source.capabilities.put_py_array(Array(UNDESCRIBED, Data.SYMBOL, symbol("shared")))

    def test(self, link: Link) -> bool:
        return bool(link.is_receiver)


def reject(connection: BlockingConnection, receiver: BlockingReceiver, condition: str, why: str) -> None:
    """The next message of a receiver, rejected with an error."""
    _, delivery = take(receiver)
    delivery.local.condition = Condition(condition, why)
    delivery.update(Delivery.REJECTED)
    delivery.settle()
    # The broker answers a drain behind the rejection.
    assert nothing(connection, receiver)


def outcome(connection: BlockingConnection, sender: BlockingSender, message: Message) -> str:
    """`accepted`, `released`, or the condition of a rejection."""
    delivery = sender.link.send(message)
    connection.wait(lambda: delivery.settled, timeout=TIMEOUT_S)
    state, condition = delivery.remote_state, delivery.remote.condition
    delivery.settle()
    if state == Delivery.REJECTED:
        return "rejected" if condition is None else str(condition.name)
    return {int(Delivery.ACCEPTED): "accepted", int(Delivery.RELEASED): "released"}[state]


_links = itertools.count(1)


class OfAzure(ReceiverOption):
    """A link as clients of Azure Service Bus attach it, by a property."""

    def apply(self, receiver: Receiver) -> None:
        receiver.properties = {symbol("com.microsoft:receiver-name"): "policies"}


def listen(
    connection: BlockingConnection, name: str, credit: int | None = None, option: ReceiverOption | None = None
) -> BlockingReceiver:
    """A link of its own, also beside others at the same name; without credit it asks for each message."""
    return connection.create_receiver(name, credit=credit, name=f"receiver{next(_links)}", options=option)


def send(connection: BlockingConnection, name: str, *messages: Message) -> None:
    """Over a link of their own, accepted."""
    sender = connection.create_sender(name, name=f"sender{next(_links)}")
    for message in messages:
        sender.send(message)
    sender.close()


def refused(connection: BlockingConnection, name: str, *, sender: bool = False) -> Condition:
    """Why a link is not taken."""
    try:
        connection.create_sender(name) if sender else listen(connection, name)
    except LinkDetached as detached:
        return detached.link.remote_condition
    raise AssertionError(f"{name} took a link")


def detached(connection: BlockingConnection) -> Condition:
    """Why the broker ends a link that was open."""
    try:
        connection.wait(lambda: False, timeout=TIMEOUT_S, msg="for the detach")
    except LinkDetached as found:
        return found.link.remote_condition
    raise AssertionError("unreachable: the wait ends with an error")


def pumped(connection: BlockingConnection, condition: Callable[[], bool], what: str) -> None:
    """Until something is so that the connection does not tell, while it reads and writes."""

    def look() -> bool:
        with contextlib.suppress(Timeout):
            connection.wait(lambda: False, timeout=0.02)
        return condition()

    wait.until(look, what)


def nothing(connection: BlockingConnection, receiver: BlockingReceiver) -> bool:
    """Whether the broker has nothing for a link now: asked for by a drain, not by waiting."""
    return not drain(connection, receiver, 1)
