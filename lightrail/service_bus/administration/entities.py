"""Queues and topics of the administration clients: queues and routers."""

from typing import Final
from xml.etree import ElementTree as Xml

from aiohttp import web

from lightrail.gateway.bodies import rfc3339
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.rights import demand_name
from lightrail.model import names as rules
from lightrail.model.policy import Policy, Role
from lightrail.namespace.deleting import is_subscription_queue, own_queues
from lightrail.namespace.listing import every_name
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import ForbiddenError
from lightrail.namespace.statuses import TakenError
from lightrail.service_bus.administration import authorization, entries
from lightrail.service_bus.administration.call import COUNTS, Call, Figures
from lightrail.service_bus.administration.entries import Entry
from lightrail.service_bus.administration.kept import with_bounds
from lightrail.service_bus.administration.properties import (
    NEW_QUEUE,
    NEW_TOPIC,
    changed,
    queue_properties,
    shown,
    topic_properties,
)

QUEUE: Final = "QueueDescription"
TOPIC: Final = "TopicDescription"
_ROLES: Final = {QUEUE: Role.QUEUE, TOPIC: Role.ROUTER}


async def read(call: Call) -> web.Response:
    """GET /NAME."""
    record = call.entity()
    return await _answer(call, record)


async def put(call: Call) -> web.Response:
    """PUT /NAME: creates a queue or a topic; with If-Match changes it."""
    name = call.place.name
    # The right comes first: a stranger's body is not parsed.
    demand_name(call.directory, call.caller, name, Right.MANAGE)
    kind, wanted = entries.description_in(await call.request.body(), (QUEUE, TOPIC))
    role = _ROLES[kind]
    call.directory.refresh()
    record = call.directory.get(name)
    if record.role is not Role.NONE or call.directory.find(name) is not None:
        record = call.entity()
    is_there = record.role is not Role.NONE
    if not call.demand_present(is_there, name):
        _demand_ordinary(name)
        rules = call.rules_in(wanted, ()) or ()
        policy = NEW_QUEUE if role is Role.QUEUE else NEW_TOPIC
        present = (queue_properties if role is Role.QUEUE else topic_properties)(policy, call.server)
        policy = call.forwarding(changed(policy, wanted, present))
        made = await call.give(name, policy, rules)
        await _keep_first_spelling(call, made)
        return await _answer(call, made, status=201)
    if record.role is not role:
        raise ProblemError(409, f"{name} is a {_word(record)}, and no {kind} can change it")
    changed_rules = call.rules_in(wanted, record.authorization_rules)
    present = (queue_properties if role is Role.QUEUE else topic_properties)(record.policy, call.server)
    policy = call.forwarding(changed(record.policy, wanted, present), record.policy)
    before, record = record.policy, await call.change(record, policy, changed_rules)
    if role is Role.ROUTER:
        await _bound_subscriptions(call, record, before)
    return await _answer(call, record)


async def _bound_subscriptions(call: Call, topic: Name, before: Policy) -> None:
    """Gives the bounds of a topic to the own queues of its subscriptions.

    When this is interrupted, some have the former ones: the same request, repeated, goes on.
    """
    for queue in list(own_queues(call.directory, topic.name)):
        policy = with_bounds(queue.policy, topic.policy, before)
        if policy != queue.policy:
            caller = call.caller.at(queue.name)
            await call.services.namespace.change(caller, queue.name, policy, queue.revision)


async def _keep_first_spelling(call: Call, made: Name) -> None:
    """Deletes a new name again if one that differs in case was created at the same time, and before.

    Raises TakenError.
    """
    others = (call.directory.get(each) for each in call.directory.spelled(made.name) if each != made.name)
    first = next((each for each in others if each.created < made.created), None)
    if first is not None:
        await call.services.namespace.drop(call.caller, made.name, made.revision)
        raise TakenError(f"{first.name} exists already, which is {made.name} without regard to case")


async def delete(call: Call) -> web.Response:
    """DELETE /NAME: also deletes the subscriptions of a topic."""
    record = call.entity()
    await call.services.namespace.drop(call.caller, record.name, call.request.revision())
    return web.Response(status=200)


