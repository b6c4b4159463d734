"""Dynamic nodes and lifetimes, by python-qpid-proton: reply queues, who may use them, and when they go."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Condition, Described, Link, Message, ulong
from proton.reactor import DynamicNodeProperties, LinkOption
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached

from lightrail.amqp.performatives import Attach, End, Source
from lightrail.frontend.links.dynamic import TEMPORARY_NAMES_MAX
from tests.interop.test_proton_security import admin
from tests.support import wait
from tests.support.amqp import frame_peer as frames
from tests.support.amqp.frame_peer import Peer
from tests.support.amqp.proton_blocking import connected, received
from tests.support.broker import Broker
from tests.support.namespace import give, named, permit

DELETE_ON_CLOSE, NO_LINKS, NO_MESSAGES, NO_LINKS_OR_MESSAGES = 0x2B, 0x2C, 0x2D, 0x2E


@pytest.fixture
def connection(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


class Dynamic(LinkOption):
    """A dynamic target, as Qpid JMS asks for its temporary queues."""

    def apply(self, link: Link) -> None:
        link.target.dynamic = True


def lifetime(code: int) -> DynamicNodeProperties:
    return DynamicNodeProperties({"lifetime-policy": Described(ulong(code), [])})


def address(receiver: BlockingReceiver) -> str:
    return str(receiver.link.remote_source.address)


def until_gone(broker: Broker, name: str) -> None:
    wait.until(lambda: name not in named(broker.data), f"{name} is deleted")


def refused(connection: BlockingConnection, name: str | None, **options: Any) -> Condition:
    with pytest.raises(LinkDetached) as found:
        connection.create_receiver(name, **options)
    return found.value.link.remote_condition


def test_request_and_response_over_a_reply_queue(broker: Broker, connection: BlockingConnection) -> None:
    replies = connection.create_receiver(None, dynamic=True)
    name = address(replies)
    assert name.startswith("$temporary/")
    assert replies.link.remote_source.dynamic
    connection.create_sender("service").send(Message(body="question", reply_to=name))
    with connected(broker.amqp) as server:
        (request,) = received(server.create_receiver("service"), 1)
        server.create_sender(request.reply_to).send(Message(body=f"answer to {request.body}"))
    assert received(replies, 1)[0].body == "answer to question"
    assert named(broker.data, "$temporary") == [name]
    replies.close()
    until_gone(broker, name)


def test_a_dynamic_target_is_made_for_receivers_of_the_connection(
    broker: Broker, connection: BlockingConnection
) -> None:
    creator = connection.create_sender(None, options=Dynamic())
    name = creator.link.remote_target.address
    receiver = connection.create_receiver(name)
    with connected(broker.amqp) as other:
        sender = other.create_sender(name)
        sender.send(Message(body="hello"))
        assert received(receiver, 1)[0].body == "hello"
        assert refused(other, name).name == "amqp:unauthorized-access"
        assert refused(other, f"{name}/$dlq").name == "amqp:unauthorized-access"
        # Its closing is answered when the node is deleted, behind what that means for other links.
        with pytest.raises(LinkDetached) as lost:
            creator.close()
        assert lost.value.link == receiver.link
        assert lost.value.link.remote_condition.name == "amqp:resource-deleted"
        with pytest.raises(LinkDetached) as detached:
            other.wait(lambda: False)
        assert detached.value.link == sender.link
        assert detached.value.link.remote_condition.name == "amqp:resource-deleted"
        found = refused(other, name)
        assert found.name == "amqp:not-found"
        assert "does not exist (any more)" in found.description


def test_who_may_do_nothing_else_has_reply_queues(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for user in ("alice", "bob"):
        admin(data, "user", "add", user, "--no-rights", password="secret")
    with Broker(data) as broker:
        permit(data, "alice", "service", "send")
        permit(data, "bob", "service", "listen")
        with (
            connected(f"amqp://alice:secret@{broker.amqp}", allowed_mechs="PLAIN") as alice,
            connected(f"amqp://bob:secret@{broker.amqp}", allowed_mechs="PLAIN") as bob,
        ):
            replies = alice.create_receiver(None, dynamic=True)
            alice.create_sender("service").send(Message(body=1, reply_to=address(replies)))
            (request,) = received(bob.create_receiver("service"), 1)
            bob.create_sender(request.reply_to).send(Message(body=2))
            assert received(replies, 1)[0].body == 2
            assert refused(bob, request.reply_to).name == "amqp:unauthorized-access"


def test_the_lifetime_that_was_asked_for_is_the_one_that_is_answered(connection: BlockingConnection) -> None:
    for code in (DELETE_ON_CLOSE, NO_LINKS, NO_MESSAGES, NO_LINKS_OR_MESSAGES):
        receiver = connection.create_receiver(None, dynamic=True, options=lifetime(code))
        properties = receiver.link.remote_source.properties
        properties.rewind()
        properties.next()
        assert properties.get_object() == {"lifetime-policy": Described(ulong(code), [])}
    assert refused(connection, None, dynamic=True, options=lifetime(0x99)).name == "amqp:invalid-field"


def test_without_links_it_goes(broker: Broker, connection: BlockingConnection) -> None:
    first = connection.create_receiver(None, dynamic=True, options=lifetime(NO_LINKS))
    name = address(first)
    second = connection.create_receiver(name)
    first.close()
    sender = connection.create_sender(name)
    sender.send(Message(body=1))
    assert received(second, 1)[0].body == 1
    second.close()
    sender.send(Message(body=2))
    assert name in named(broker.data)
    sender.close()
    until_gone(broker, name)


@pytest.mark.parametrize("code", [NO_MESSAGES, NO_LINKS_OR_MESSAGES])
def test_without_links_and_messages_it_goes(
    broker: Broker, connection: BlockingConnection, code: int
) -> None:
    first = connection.create_receiver(None, dynamic=True, options=lifetime(code))
    name = address(first)
    sender = connection.create_sender(name)
    sender.send(Message(body="waits"))
    first.close()
    sender.close()
    second = connection.create_receiver(name)
    assert received(second, 1)[0].body == "waits"
    second.close()
    until_gone(broker, name)


@pytest.mark.parametrize("code", [None, DELETE_ON_CLOSE, NO_LINKS])
def test_what_does_not_depend_on_messages_ends_with_its_last_connection(
    broker: Broker, code: int | None
) -> None:
    with connected(broker.amqp) as connection:
        receiver = connection.create_receiver(None, dynamic=True, options=lifetime(code) if code else None)
        name = address(receiver)
        connection.create_sender(name).send(Message(body="never read"))
        assert name in named(broker.data)
    until_gone(broker, name)


def test_nothing_outlives_a_connection_that_is_cut_off(broker: Broker) -> None:
    with Peer(broker.amqp) as peer:
        peer.open()
        peer.begin()
        peer.write(frames.receiver(None, source=Source(dynamic=True)))
        source = peer.expect(Attach).source
        assert isinstance(source, Source)
        name = str(source.address)
        assert name in named(broker.data)
    until_gone(broker, name)


def test_nothing_outlives_its_session(broker: Broker) -> None:
    with Peer(broker.amqp) as peer:
        peer.open()
        peer.begin()
        peer.write(frames.receiver(None, source=Source(dynamic=True)))
        source = peer.expect(Attach).source
        assert isinstance(source, Source)
        peer.write(End())
        peer.expect(End)
        until_gone(broker, str(source.address))


def test_names_of_a_connection_are_limited(connection: BlockingConnection) -> None:
    receivers = [connection.create_receiver(None, dynamic=True) for _ in range(TEMPORARY_NAMES_MAX)]
    assert refused(connection, None, dynamic=True).name == "amqp:resource-limit-exceeded"
    assert len({address(receiver) for receiver in receivers}) == TEMPORARY_NAMES_MAX


def test_what_a_killed_frontend_left_is_deleted_by_its_successor(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--frontends", "1") as broker:
        give(broker.data, "kept", role="queue")
        connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=30)
        name = address(connection.create_receiver(None, dynamic=True))
        assert named(broker.data) == [name, "kept"]
        os.kill(broker.pid("frontend"), signal.SIGKILL)
        until_gone(broker, name)
        assert named(broker.data) == ["kept"]


def test_names_of_a_frontend_that_is_not_started_again_are_deleted(tmp_path: Path) -> None:
    """The broker as a whole ends at once, and comes back."""
    with Broker(tmp_path / "data", "--frontends", "1") as broker:
        connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=30)
        connection.create_receiver(None, dynamic=True)
        broker.kill_everything()
    assert len(named(tmp_path / "data")) == 1
    with Broker(tmp_path / "data", "--frontends", "1") as broker:
        assert named(broker.data) == []


def test_an_orderly_end_leaves_none(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=30)
        connection.create_receiver(None, dynamic=True)
        broker.terminate()
        assert named(broker.data) == []
