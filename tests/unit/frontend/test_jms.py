"""Queues and topics as JMS clients say them: in capabilities, and in an annotation of a message."""

from typing import Any

import pytest

from lightrail.amqp.link import ATTACHED, DETACHED
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import Byte, Described, Symbol
from lightrail.frontend.links.terminus import left_out, node_of, node_of_message
from lightrail.model.policy import Policy, Role
from lightrail.namespace.rights import ANYBODY
from tests.support.amqp.frontend_scene import Scene, play

EMPTY = b"\x00S\x77\x40"
"""A message whose body is null."""


@pytest.mark.parametrize(
    ("capabilities", "role"),
    [
        (None, None),
        ([], None),
        ([Symbol("queue")], Role.QUEUE),
        ([Symbol("temporary-queue")], Role.QUEUE),
        ([Symbol("topic"), Symbol("shared"), Symbol("global")], Role.ROUTER),
        (Symbol("temporary-topic"), Role.ROUTER),
        ([Symbol("queue"), Symbol("topic")], None),
        ([Symbol("else")], None),
    ],
)
def test_capabilities_say_what_a_node_is(capabilities: Any, role: Role | None) -> None:
    assert node_of(Source(capabilities=capabilities)) is role
    assert node_of(Target(capabilities=capabilities)) is role


@pytest.mark.parametrize(
    ("value", "role"),
    [
        (Byte(0), Role.QUEUE),
        (Byte(1), Role.ROUTER),
        (Byte(2), Role.QUEUE),
        (Byte(3), Role.ROUTER),
        (Byte(4), None),
        ("topic", None),
    ],
)
def test_an_annotation_says_where_a_message_goes(value: Any, role: Role | None) -> None:
    assert node_of_message(with_annotations(EMPTY, {Symbol("x-opt-jms-dest"): value}), "q") is role


def test_a_message_without_the_annotation_says_nothing() -> None:
    assert node_of_message(EMPTY, "q") is None
    assert node_of_message(b"\xff", "q") is None


@pytest.mark.parametrize(("address", "role"), [("queue://q", Role.QUEUE), ("topic://q", Role.ROUTER)])
def test_an_address_of_active_mq_says_what_a_node_is(address: str, role: Role) -> None:
    assert node_of(Source(address=address)) is node_of(Target(address=address)) is role
    assert node_of(Target(address=address, capabilities=[Symbol("temporary-topic")])) is Role.ROUTER
    assert node_of_message(EMPTY, address) is role
    assert (
        node_of_message(with_annotations(EMPTY, {Symbol("x-opt-jms-dest"): Byte(1)}), address) is Role.ROUTER
    )


def role_of(scene: Scene, name: str) -> Role:
    scene.frontend.directory.refresh()
    return scene.frontend.directory.get(name).role


def test_a_name_that_is_first_used_as_a_topic_becomes_a_router_for_both_ends() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        topic = [Symbol("topic")]
        session.attach("s", True, source=Source(), target=Target(address="sent", capabilities=topic))
        session.attach("r", False, source=Source(address="received", capabilities=topic), target=Target())
        session.attach("q", False, source=Source(address="plain"), target=Target())
        session.attach("a", False, source=Source(address="topic://with-its-role"), target=Target())
        await client.turn()
        assert role_of(scene, "sent") is role_of(scene, "received") is Role.ROUTER
        assert role_of(scene, "with-its-role") is Role.ROUTER
        assert role_of(scene, "plain") is Role.QUEUE
        assert len(scene.frontend.directory.subscriptions("received")) == 1

    play(test)


def test_where_nothing_is_made_by_being_used_a_topic_is_not_either() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        target = Target(address="t", capabilities=[Symbol("topic")])
        link = session.attach("s", True, source=Source(), target=target)
        await client.turn()
        assert link.state == DETACHED
        assert b"amqp:not-found" in client.heard
        assert role_of(scene, "t") is Role.NONE

    play(test, auto_create=False)