async def queues(call: Call) -> web.Response:
    """GET /$Resources/queues: the queues that the caller manages, without those of subscriptions."""
    found, following = call.page(await _listed(call, Role.QUEUE))
    figures = await _figures(call, found)
    return call.feed([_entry(call, each, figures) for each in found], following)


async def topics(call: Call) -> web.Response:
    """GET /$Resources/topics."""
    found, following = call.page(await _listed(call, Role.ROUTER))
    figures = await _figures(call, found)
    return call.feed([_entry(call, each, figures) for each in found], following)


async def namespace(call: Call) -> web.Response:
    """GET /$namespaceinfo: for callers who manage any name."""
    directory = call.directory
    if not call.caller.everything and not any(
        Right.MANAGE in each.rights for each in directory.permissions(call.caller.user)
    ):
        raise ForbiddenError(f"user {call.caller.user} manages no name")
    host = call.request.http.host
    first_ms = min((each.created_at_ms for each in directory.below("") if each.created_at_ms), default=0)
    properties: dict[str, str | Xml.Element] = {
        "CreatedTime": rfc3339(first_ms),
        "MessagingSKU": "Standard",
        "ModifiedTime": rfc3339(first_ms),
        "Name": host,
        "NamespaceType": "Messaging",
    }
    description = entries.described("NamespaceInfo", properties)
    return call.shown(Entry(call.url("$namespaceinfo"), host, first_ms, first_ms, description))


async def _answer(call: Call, record: Name, status: int = 200) -> web.Response:
    figures = await _figures(call, [record])
    return call.shown(_entry(call, record, figures), status, record.revision)


async def _figures(call: Call, records: list[Name]) -> Figures:
    """Figures of queues, and of those in which the scheduled messages of topics wait."""
    names = (each.name if each.role is Role.QUEUE else rules.scheduled_name(each.name) for each in records)
    return await call.figures([name for name in names if call.directory.get(name).role is Role.QUEUE])


def _entry(call: Call, record: Name, figures: Figures) -> Entry:
    times = times_of(record)
    if record.role is Role.QUEUE:
        kind = QUEUE
        properties = shown(queue_properties(record.policy, call.server))
        figures_shown = call.counted(record.name, figures)
    else:
        kind = TOPIC
        properties = shown(topic_properties(record.policy, call.server))
        scheduled = rules.scheduled_name(record.name)
        # Messages are in the queues of the subscriptions; a topic itself has only scheduled ones.
        figures_shown = {
            "SizeInBytes": "0",
            "CountDetails": entries.counts(dict.fromkeys(COUNTS, 0)),
        }
        if call.directory.get(scheduled).role is Role.QUEUE:
            figures_shown = call.counted(scheduled, figures)
            figures_shown.pop("MessageCount", None)
        figures_shown["SubscriptionCount"] = str(len(call.subscriptions(record.name)))
    authorized: dict[str, str | Xml.Element] = {authorization.ELEMENT: call.rules_shown(record)}
    description = entries.described(
        kind, {**properties, **authorized, **figures_shown, **times, "EntityAvailabilityStatus": "Available"}
    )
    return Entry(call.url(record.name), record.name, record.created_at_ms, record.changed_at_ms, description)


def times_of(record: Name) -> dict[str, str | Xml.Element]:
    """Times at which a name was created and changed; the time of its last use is not known."""
    return {
        "CreatedAt": rfc3339(record.created_at_ms),
        "UpdatedAt": rfc3339(record.changed_at_ms),
        "AccessedAt": rfc3339(record.changed_at_ms),
    }


async def _listed(call: Call, role: Role) -> list[Name]:
    directory = call.directory
    return [
        record
        async for record in every_name(directory, lambda _: call.caller)
        if record.role is role
        and call.manages(record)
        and not rules.is_system(record.name)
        and not is_subscription_queue(directory, record.name)
    ]


def _demand_ordinary(name: str) -> None:
    if rules.is_dead_letter(name) or rules.is_system(name):
        raise ProblemError(400, f"{name} is a system name; expected another name for a new entity")


def _word(record: Name) -> str:
    return "queue" if record.role is Role.QUEUE else "topic"
