"""Azure's client over take-overs: what it was answered stays, and locks and sessions end uncounted."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpMessageHeader
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    ServiceBusError,
    SessionLockLostError,
)

from tests.cluster.replicated import DEADLINE_S, Members
from tests.cluster.test_rebalance import admin
from tests.interop.azure_scene import received
from tests.support import wait
from tests.support.deploy.cluster import Cluster

pytestmark = pytest.mark.timeout(240)

Value = TypeVar("Value")
QUEUES = {
    "orders": ("lock_duration=300", "max_delivery_count=2"),
    "steps": ("lock_duration=300", "groups=true"),
    "once": ("lock_duration=300", "duplicate_window=600"),
    "timed": ("lock_duration=300", "delay=true"),
    "deleted": (),
}
SOON_S, LATE_S = 1.0, 8.0
"""When scheduled messages are due: during the take-over, and behind it."""
NEVER = timedelta(hours=1)
WAIT_S = 20.0
"""Of one call: a take-over may be in the middle of it."""


class Scene:
    """A shard with replicas whose queues Azure's client uses."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory)
        self.members = Members(self.cluster)
        self.frontend = self.cluster.frontend()
        self._gateway = self.cluster.gateway()
        self._stack = ExitStack()
        self._key = ""

    def __enter__(self) -> "Scene":
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            stack.callback(self.members.close)
            self.members.start()
            self.cluster.start(self.frontend, self._gateway)
            for queue, fields in QUEUES.items():
                done = admin(self._gateway, "names", "set", queue, "role=queue", *fields)
                assert done.returncode == 0, done.stderr
            made = self.cluster.admin("key", "make", "shop")
            assert made.returncode == 0, made.stderr
            self._key = made.stdout.strip().partition("\t")[2]
            self.members.until_in_sync()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self) -> ServiceBusClient:
        string = f"Endpoint=sb://{self.frontend.served};{self._key};UseDevelopmentEmulator=true"
        return ServiceBusClient.from_connection_string(string, retry_total=0)

    def take_over(self, way: str) -> None:
        """The owner ends, another member takes over, and the former owner follows again."""
        former = self.members.owner()
        if way == "kill":
            self.members.kill(former)
        else:
            self.members.terminate(former)
        self.members.until_taken_over(former)
        self.members.revive(former)


def messages(*texts: str, **fields: Any) -> list[ServiceBusMessage]:
    made = [ServiceBusMessage(text, message_id=text, **fields) for text in texts]
    for message in made:
        message.raw_amqp_message.header = AmqpMessageHeader(durable=True)
    return made


def patiently(ask: Callable[[], Value]) -> Value:
    """The answer to a request that is asked again until the shard serves."""
    answers: list[Value] = []

    def asked() -> bool:
        try:
            answers.append(ask())
        except ServiceBusError as error:
            print("not yet:", type(error).__name__, str(error)[:150])
            return False
        return True

    wait.until(asked, "the shard serves", DEADLINE_S)
    return answers[0]


def texts(found: list[Any]) -> list[str]:
    return [str(each) for each in found]


def is_lost(settle: Callable[[Any], None], message: Any) -> bool:
    """Whether an outcome for a delivery of the former owner is answered with a lost lock."""
    try:
        settle(message)
    except (MessageLockLostError, SessionLockLostError):
        return True
    return False


@contextmanager
def settled_and_locked(client: ServiceBusClient, round: int) -> Iterator[None]:
    """What was settled does not come again; what was locked does, and has not failed."""
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(messages(*(f"{round}-{each}" for each in ("done", "later", "dead", "locked"))))
    with client.get_queue_receiver("orders") as receiver:
        found = {str(each): each for each in received(receiver, 4, WAIT_S)}
        receiver.complete_message(found[f"{round}-done"])
        receiver.defer_message(found[f"{round}-later"])
        receiver.dead_letter_message(found[f"{round}-dead"], reason="unreadable")
        yield
        with client.get_queue_receiver("orders") as another:
            again = received(another, 2 if round else 1, WAIT_S)
            assert sorted(texts(again)) == sorted({f"{round}-locked", "0-locked"})
            # Marked once, and never counted: the second failure would make it a dead letter.
            assert [each.delivery_count for each in again] == [1] * len(again)
            assert is_lost(receiver.complete_message, found[f"{round}-locked"])
            deferred = another.receive_deferred_messages([found[f"{round}-later"].sequence_number])
            assert texts(deferred) == [f"{round}-later"]
            for each in (*again, *deferred):
                if str(each) != "0-locked":
                    another.complete_message(each)
            # The end of the link keeps the lock: only the next take-over ends it.
            (kept,) = (each for each in again if str(each) == "0-locked")
            assert kept.sequence_number == 4
    with client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = received(receiver, 1, WAIT_S)
        assert (str(dead), dead.dead_letter_reason) == (f"{round}-dead", "unreadable")
        receiver.complete_message(dead)


