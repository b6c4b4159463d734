"""azure-servicebus and sessions: a receiver has all messages of one session to itself."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.amqp import AmqpMessageHeader
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from lightrail.model import limits
from tests.interop.azure_scene import client_for, key_of, received
from tests.interop.test_proton_security import admin
from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.moves import move
from tests.support.namespace import give, subscribe


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("azure") / "data"
    key_of(data, "first")
    admin(data, "user", "add", "watcher", password="secret")
    admin(data, "permission", "set", "watcher", "/", "all")
    with Broker(data, "--service-bus-auto-create", "true") as started:
        yield started


@pytest.fixture
def sessions(guarded: Broker, queue: str) -> str:
    """A queue with sessions."""
    give(guarded.data, queue, role="queue", groups=True)
    return queue


def send(client: ServiceBusClient, queue: str, *texts: str, **attributes: Any) -> None:
    """Sends durable messages: `a1` has the session `a`."""
    messages = [ServiceBusMessage(text, session_id=text[0], **attributes) for text in texts]
    for message in messages:
        message.raw_amqp_message.header = AmqpMessageHeader(durable=True)
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(messages)


def complete(receiver: Any, count: int) -> list[str]:
    """Receives and completes so many messages."""
    messages = received(receiver, count)
    for message in messages:
        receiver.complete_message(message)
    return [str(message) for message in messages]


def ends(receiver: Any) -> datetime:
    """The end of the lock of the receiver's session."""
    until: datetime = receiver.session.locked_until_utc
    return until


def test_a_receiver_of_a_session_gets_its_messages_in_order_and_no_others(
    client: ServiceBusClient, sessions: str
) -> None:
    send(client, sessions, "a1", "b1", "a2", "b2")
    with client.get_queue_receiver(sessions, session_id="b") as receiver:
        assert receiver.session.session_id == "b"
        assert ends(receiver) > datetime.now(UTC) + timedelta(hours=20)
        messages = received(receiver, 2)
        assert [(str(each), each.session_id) for each in messages] == [("b1", "b"), ("b2", "b")]
        receiver.complete_message(messages[0])
        receiver.abandon_message(messages[1])
        assert receiver.receive_messages(max_wait_time=1)[0].delivery_count == 1
        send(client, sessions, "b3")
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        assert complete(receiver, 2) == ["a1", "a2"]
        assert receiver.receive_messages(max_wait_time=1) == []
    with client.get_queue_receiver(sessions, session_id="b") as receiver:
        assert complete(receiver, 2) == ["b2", "b3"]


def test_a_session_has_one_receiver_at_a_time(client: ServiceBusClient, sessions: str) -> None:
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        with (
            pytest.raises(SessionCannotBeLockedError),
            client.get_queue_receiver(sessions, session_id="a"),
        ):
            pass
        with client.get_queue_receiver(sessions, session_id="b") as other:
            send(client, sessions, "a1", "b1")
            assert complete(other, 1) == ["b1"]
            assert complete(receiver, 1) == ["a1"]

    def is_free() -> bool:
        try:
            with client.get_queue_receiver(sessions, session_id="a"):
                return True
        except SessionCannotBeLockedError:
            return False

    wait.until(is_free, "the session is free")


def test_a_queue_without_groups_has_no_sessions(
    client: ServiceBusClient, queue: str, guarded: Broker
) -> None:
    give(guarded.data, queue, role="queue")
    with (
        pytest.raises(ServiceBusError, match="has no sessions"),
        client.get_queue_receiver(queue, session_id="a"),
    ):
        pass


def test_the_next_available_session_is_one_with_messages_and_without_a_receiver(
    client: ServiceBusClient, sessions: str
) -> None:
    send(client, sessions, "a1", "b1")
    options: dict[str, Any] = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 5}
    with (
        client.get_queue_receiver(sessions, **options) as one,
        client.get_queue_receiver(sessions, **options) as two,
    ):
        assert [one.session.session_id, two.session.session_id] == ["a", "b"]
        assert complete(two, 1) == ["b1"]
        with (
            pytest.raises(OperationTimeoutError),
            client.get_queue_receiver(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1),
        ):
            pass
        assert complete(one, 1) == ["a1"]


def test_a_receiver_waits_for_the_next_available_session(
    client: ServiceBusClient, guarded: Broker, key: str, sessions: str
) -> None:
    found: list[str] = []

    def receive() -> None:
        with (
            client_for(guarded, key) as other,
            other.get_queue_receiver(
                sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20
            ) as receiver,
        ):
            found.append(str(receiver.session.session_id))
            found.extend(complete(receiver, 1))

    waiting = threading.Thread(target=receive)
    waiting.start()
    wait.until(lambda: consumers(guarded, sessions) == 1, "the receiver waits")
    assert found == []
    send(client, sessions, "c1")
    waiting.join(timeout=20)
    assert found == ["c", "c1"]


def consumers(broker: Broker, queue: str) -> int:
    with Http(broker.http, "watcher", "secret") as http:
        return int(http("GET", f"/{queue}/!figures").json()["consumers"])


