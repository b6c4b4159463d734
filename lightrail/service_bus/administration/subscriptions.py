"""Subscriptions of the administration clients: a subscription of a router, its rules, and its queue.

A subscription that is created here has its own queue, TOPIC/Subscriptions/NAME. Other subscriptions show the
policy of the queue that they send to.
"""

from collections.abc import Mapping
from typing import Final
from xml.etree import ElementTree as Xml

from aiohttp import web

from lightrail.gateway.bodies import rfc3339
from lightrail.gateway.errors import ProblemError, invalid
from lightrail.model.clock import wall_ms
from lightrail.model.names import InvalidNameError, folded
from lightrail.model.policy import Policy, Role
from lightrail.namespace.deleting import OWN_QUEUE, has_own_queue, own_queue
from lightrail.namespace.records import Subscription
from lightrail.namespace.rights import ForbiddenError
from lightrail.namespace.rules import DEFAULT, Rule, created_at, fields_of, rules_of
from lightrail.namespace.statuses import MissingError, ServiceError
from lightrail.service_bus.administration import descriptions, entries
from lightrail.service_bus.administration.call import Call, Figures
from lightrail.service_bus.administration.entities import times_of
from lightrail.service_bus.administration.entries import Entry
from lightrail.service_bus.administration.kept import with_bounds
from lightrail.service_bus.administration.properties import (
    FAILURES,
    NEW_SUBSCRIPTION,
    Shown,
    changed,
    shown,
    subscription_properties,
    with_fields_of,
)
from lightrail.service_bus.rules.changes import (
    add_rule,
    remove_rule,
    replace_rule,
    schedules,
    set_drop_failed,
)

SUBSCRIPTION: Final = "SubscriptionDescription"
_RULE: Final = "DefaultRuleDescription"


async def read(call: Call) -> web.Response:
    """GET /TOPIC/subscriptions/NAME."""
    return await _answer(call, call.subscription())


async def list_all(call: Call) -> web.Response:
    """GET /TOPIC/subscriptions: subscriptions that send to queues."""
    found, following = call.page(call.subscriptions(call.topic().name))
    figures = await call.figures(list(dict.fromkeys(each.target for each in found)))
    return call.feed([_entry(call, each, figures) for each in found], following)


async def put(call: Call) -> web.Response:
    """PUT /TOPIC/subscriptions/NAME: creates one; with If-Match changes the policy of its queue."""
    record, name = call.topic(), call.place.subscription
    topic = record.name
    _, wanted = entries.description_in(await call.request.body(), (SUBSCRIPTION,))
    rule = wanted.pop(_RULE, None)
    dead_letters = _dead_letters(wanted.pop(FAILURES, None))
    call.directory.refresh()
    found = call.directory.subscription(topic, name)
    if call.demand_present(found is not None, f"subscription {name} of {topic}"):
        if rule is not None:
            raise ProblemError(400, f"{_RULE} is for a new subscription; change its rules instead")
        found = call.subscription()
        record = call.directory.get(found.target)
        policy = changed(record.policy, wanted, _properties(call, record.policy))
        await call.change(record, call.forwarding(policy, record.policy))
        if dead_letters is not None and dead_letters is bool(found.drop_failed):
            found = await set_drop_failed(
                call.services.namespace, call.caller, found.router, found.id, not dead_letters
            )
        return await _answer(call, found)
    rule_name, first = (DEFAULT, {"filter": None}) if rule is None else descriptions.named_rule(rule, DEFAULT)
    queue, namespace = own_queue(topic, name), call.services.namespace
    call.caller = call.caller.at(queue)
    is_new = await _give_queue(call, queue, wanted, record.policy, delays=schedules(first))
    try:
        made = await namespace.subscribe(
            call.caller,
            topic,
            queue,
            id=name,
            **fields_of({rule_name: first}),
            drop_failed=dead_letters is False,
        )
    except (ServiceError, ForbiddenError, InvalidNameError):
        if is_new:
            await namespace.drop(call.caller, queue)
        raise
    return await _answer(call, made, status=201)


async def delete(call: Call) -> web.Response:
    """DELETE /TOPIC/subscriptions/NAME: also deletes the queue that was created with it."""
    found = call.subscription()
    namespace = call.services.namespace
    if has_own_queue(found):
        # Deleting a queue deletes the subscriptions to it.
        await namespace.drop(call.caller, found.target)
    else:
        await namespace.unsubscribe(call.caller, found.router, found.id)
    return web.Response(status=200)


def _dead_letters(found: Xml.Element | None) -> bool | None:
    """Whether failures of rules become dead letters; None if the client does not say. Raises ProblemError."""
    if found is None:
        return None
    text = entries.plain_text(found)
    if text.lower() not in ("true", "false", "1", "0"):
        raise invalid(FAILURES, text, "true or false", 400)
    return text.lower() in ("true", "1")


