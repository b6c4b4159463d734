"""What a name takes and keeps: sizes, durability, the archive; and where metadata points."""

import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.policies.driver import Names, detached, outcome, refused, send
from tests.policies.laws import checks


@checks("max_message_bytes")
def test_a_larger_message_is_refused_and_the_link_says_how_large(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(max_message_bytes=1000)
    sender = amqp.create_sender(queue)
    assert sender.link.remote_max_message_size == 1000
    assert outcome(amqp, sender, Message(body="x" * 900)) == "accepted"
    sender.link.send(Message(body="x" * 1100))
    assert detached(amqp).name == "amqp:link:message-size-exceeded"
    assert names.post(queue, "x" * 900).status == 201
    assert names.post(queue, "x" * 1100).status == 413
    assert len(names.peek(queue)) == 2


@checks("max_message_bytes")
def test_a_router_has_a_largest_message_as_well(names: Names) -> None:
    router, queue = names.router(max_message_bytes=1000), names.queue()
    names.subscribe(router, queue)
    assert names.post(router, "x" * 1100).status == 413
    assert names.post(router, "x" * 100).status == 201
    assert len(names.rest(queue)) == 1


@checks("durable")
@pytest.mark.parametrize(
    ("durable", "kept"), [("default", [True, False]), ("always", [True, True]), ("never", [False, False])]
)
def test_the_policy_stands_above_what_messages_say(
    names: Names, amqp: BlockingConnection, durable: str, kept: list[bool]
) -> None:
    """Whether they are on disk shows after a kill -9: see stories_of_queues.py."""
    queue = names.queue(durable=durable)
    send(amqp, queue, Message(body="asks for it", durable=True), Message(body="does not"))
    assert [each["durable"] for each in names.peek(queue)] == kept


@checks("capture")
def test_what_is_to_be_archived_is_kept_in_the_policy_and_shown(names: Names) -> None:
    name = names.queue(capture=True)
    assert names.policy(name) == {"capture": True}
    assert names.http("GET", f"/{name}/!policy?effective=true").json()["capture"] is True
    assert names.http("GET", f"/{name}/!figures").json()["captured"] is True


@checks("reference")
def test_metadata_sends_http_and_amqp_clients_where_the_thing_is(
    names: Names, amqp: BlockingConnection
) -> None:
    there = "amqps://other.example:5700/orders"
    name = names.give("moved", "metadata", reference=there)
    for answer in (names.http("GET", f"/{name}"), names.post(name)):
        assert (answer.status, answer.headers["location"]) == (303, there)
    for sender in (True, False):
        condition = refused(amqp, name, sender=sender)
        assert condition.name == "amqp:link:redirect"
        assert condition.info["address"] == there
        assert (condition.info["network-host"], condition.info["port"]) == ("other.example", 5700)