@pytest.mark.parametrize(
    ("role", "capability", "said"),
    [
        ("queue", "topic", b"n is a queue, and a topic was asked for (capability topic): use it as"),
        ("router", "queue", b"n is a router, and a queue was asked for (capability queue): use it as"),
        ("queue", "queue", b""),
        ("router", "topic", b""),
        ("router", "else", b""),
        ("connection-point", "queue", b""),
    ],
)
def test_what_is_attached_to_as_something_else_is_refused(role: str, capability: str, said: bytes) -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "n", Policy.parse({"role": role}))
        client = scene.client()
        session = await client.open()
        asked = [Symbol(capability)]
        links = [
            session.attach("s", True, source=Source(), target=Target(address="n", capabilities=asked)),
            session.attach("r", False, source=Source(address="n", capabilities=asked), target=Target()),
        ]
        await client.turn()
        scene.shard.ready()
        await client.turn()
        assert [link.state for link in links] == [DETACHED if said else ATTACHED] * 2
        assert client.heard.count(b"amqp:not-allowed") == (2 if said else 0)
        assert said in client.heard

    play(test)


def test_a_message_without_a_target_makes_what_its_annotation_says() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        link = session.attach("s", True, source=Source(), target=Target())
        await client.turn()
        for address, value in (("t", 1), ("q", 0)):
            properties = b"\x00S\x73\xc0\x06\x03\x40\x40\xa1\x01" + address.encode()
            message = properties + EMPTY
            link.send_one(with_annotations(message, {Symbol("x-opt-jms-dest"): Byte(value)}))
        await client.turn()
        assert role_of(scene, "t") is Role.ROUTER
        assert role_of(scene, "q") is Role.QUEUE

    play(test)


@pytest.mark.parametrize("descriptor", [Symbol("apache.org:no-local-filter:list"), 0x0000468C00000003])
def test_a_filter_for_messages_of_others_is_refused_where_it_would_not_hold(descriptor: Any) -> None:
    async def test(scene: Scene) -> None:
        one = {"role": "router", "distribution": "one"}
        await scene.frontend.service.give(ANYBODY, "one", Policy.parse(one))
        await scene.frontend.service.give(ANYBODY, "t", Policy.parse({"role": "router"}))
        client = scene.client()
        session = await client.open()
        shared = [Symbol("shared")]
        for name, capabilities, said in (
            ("q", None, b"is for receivers at routers"),
            ("one", None, b"would lose some"),
            ("t", shared, b"has several clients"),
        ):
            source = Source(address=name, filter={Symbol("no-local"): Described(descriptor, [])})
            source.capabilities = capabilities
            link = session.attach(f"r-{name}", False, source=source, target=Target())
            await client.turn()
            assert link.state == DETACHED
            assert said in client.heard

    play(test)


@pytest.mark.parametrize("descriptor", [Symbol("apache.org:no-local-filter:list"), 0x0000468C00000003])
def test_a_subscription_with_the_filter_names_the_container_and_the_answer_has_it(descriptor: Any) -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "t", Policy.parse({"role": "router"}))
        client = scene.client()
        session = await client.open()
        source = Source(address="t", filter={Symbol("no-local"): Described(descriptor, [])})
        link = session.attach("r", False, source=source, target=Target())
        await client.turn()
        scene.shard.ready()
        await client.turn()
        (found,) = scene.frontend.directory.subscriptions("t")
        assert (found.no_local, found.filter) == ("client", None)
        assert link.source.filter == {Symbol("no-local"): Described(descriptor, [])}
        plain = await client.receiver(session, "all", queue="t")
        scene.shard.ready()
        await client.turn()
        assert plain.state == ATTACHED
        plan = scene.frontend.routers.routing.plan("t", scene.frontend.now_ms())
        assert plan is not None
        for container, count in (("client", 1), ("another", 2)):
            (group,) = left_out(plan.route([EMPTY]), plan, container).groups
            assert len(group.queues) == count
            assert (found.target in group.queues) == (container == "another")

    play(test)