def test_when_the_lock_of_a_session_ends_its_receiver_loses_it(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", groups=True, lock_duration=3)
    send(client, queue, "a1")
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        (message,) = received(receiver, 1)
        assert ends(receiver) < datetime.now(UTC) + timedelta(seconds=4)

        def is_lost() -> bool:
            try:
                receiver.receive_messages(max_wait_time=1)
            except SessionLockLostError:
                return True
            return False

        wait.until(is_lost, "the session is lost")
        with pytest.raises(ServiceBusError):
            receiver.complete_message(message)
    with client.get_queue_receiver(queue, session_id="a") as receiver:
        (again,) = received(receiver, 1)
        assert (str(again), again.delivery_count) == ("a1", 1)
        receiver.complete_message(again)


def test_a_session_whose_lock_is_renewed_is_kept(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", groups=True, lock_duration=2)
    send(client, queue, "a1")
    with (
        AutoLockRenewer() as renewer,
        client.get_queue_receiver(queue, session_id="a") as receiver,
    ):
        until = ends(receiver)
        assert receiver.session.renew_lock() > until
        renewer.register(receiver, receiver.session, max_lock_renewal_duration=60)
        (message,) = received(receiver, 1)
        wait.until(
            lambda: datetime.now(UTC) > until + timedelta(seconds=3), "the first lock would have ended"
        )
        receiver.complete_message(message)
        assert receiver.session.auto_renew_error is None


def test_a_session_may_be_received_and_deleted(client: ServiceBusClient, sessions: str) -> None:
    send(client, sessions, "a1", "a2", "b1")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(sessions, session_id="a", receive_mode=mode) as receiver:
        assert [str(each) for each in received(receiver, 2)] == ["a1", "a2"]
    with client.get_queue_receiver(sessions, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
        assert receiver.session.session_id == "b"


def test_a_receiver_keeps_its_session_when_the_shard_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = key_of(data, "shop")
    with (
        Broker(data, "--service-bus-auto-create", "true") as broker,
        client_for(broker, key) as client,
    ):
        give(data, "q", role="queue", groups=True)
        send(client, "q", "a1", "b1")
        with client.get_queue_receiver("q", session_id="a") as receiver:
            assert complete(receiver, 1) == ["a1"]
            os.kill(broker.pid("shard"), signal.SIGKILL)
            wait_for(lambda: send(client, "q", "a2"))
            assert complete(receiver, 1) == ["a2"]
            with (
                pytest.raises(SessionCannotBeLockedError),
                client.get_queue_receiver("q", session_id="a"),
            ):
                pass


def test_the_state_of_a_session_is_set_replaced_and_removed(client: ServiceBusClient, sessions: str) -> None:
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state("first")
        receiver.session.set_state(b"second")
        assert receiver.session.get_state() == b"second"
        assert receiver.peek_messages() == []
        largest = b"x" * limits.SESSION_STATE_BYTES_MAX
        with pytest.raises(ServiceBusError, match="expected at most"):
            receiver.session.set_state(largest + b"x")
    with client.get_queue_receiver(sessions, session_id="b") as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state(largest)
        assert receiver.session.get_state() == largest
        # The client for Go sends none as an empty one.
        receiver.session.set_state(b"")
        assert receiver.session.get_state() is None
        receiver.session.set_state(b"x")
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        assert receiver.session.get_state() == b"second"
    send(client, sessions, "a1")
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        assert complete(receiver, 1) == ["a1"]


def test_who_lost_a_session_can_not_change_its_state(client: ServiceBusClient, sessions: str) -> None:
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        receiver.session._session_id = "b"
        for request in (
            receiver.session.get_state,
            lambda: receiver.session.set_state(b"x"),
            receiver.session.renew_lock,
        ):
            with pytest.raises(SessionLockLostError):
                request()


def test_states_survive_a_kill_of_their_shard(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = key_of(data, "shop")
    with Broker(data, "--service-bus-auto-create", "true") as broker:
        with client_for(broker, key) as client:
            give(data, "q", role="queue", groups=True)
            send(client, "q", "b1", "c1")
            for session in "abc":
                with client.get_queue_receiver("q", session_id=session) as receiver:
                    receiver.session.set_state("former")
                    receiver.session.set_state(f"state of {session}")
                    if session == "c":
                        receiver.session.set_state(None)
        os.kill(broker.pid("shard"), signal.SIGKILL)
        with client_for(broker, key) as client:
            found: list[Any] = []

            def read() -> None:
                found.clear()
                for session in "abc":
                    with client.get_queue_receiver("q", session_id=session) as receiver:
                        found.append(receiver.session.get_state())

            wait_for(read)
            assert found == [b"state of a", b"state of b", None]
            assert list(client.list_queue_sessions("q")) == ["b", "c", "a"]


def test_a_session_and_its_state_move_with_their_queue(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = key_of(data, "shop")
    with (
        Broker(data, "--service-bus-auto-create", "true", "--shards", "2") as broker,
        client_for(broker, key) as client,
    ):
        give(data, "q", role="queue", groups=True, lock_duration=60)
        send(client, "q", "a1", "a2", "b1")
        with client.get_queue_receiver("q", session_id="a") as receiver:
            receiver.session.set_state("state")
            (first,) = received(receiver, 1)
            for _ in range(2):
                move(data, "q")
                assert receiver.session.get_state() == b"state"
                assert receiver.session.renew_lock() > datetime.now(UTC) + timedelta(seconds=50)
                with (
                    pytest.raises(SessionCannotBeLockedError),
                    client.get_queue_receiver("q", session_id="a"),
                ):
                    pass
            receiver.complete_message(first)
            assert complete(receiver, 1) == ["a2"]
            assert receiver.peek_messages(5) == []
        assert list(client.list_queue_sessions("q")) == ["b", "a"]


def test_sessions_are_listed(client: ServiceBusClient, sessions: str) -> None:
    assert list(client.list_queue_sessions(sessions)) == []
    names = [f"s{number}" for number in range(120)]
    with client.get_queue_sender(sessions) as sender:
        sender.send_messages([ServiceBusMessage("x", session_id=name) for name in names])
    before = datetime.now(UTC) - timedelta(seconds=5)
    with client.get_queue_receiver(sessions, session_id="state") as receiver:
        receiver.session.set_state(b"x")
    assert list(client.list_queue_sessions(sessions)) == [*names, "state"]
    assert list(client.list_queue_sessions(sessions, state_updated_after=before)) == ["state"]
    after = datetime.now(UTC) + timedelta(seconds=60)
    assert list(client.list_queue_sessions(sessions, state_updated_after=after)) == []


def test_peeking_and_deferred_messages_are_those_of_the_session(
    client: ServiceBusClient, sessions: str
) -> None:
    send(client, sessions, "a1", "b1", "a2")
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        assert [str(each) for each in receiver.peek_messages(5)] == ["a1", "a2"]
        (message,) = received(receiver, 1)
        receiver.defer_message(message)
        assert complete(receiver, 1) == ["a2"]
    with (
        client.get_queue_receiver(sessions, session_id="b") as receiver,
        pytest.raises(MessageNotFoundError),
    ):
        receiver.receive_deferred_messages(message.sequence_number)
    with client.get_queue_receiver(sessions, session_id="a") as receiver:
        (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
        assert (str(deferred), deferred.session_id) == ("a1", "a")
        receiver.complete_message(deferred)
        assert receiver.peek_messages(5) == []


def test_a_message_of_a_session_is_scheduled(client: ServiceBusClient, guarded: Broker, queue: str) -> None:
    give(guarded.data, queue, role="queue", groups=True, delay=True)
    due = datetime.now(UTC) + timedelta(seconds=2)
    with client.get_queue_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("later", session_id="a"), due)
    with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20) as receiver:
        assert receiver.session.session_id == "a"
        assert datetime.now(UTC) >= due
        assert complete(receiver, 1) == ["later"]


def test_a_subscription_has_sessions(client: ServiceBusClient, guarded: Broker, sessions: str) -> None:
    topic = f"{sessions}-topic"
    give(guarded.data, topic, role="router")
    subscribe(guarded.data, topic, sessions, id="mine")
    with client.get_topic_sender(topic) as sender:
        sender.send_messages([ServiceBusMessage(text, session_id=text[0]) for text in ("a1", "b1", "a2")])
    with client.get_subscription_receiver(topic, "mine", session_id="a") as receiver:
        assert complete(receiver, 2) == ["a1", "a2"]
        receiver.session.set_state("state")
    assert list(client.list_subscription_sessions(topic, "mine")) == ["b", "a"]


def test_receivers_without_a_session_share_the_other_groups(
    client: ServiceBusClient, guarded: Broker, sessions: str
) -> None:
    send(client, sessions, "a1", "b1")
    # Azure's clients can't send a message without a session there, nor receive one; others can.
    with (
        Http(guarded.http, "watcher", "secret") as http,
        client.get_queue_receiver(sessions, session_id="a") as receiver,
    ):
        assert http("POST", f"/{sessions}", "without").status == 201
        found = [http("DELETE", f"/{sessions}/!head?timeout=20").body for _ in range(2)]
        assert sorted(found) == [b"b1", b"without"]
        assert complete(receiver, 1) == ["a1"]


def test_receivers_with_and_without_a_session_are_for_queues_with_and_without(
    client: ServiceBusClient, guarded: Broker, sessions: str
) -> None:
    give(guarded.data, plain := f"{sessions}/plain", role="queue")
    with (
        pytest.raises(ServiceBusError, match="requires sessions to create a non-sessionful"),
        client.get_queue_receiver(sessions) as receiver,
    ):
        receiver.receive_messages(max_wait_time=1)
    for wanted in ("a", NEXT_AVAILABLE_SESSION):
        with (
            pytest.raises(ServiceBusError, match="has no sessions"),
            client.get_queue_receiver(plain, session_id=wanted) as receiver,
        ):
            receiver.receive_messages(max_wait_time=1)


def wait_for(work: Callable[[], None]) -> None:
    """Repeats what fails while the shard is not there."""

    def is_done() -> bool:
        try:
            work()
        except ServiceBusError:
            return False
        return True

    wait.until(is_done, "the shard serves again")
