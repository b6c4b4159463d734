"""TOPIC/Subscriptions/NAME: what a path of Azure Service Bus stands for here."""

import asyncio

import pytest

from lightrail.frontend.errors import ConditionError
from lightrail.model.names import InvalidNameError, queue_name
from lightrail.namespace.deleting import is_subscription_queue, own_queue
from lightrail.namespace.directory import Directory
from lightrail.service_bus.paths import entity_name, subscription_at
from tests.support.routers import Graph


async def made(*queues: str, routers: tuple[str, ...] = (), **ids: str) -> Directory:
    """A namespace with these names, and subscriptions of the first router: id=target."""
    graph = Graph()
    await graph.coordinator.set_shards(1)
    await graph.queue(*queues)
    for router in routers:
        await graph.router(router)
    for id, target in ids.items():
        await graph.subscribe(routers[0], target, id=id)
    graph.directory.refresh()
    return graph.directory


@pytest.mark.parametrize("spelled", ["Subscriptions", "subscriptions", "SUBSCRIPTIONS"])
def test_a_path_is_the_queue_of_its_subscription(spelled: str) -> None:
    directory = asyncio.run(made("elsewhere", routers=("a/topic",), billing="elsewhere"))
    assert entity_name(directory, f"a/topic/{spelled}/billing") == "elsewhere"
    assert entity_name(directory, f"a/topic/{spelled}/billing/$dlq") == "elsewhere/$dlq"


def test_a_topic_has_no_other_subscriptions() -> None:
    directory = asyncio.run(made(routers=("topic",), pushed="http://127.0.0.1:1/"))
    with pytest.raises(ConditionError, match="no such subscription: 'none'"):
        entity_name(directory, "topic/Subscriptions/none")
    with pytest.raises(ConditionError, match="pushes to a URL"):
        entity_name(directory, "topic/Subscriptions/pushed")


@pytest.mark.parametrize(
    "name", ["q", "q/$dlq", "q/subscriptions", "q/subscriptions/x", "subscriptions/x", "q/x/y"]
)
def test_other_names_stay(name: str) -> None:
    assert entity_name(asyncio.run(made("q")), name) == name


def test_a_name_with_a_role_is_no_path() -> None:
    directory = asyncio.run(made("topic/subscriptions/mine", routers=("topic",)))
    assert entity_name(directory, "topic/subscriptions/mine") == "topic/subscriptions/mine"


@pytest.mark.parametrize("spelled", ["$DeadLetterQueue", "$deadletterqueue", "$dlq"])
def test_dead_letters_have_two_names_in_addresses(spelled: str) -> None:
    assert queue_name(f"amqp://host/a/q/{spelled}") == "a/q/$dlq"
    with pytest.raises(InvalidNameError):
        queue_name(f"/{spelled}")


def test_a_path_leads_to_its_subscription() -> None:
    directory = asyncio.run(made("q", routers=("a/topic",), billing="q", pushed="http://127.0.0.1:1/"))
    for spelled in ("Subscriptions", "subscriptions"):
        found = subscription_at(directory, f"a/topic/{spelled}/billing")
        assert found is not None
        assert found.id == "billing"
    for other in ("a/topic", "a/topic/Subscriptions/pushed", "a/topic/Subscriptions/none", "x/y", "q"):
        assert subscription_at(directory, other) is None


def test_a_subscription_may_have_a_queue_for_itself() -> None:
    own = own_queue("a/topic", "billing")
    directory = asyncio.run(made(own, "q", routers=("a/topic",), billing=own, audit="q"))
    assert entity_name(directory, "a/topic/subscriptions/billing") == own
    assert is_subscription_queue(directory, own)
    for other in ("q", "a/topic", own_queue("a/topic", "audit"), own_queue("b", "billing")):
        assert not is_subscription_queue(directory, other)