async def _give_queue(
    call: Call, queue: str, wanted: Mapping[str, Xml.Element], topic: Policy, *, delays: bool
) -> bool:
    """Creates the queue of a subscription, or uses an existing one, as after an interrupted attempt.

    An existing one keeps the fields of its policy that have no property; the others are as of a new queue.

    Args:
        delays: whether the first rule schedules messages.

    Returns whether the queue is new.
    """
    record = call.directory.get(queue)
    is_new = record.role is not Role.QUEUE
    before = NEW_SUBSCRIPTION
    if not is_new:
        before = with_fields_of(record.policy, NEW_SUBSCRIPTION, _properties(call, before))
    policy = call.forwarding(changed(before, wanted, _properties(call, before)), record.policy)
    policy = with_bounds(policy, topic, topic)
    if delays:
        policy = Policy.parse(policy.to_json() | {"delay": True})
    if is_new:
        await call.give(queue, policy)
    else:
        await call.change(record, policy)
    return is_new


def _properties(call: Call, policy: Policy) -> Shown:
    return subscription_properties(policy, call.server)


async def _answer(call: Call, found: Subscription, status: int = 200) -> web.Response:
    figures = await call.figures([found.target])
    return call.shown(_entry(call, found, figures), status, call.directory.get(found.target).revision)


def _entry(call: Call, found: Subscription, figures: Figures) -> Entry:
    queue = call.directory.get(found.target)
    counted: dict[str, str | Xml.Element] = call.counted(queue.name, figures)
    counted.pop("SizeInBytes", None)
    properties = {
        **shown(subscription_properties(queue.policy, call.server, bool(found.drop_failed))),
        **counted,
        **times_of(queue),
        "EntityAvailabilityStatus": "Available",
    }
    url = call.url(found.router, OWN_QUEUE, found.id)
    description = entries.described(SUBSCRIPTION, properties)
    return Entry(url, found.id, queue.created_at_ms, queue.changed_at_ms, description)


# --- rules: filters and actions of a subscription, by name ------------------------------------------------


async def read_rule(call: Call) -> web.Response:
    """GET /TOPIC/subscriptions/NAME/rules/RULE."""
    found = call.subscription()
    rule = rules_of(found).get(call.place.rule)
    if rule is None:
        raise MissingError(f"subscription {found.id} of {found.router} has no rule {call.place.rule!a:.200}")
    return call.shown(_rule_entry(call, found, call.place.rule, rule), revision=found.revision)


async def list_rules(call: Call) -> web.Response:
    """GET /TOPIC/subscriptions/NAME/rules."""
    found = call.subscription()
    rules, following = call.page(list(rules_of(found).items()))
    return call.feed([_rule_entry(call, found, name, rule) for name, rule in rules], following)


async def put_rule(call: Call) -> web.Response:
    """PUT /TOPIC/subscriptions/NAME/rules/RULE: adds a rule; with If-Match replaces it."""
    found, name = call.subscription(), call.place.rule
    _, parts = entries.description_in(await call.request.body(), (descriptions.RULE,))
    rule = {**descriptions.rule_of(parts), "created_at_ms": wall_ms()}
    given = entries.plain_text(parts["Name"]) if "Name" in parts else name
    if given and folded(given) != folded(name):
        raise ProblemError(400, f"the rule is named {given[:80]!a}; expected {name[:80]!a}, as in the path")
    what = f"rule {name} of subscription {found.id} of {found.router}"
    updates = call.demand_present(name in rules_of(found), what)
    change = replace_rule if updates else add_rule
    made = await change(call.services.namespace, call.caller, found.router, found.id, name, rule)
    shown = _rule_entry(call, made, name, rule)
    return call.shown(shown, 200 if updates else 201, made.revision)


async def delete_rule(call: Call) -> web.Response:
    """DELETE /TOPIC/subscriptions/NAME/rules/RULE."""
    found = call.subscription()
    await remove_rule(call.services.namespace, call.caller, found.router, found.id, call.place.rule)
    return web.Response(status=200)


def _rule_entry(call: Call, found: Subscription, name: str, rule: Rule) -> Entry:
    # A rule that doesn't say so was created with its subscription, whose queue is as old.
    at_ms = created_at(rule, call.directory.get(found.target).created_at_ms)
    url = call.url(found.router, OWN_QUEUE, found.id, "Rules", name)
    properties = descriptions.rule_properties(name, rule, rfc3339(at_ms))
    return Entry(url, name, at_ms, at_ms, entries.described(descriptions.RULE, properties))
