"""Rules of the administration clients: filters and actions of a subscription, by name."""

from aiohttp import web

from lightrail.gateway.bodies import rfc3339
from lightrail.gateway.errors import ProblemError
from lightrail.namespace.deleting import OWN_QUEUE
from lightrail.namespace.records import Subscription
from lightrail.namespace.rules import Rule, rules_of
from lightrail.namespace.statuses import MissingError
from lightrail.service_bus.administration import descriptions, entries
from lightrail.service_bus.administration.call import Call
from lightrail.service_bus.administration.entries import Entry
from lightrail.service_bus.rules.changes import add_rule, remove_rule, replace_rule


async def read(call: Call) -> web.Response:
    """GET /TOPIC/subscriptions/NAME/rules/RULE."""
    found = call.subscription()
    rule = rules_of(found).get(call.place.rule)
    if rule is None:
        raise MissingError(f"subscription {found.id} of {found.router} has no rule {call.place.rule!a:.200}")
    return call.shown(_entry(call, found, call.place.rule, rule), revision=found.revision)


async def list_all(call: Call) -> web.Response:
    """GET /TOPIC/subscriptions/NAME/rules."""
    found = call.subscription()
    rules, following = call.page(list(rules_of(found).items()))
    return call.feed([_entry(call, found, name, rule) for name, rule in rules], following)


async def put(call: Call) -> web.Response:
    """PUT /TOPIC/subscriptions/NAME/rules/RULE: adds a rule; with If-Match replaces it."""
    found, name = call.subscription(), call.place.rule
    _, parts = entries.description_in(await call.request.body(), (descriptions.RULE,))
    rule = descriptions.rule_of(parts)
    given = entries.plain_text(parts["Name"]) if "Name" in parts else name
    if given not in (name, ""):
        raise ProblemError(400, f"the rule is named {given[:80]!a}; expected {name[:80]!a}, as in the path")
    what = f"rule {name} of subscription {found.id} of {found.router}"
    updates = call.demand_present(name in rules_of(found), what)
    change = replace_rule if updates else add_rule
    made = await change(call.services.namespace, call.caller, found.router, found.id, name, rule)
    shown = _entry(call, made, name, rule)
    return call.shown(shown, 200 if updates else 201, made.revision)


async def delete(call: Call) -> web.Response:
    """DELETE /TOPIC/subscriptions/NAME/rules/RULE."""
    found = call.subscription()
    await remove_rule(call.services.namespace, call.caller, found.router, found.id, call.place.rule)
    return web.Response(status=200)


def _entry(call: Call, found: Subscription, name: str, rule: Rule) -> Entry:
    # The time at which a rule was created is not stored; its subscription's queue is as old, or older.
    at_ms = call.directory.get(found.target).created_at_ms
    url = call.url(found.router, OWN_QUEUE, found.id, "Rules", name)
    properties = descriptions.rule_properties(name, rule, rfc3339(at_ms))
    return Entry(url, name, at_ms, at_ms, entries.described(descriptions.RULE, properties))