@contextmanager
def in_a_session(client: ServiceBusClient, round: int) -> Iterator[None]:
    """Its state stays, its receiver gets its messages again in their order, and gives it to the next one."""
    with client.get_queue_sender("steps") as sender:
        for step in range(5):
            sender.send_messages(messages(f"{round}-{step}", session_id="s"))
    with client.get_queue_receiver("steps", session_id="s") as receiver:
        first, *rest = received(receiver, 3, WAIT_S)
        receiver.session.set_state(f"state {round}")
        receiver.complete_message(first)
        yield
        again = received(receiver, 4, WAIT_S)
        assert texts(again) == [f"{round}-{step}" for step in range(1, 5)]
        # A new owner does not know which of them were delivered: all are marked, and none has failed.
        assert {each.delivery_count for each in again} == {1}
        assert receiver.session.get_state() == f"state {round}".encode()
        receiver.complete_message(again[0])
        assert all(is_lost(receiver.complete_message, each) for each in rest)
    with client.get_queue_receiver("steps", session_id="s") as receiver:
        last = received(receiver, 3, WAIT_S)
        assert texts(last) == texts(again[1:])
        for each in last:
            receiver.complete_message(each)
        assert receiver.receive_messages(max_wait_time=0.1) == []


@contextmanager
def sent_again(client: ServiceBusClient, round: int) -> Iterator[None]:
    """A duplicate inside of the window is dropped by another owner, also when the first was received."""
    some = [f"{round}-{each}" for each in ("received", "waits")]
    with client.get_queue_sender("once") as sender:
        sender.send_messages(messages(*some))
    with client.get_queue_receiver("once") as receiver:
        (first,) = received(receiver, 1, WAIT_S)
        receiver.complete_message(first)
    yield
    with client.get_queue_sender("once") as sender:
        sender.send_messages(messages(*some, f"{round}-new"))
        sender.send_messages(messages("0-received"))
    with client.get_queue_receiver("once") as receiver:
        found = received(receiver, 2, WAIT_S)
        assert texts(found) == [f"{round}-waits", f"{round}-new"]
        for each in found:
            receiver.complete_message(each)
        assert receiver.receive_messages(max_wait_time=0.1) == []


@contextmanager
def scheduled(client: ServiceBusClient, round: int) -> Iterator[None]:
    """Once, not early, and not at all when they were cancelled, before or after the take-over."""
    began = datetime.now(UTC)
    due = {"soon": began + timedelta(seconds=SOON_S), "late": began + timedelta(seconds=LATE_S)}
    with client.get_queue_sender("timed") as sender:
        for name, when in due.items():
            sender.schedule_messages(messages(name), when)
        one, two = (sender.schedule_messages(messages("never"), began + NEVER)[0] for _ in range(2))
        sender.cancel_scheduled_messages(one)
    yield
    with client.get_queue_sender("timed") as sender:
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(one)
        sender.cancel_scheduled_messages(two)
    with client.get_queue_receiver("timed") as receiver:
        for name, when in due.items():
            (found,) = received(receiver, 1, WAIT_S)
            assert str(found) == name
            assert datetime.now(UTC) >= when
            receiver.complete_message(found)
        assert receiver.peek_messages() == []


@contextmanager
def received_and_deleted(client: ServiceBusClient, round: int) -> Iterator[None]:
    """Once at most."""
    some = [f"{round}-{number}" for number in range(20)]
    with client.get_queue_sender("deleted") as sender:
        sender.send_messages(messages(*some))
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver("deleted", receive_mode=mode) as receiver:
        assert texts(received(receiver, 10, WAIT_S)) == some[:10]
        yield
    with client.get_queue_receiver("deleted", receive_mode=mode) as receiver:
        assert texts(received(receiver, 10, WAIT_S)) == some[10:]
        assert receiver.receive_messages(max_wait_time=0.1) == []


def over_take_overs(directory: Path, *ways: str) -> None:
    with Scene(directory) as scene, scene.client() as client:
        for round, way in enumerate(ways):
            print(datetime.now(UTC), round, way)
            scene.members.until_replaceable()
            with ExitStack() as stack:
                for each in (scheduled, received_and_deleted, sent_again, in_a_session, settled_and_locked):
                    stack.enter_context(each(client, round))
                scene.take_over(way)
                patiently(lambda: client.get_queue_receiver("orders").peek_messages())
        for node in scene.members.nodes:
            said = node.log.read_text(errors="replace")
            assert "Traceback" not in said, f"{node.name}: a traceback:\n{said[-4000:]}"


def test_what_azures_client_was_answered_stays_over_a_take_over(tmp_path: Path) -> None:
    over_take_overs(tmp_path, "kill")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_what_azures_client_was_answered_stays_over_six_take_overs(tmp_path: Path) -> None:
    over_take_overs(tmp_path, *("kill", "terminate") * 3)
