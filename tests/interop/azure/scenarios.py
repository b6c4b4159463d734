"""Calls of azure-servicebus, Azure's client for Python.

`scenarios.py CONNECTION_STRING OTHER SECURE PREFIX NAME...` prints a line of JSON for each scenario of that
name; OTHER is the connection string of a user who may only receive, SECURE is one over TLS.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.exceptions import ServiceBusError

TIMEOUT_S = 30
HOUR = timedelta(hours=1)


class Scene:
    """What a scenario works with: nodes whose names start with `name` are its own."""

    def __init__(self, strings: list[str], name: str, opened: ExitStack, **options: Any) -> None:
        self.connection_string, self.other, self.secure = self.strings = strings
        self.name = name
        self.opened = opened
        self.client = self.client_for(self.connection_string, **options)

    def client_for(self, connection_string: str, **options: Any) -> ServiceBusClient:
        options = {"retry_total": 0} | options
        return self.opened.enter_context(
            ServiceBusClient.from_connection_string(connection_string, **options)
        )

    def sender(self, client: ServiceBusClient | None = None) -> ServiceBusSender:
        return self.opened.enter_context((client or self.client).get_queue_sender(self.name))

    def receiver(self, client: ServiceBusClient | None = None, **options: Any) -> ServiceBusReceiver:
        return self.opened.enter_context((client or self.client).get_queue_receiver(self.name, **options))

    def send(self, *texts: str) -> None:
        """Sends one message of each text."""
        sender = self.sender()
        for text in texts:
            sender.send_messages(ServiceBusMessage(text, message_id=text))


def received(receiver: ServiceBusReceiver, count: int) -> list[Any]:
    """So many messages, in as many calls as it takes."""
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(count - len(found), max_wait_time=TIMEOUT_S)
        assert more, f"expected {count} messages, found {len(found)}"
        found += more
    return found


def left(receiver: ServiceBusReceiver) -> int:
    """How many messages a queue still has."""
    return len(receiver.peek_messages(100, sequence_number=1))


def texts(messages: Iterable[Any]) -> list[str]:
    return list(map(str, messages))


def why(work: Callable[[], object]) -> str:
    """The error as applications catch it, or "" where nothing failed."""
    try:
        work()
    except ServiceBusError as error:
        return type(error).__name__
    return ""


def text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def send(scene: Scene) -> dict[str, Any]:
    """One message with all that applications set, to and fro."""
    scene.sender().send_messages(
        ServiceBusMessage(
            "Zug \U0001f682",
            message_id="id",
            correlation_id="correlation",
            subject="subject",
            content_type="text/plain",
            reply_to="reply",
            to="to",
            time_to_live=HOUR,
            application_properties={"text": "value", "number": 7, "flag": True, "part": 0.5},
        )
    )
    receiver = scene.receiver()
    before = datetime.now(UTC)
    (message,) = received(receiver, 1)
    # The client forgets both with the settlement.
    locked_until, token = message.locked_until_utc, message.lock_token
    receiver.complete_message(message)
    properties = message.application_properties
    return {
        "body": str(message),
        "application": {text_of(key): text_of(value) for key, value in properties.items()},
        "properties": [
            message.message_id,
            message.correlation_id,
            message.subject,
            message.content_type,
            message.reply_to,
            message.to,
        ],
        "ttl": message.time_to_live.total_seconds(),
        "sequence": message.sequence_number,
        "count": message.delivery_count,
        "locked": locked_until > before,
        "token": len(str(token)) == 36,
        "left": left(receiver),
    }


def batch(scene: Scene) -> dict[str, Any]:
    """A batch of messages, taken by a receiver that settles nothing."""
    sender = scene.sender()
    made = sender.create_message_batch()
    for text in ("one", "two", "three"):
        made.add_message(ServiceBusMessage(text))
    sender.send_messages(made)
    receiver = scene.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    return {"bodies": texts(received(receiver, 3)), "left": left(receiver)}


def settle(scene: Scene) -> dict[str, Any]:
    """Completes, abandons and dead-letters, and reads the dead letter."""
    scene.send("first", "second")
    receiver = scene.receiver()
    receiver.complete_message(received(receiver, 1)[0])
    receiver.abandon_message(received(receiver, 1)[0])
    (again,) = received(receiver, 1)
    receiver.dead_letter_message(again, reason="why", error_description="weil es größer ist")
    letters = scene.receiver(sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    (dead,) = received(letters, 1)
    letters.complete_message(dead)
    return {
        "again": [str(again), again.delivery_count],
        "dead": [
            str(dead),
            dead.message_id,
            dead.dead_letter_reason,
            dead.dead_letter_error_description,
            dead.dead_letter_source,
        ],
        # This client changes no properties.
        "changed": [],
        "left": [left(receiver), left(letters)],
    }


def renew(scene: Scene) -> dict[str, Any]:
    """Renews a lock, and one that is no longer there."""
    scene.send("one")
    receiver = scene.receiver()
    (message,) = received(receiver, 1)
    before = message.locked_until_utc
    until = receiver.renew_message_lock(message)
    receiver.complete_message(message)
    # Otherwise the client does not ask the broker.
    message._settled = False
    return {
        "renewed": until >= before and until > datetime.now(UTC),
        "lost": why(lambda: receiver.renew_message_lock(message)),
    }


def lost(scene: Scene) -> dict[str, Any]:
    """Completes a message whose lock has ended: another receiver has it."""
    scene.send("one")
    receiver, other = scene.receiver(), scene.receiver()
    (message,) = received(receiver, 1)
    (again,) = received(other, 1)
    code = why(lambda: receiver.complete_message(message))
    other.complete_message(again)
    return {"again": str(again), "lost": code, "left": left(receiver)}


def peek(scene: Scene) -> dict[str, Any]:
    """Peeks from the start, further, and from a number."""
    scene.send("one", "two", "three")
    receiver = scene.receiver()
    first = texts(receiver.peek_messages(2))
    rest = texts(receiver.peek_messages(2))
    (one,) = receiver.peek_messages(1, sequence_number=2)
    return {"first": first, "rest": rest, "from": [[str(one)], one.sequence_number], "left": left(receiver)}


def schedule(scene: Scene) -> dict[str, Any]:
    """Schedules and cancels; a message that is sent with a time comes at it."""
    sender, receiver = scene.sender(), scene.receiver()
    later = [ServiceBusMessage("one"), ServiceBusMessage("two")]
    numbers = sender.schedule_messages(later, datetime.now(UTC) + HOUR)
    (peeked,) = receiver.peek_messages(1)
    sender.cancel_scheduled_messages(numbers)
    twice = ""
    try:
        sender.cancel_scheduled_messages(numbers)
    except ServiceBusError as error:
        twice = str(error)
    soon = datetime.now(UTC) + timedelta(milliseconds=500)
    sender.send_messages(ServiceBusMessage("soon", scheduled_enqueue_time_utc=soon))
    (came,) = received(receiver, 1)
    return {
        "numbers": numbers,
        "peeked": str(peeked),
        "scheduled": peeked.state == ServiceBusMessageState.SCHEDULED,
        "twice": "not scheduled" in twice,
        "came": str(came),
        "early": datetime.now(UTC) < soon,
    }


def topic(scene: Scene) -> dict[str, Any]:
    """A message for a topic, and the dead letters of a subscription."""
    sender = scene.opened.enter_context(scene.client.get_topic_sender(scene.name))
    sender.send_messages(ServiceBusMessage("for all"))

    def subscribed(**options: Any) -> ServiceBusReceiver:
        made = scene.client.get_subscription_receiver(scene.name, "mine", **options)
        return scene.opened.enter_context(made)

    receiver = subscribed()
    (message,) = received(receiver, 1)
    receiver.dead_letter_message(message)
    (dead,) = received(subscribed(sub_queue=ServiceBusSubQueue.DEAD_LETTER), 1)
    return {"body": str(message), "dead": str(dead)}


def topic_schedule(scene: Scene) -> dict[str, Any]:
    """Schedules in a topic, and cancels; a message that is sent with a time comes at it."""
    sender = scene.opened.enter_context(scene.client.get_topic_sender(scene.name))
    receiver = scene.opened.enter_context(scene.client.get_subscription_receiver(scene.name, "mine"))
    soon = datetime.now(UTC) + timedelta(seconds=1)
    numbers = sender.schedule_messages([ServiceBusMessage(text) for text in ("one", "two")], soon)
    sender.cancel_scheduled_messages(numbers[:1])
    twice = ""
    try:
        sender.cancel_scheduled_messages(numbers[:1])
    except ServiceBusError as error:
        twice = str(error)
    sender.send_messages(ServiceBusMessage("three", scheduled_enqueue_time_utc=soon))
    came = received(receiver, 2)
    return {
        "numbers": numbers,
        "twice": "not scheduled" in twice,
        "came": sorted(map(str, came)),
        "early": datetime.now(UTC) < soon,
    }


def refused(scene: Scene) -> dict[str, Any]:
    """A user who may only receive sends; a key that is none."""

    def sending(connection_string: str) -> str:
        client = scene.client_for(connection_string)
        return why(lambda: scene.sender(client).send_messages(ServiceBusMessage("x")))

    wrong = scene.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    return {"right": sending(scene.other), "key": sending(wrong)}


def websocket(scene: Scene) -> dict[str, Any]:
    """There and back over a WebSocket, over TLS."""
    endpoint = scene.secure.partition(";")[0].partition("=")[2]
    client = scene.client_for(
        scene.secure,
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=endpoint,
        connection_verify=os.environ["SSL_CERT_FILE"],
    )
    scene.sender(client).send_messages(ServiceBusMessage("x"))
    receiver = scene.receiver(client)
    (message,) = received(receiver, 1)
    receiver.complete_message(message)
    return {"body": str(message)}


def deferred(scene: Scene) -> dict[str, Any]:
    """A message that is deferred is received by its number alone, and once."""
    scene.send("one", "two")
    receiver = scene.receiver()
    first, second = received(receiver, 2)
    receiver.defer_message(first)
    receiver.complete_message(second)
    before = left(receiver)
    (back,) = receiver.receive_deferred_messages(first.sequence_number)
    receiver.complete_message(back)
    twice = ""
    try:
        receiver.receive_deferred_messages(first.sequence_number)
    except ServiceBusError as error:
        twice = str(error)
    return {
        "back": str(back),
        "deferred": back.state == ServiceBusMessageState.DEFERRED,
        "twice": "that are deferred" in twice,
        "left": [before, left(receiver)],
    }


def duplicates(scene: Scene) -> dict[str, Any]:
    """Of messages with one id the first is stored."""
    sender = scene.sender()
    for id, text in (("a", "one"), ("a", "two"), ("b", "three")):
        sender.send_messages(ServiceBusMessage(text, message_id=id))
    receiver = scene.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    return {"bodies": texts(received(receiver, 2)), "left": left(receiver)}


def session(scene: Scene) -> dict[str, Any]:
    """Accepts a session by its id, and the next one that is available; sets its state."""
    sender = scene.sender()
    for text in ("a1", "b1", "a2"):
        sender.send_messages(ServiceBusMessage(text, session_id=text[0]))

    def accepted(id: Any) -> ServiceBusReceiver:
        receiver = scene.client.get_queue_receiver(scene.name, session_id=id)
        return scene.opened.enter_context(receiver)

    first = accepted(NEXT_AVAILABLE_SESSION)
    busy = why(lambda: accepted("a"))
    messages = received(first, 2)
    for each in messages:
        first.complete_message(each)
    none = first.session.get_state()
    first.session.set_state("state")
    renewed = first.session.renew_lock() > datetime.now(UTC)
    second = accepted("b")
    return {
        "sessions": [first.session.session_id, second.session.session_id],
        "bodies": texts(messages),
        "busy": busy,
        "state": [len(none or b""), first.session.get_state().decode()],
        "renewed": renewed,
    }


def restart(scene: Scene) -> dict[str, Any]:
    """Sends and receives on the same objects while the broker is killed and started again."""
    client = scene.client_for(
        scene.connection_string, retry_total=20, retry_backoff_factor=0.5, retry_backoff_max=2
    )
    sender, receiver = scene.sender(client), scene.receiver(client)
    found: set[int] = set()

    def receive() -> None:
        for message in receiver.receive_messages(10, max_wait_time=5):
            receiver.complete_message(message)
            found.add(int(str(message)))

    for number in range(10):
        sender.send_messages(ServiceBusMessage(str(number)))
    while len(found) < 5:
        receive()
    show("restart", "half")
    sys.stdin.readline()
    for number in range(10, 20):
        sender.send_messages(ServiceBusMessage(str(number)))
    while len(found) < 20:
        # A message whose completion was lost with the broker comes again.
        why(receive)
    return {"bodies": sorted(found)}


SCENARIOS: dict[str, Callable[[Scene], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        send,
        batch,
        settle,
        renew,
        lost,
        peek,
        schedule,
        topic,
        topic_schedule,
        refused,
        websocket,
        deferred,
        duplicates,
        session,
        restart,
    )
}


def show(scenario: str, found: Any) -> None:
    print(json.dumps({"scenario": scenario, "found": found}), flush=True)


def played(strings: list[str], prefix: str, name: str) -> dict[str, Any]:
    """What a scenario found, or why it failed."""
    if name not in SCENARIOS:
        return {"failed": "there is no scenario of this name"}
    try:
        with ExitStack() as opened:
            return SCENARIOS[name](Scene(strings, prefix + name, opened))
    except Exception:
        return {"failed": traceback.format_exc()}


def main() -> None:
    *strings, prefix = sys.argv[1:5]
    names = sys.argv[5:]
    # At the same time: this client needs a second to close a sender or a receiver.
    with ThreadPoolExecutor(len(names)) as pool:
        for name, found in zip(names, pool.map(partial(played, strings, prefix), names), strict=True):
            show(name, found)


if __name__ == "__main__":
    main()
