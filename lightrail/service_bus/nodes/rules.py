"""Rules over TOPIC/Subscriptions/NAME/$management: clients of Azure Service Bus add, remove and list them.

A rule is sent as a map with `sql-filter`, `correlation-filter`, `true-filter` or `false-filter`, and perhaps
`sql-rule-action`. It is listed as described lists with descriptors of Service Bus.
"""

from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.values import Described, Timestamp, ULong
from lightrail.filters.errors import FilterError
from lightrail.filters.rules.rule_filter import CORRELATED
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import limits
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right, Subscription
from lightrail.namespace.rights import Caller, demand
from lightrail.namespace.rules import Rule, created_at, rules_of
from lightrail.service_bus.paths import subscription_at
from lightrail.service_bus.rules import dialect
from lightrail.service_bus.rules.changes import add_rule, remove_rule
from lightrail.service_bus.rules.constants import from_amqp, to_amqp
from lightrail.service_bus.rules.dialect import Sql
from lightrail.service_bus.spelling import PART_CHARACTERS_MAX

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

DESCRIPTION: Final = ULong(0x13700000004)
EMPTY_ACTION: Final = ULong(0x13700000005)
SQL_ACTION: Final = ULong(0x13700000006)
SQL_FILTER: Final = ULong(0x1370000006)
TRUE_FILTER: Final = ULong(0x1370000007)
FALSE_FILTER: Final = ULong(0x1370000008)
CORRELATION_FILTER: Final = ULong(0x1370000009)
_FILTERS: Final = ("sql-filter", "correlation-filter", "true-filter", "false-filter")
_ACTIONS: Final = ("sql-rule-action", "empty-rule-action")

Fields = dict[str, Any]


async def add(connection: "ClientConnection", name: str, body: Fields) -> Fields:
    """add-rule: adds the rule `rule-description` under the name `rule-name`."""
    found, caller = _managed(connection, name)
    rule = _name(body)
    if len(rule) > PART_CHARACTERS_MAX:
        raise RequestError(
            400, f"rule-name has {len(rule)} characters; expected at most {PART_CHARACTERS_MAX}"
        )
    description = body.get("rule-description")
    if not isinstance(description, dict):
        raise RequestError(400, f"rule-description is {description!r:.80}; expected a map")
    try:
        made = _rule(description, rule)
    except FilterError as error:
        raise RequestError(400, f"the rule can't be used: {error}") from None
    new = {**made, "created_at_ms": connection.frontend.now_ms()}
    await add_rule(connection.frontend.service, caller, found.router, found.id, rule, new)
    return {}


async def remove(connection: "ClientConnection", name: str, body: Fields) -> Fields:
    """remove-rule: removes the rule of the name `rule-name`."""
    found, caller = _managed(connection, name)
    await remove_rule(connection.frontend.service, caller, found.router, found.id, _name(body))
    return {}


async def enumerate(connection: "ClientConnection", name: str, body: Fields) -> Fields:
    """enumerate-rules: at most `top` rules after the first `skip` rules."""
    found, _ = _managed(connection, name)
    skip, top = (_count(body, key, default) for key, default in (("skip", 0), ("top", limits.RULES_MAX)))
    queue = connection.frontend.directory.get(found.target)
    listed = list(rules_of(found).items())[skip : skip + top]
    return {
        "rules": [
            {"rule-description": _described(rule_name, rule, queue.created_at_ms)}
            for rule_name, rule in listed
        ]
    }


def _managed(connection: "ClientConnection", name: str) -> tuple[Subscription, Caller]:
    """The subscription of a path, and the caller. Raises RequestError, ForbiddenError.

    The token of the connection is for the path of the subscription.
    """
    directory: Directory = connection.frontend.directory
    directory.refresh()
    found = subscription_at(directory, name)
    if found is None:
        # A client without the right gets no information about what exists.
        demand(directory, connection.client.caller_for(name), Right.MANAGE, directory.get(name))
        raise RequestError(404, f"{name} is no subscription of a topic: only those have rules")
    # A token for the subscription is good for its rules, which belong to the topic.
    caller = connection.client.caller_for(found.target).at(found.router)
    demand(directory, caller, Right.MANAGE, directory.get(found.router))
    return found, caller


def _name(body: Fields) -> str:
    name = body.get("rule-name")
    if not isinstance(name, str) or not name:
        raise RequestError(400, f"rule-name is {name!r:.80}; expected the name of a rule")
    return str(name)


def _count(body: Fields, key: str, default: int) -> int:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(400, f"{key} is {value!r:.80}; expected a whole number from 0 on")
    return int(value)


# --- reading ----------------------------------------------------------------------------------------------


def _rule(description: Fields, name: str) -> Rule:
    """The rule in a description. Raises FilterError, RequestError."""
    parts = {str(key): value for key, value in description.items() if value is not None}
    # The client for Java sends the name here as well.
    named = parts.pop("rule-name", name)
    if named != name:
        raise RequestError(400, f"rule-name is {named!r:.80} in rule-description; expected {name!a:.80}")
    unknown = next((key for key in parts if key not in (*_FILTERS, *_ACTIONS)), None)
    filters = [key for key in _FILTERS if key in parts]
    if unknown is not None or len(filters) > 1:
        raise RequestError(
            400,
            f"expected one of {', '.join(_FILTERS)}, and sql-rule-action; found {', '.join(parts)!a:.200}",
        )
    action = parts.get("sql-rule-action")
    return {
        "filter": _filter(filters[0], parts[filters[0]]) if filters else None,
        "action": None if action is None else dialect.sql_action(_expression(action)),
    }


def _filter(kind: str, value: Any) -> Fields | None:
    match kind:
        case "sql-filter":
            return dialect.sql_filter(_expression(value))
        case "correlation-filter":
            return _correlation(value)
    return dialect.false_filter() if kind == "false-filter" else None


def _expression(value: Any) -> Sql:
    """An expression or statements with parameters. Raises RequestError, FilterError."""
    text = value.get("expression") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise RequestError(400, f"expected a map with expression, a text, found {value!r:.80}")
    parameters = value.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError(400, f"parameters is {parameters!r:.80}; expected a map")
    return Sql(str(text), _constants(parameters, "parameters"))


def _constants(found: Any, part: str) -> Fields:
    """The constants of a map. Raises FilterError."""
    made: Fields = {}
    for name, value in found.items():
        try:
            made[str(name)] = from_amqp(value)
        except FilterError as error:
            raise error.within(f"{part}.{name!s:.80}") from None
    return made


def _correlation(value: Any) -> Fields:
    if not isinstance(value, dict):
        raise RequestError(400, f"correlation-filter is {value!r:.80}; expected a map")
    fields = {
        str(key): str(each) if isinstance(each, str) else each
        for key, each in value.items()
        if each is not None and key != "properties"
    }
    properties = value.get("properties") or {}
    if not isinstance(properties, dict):
        raise RequestError(400, f"properties is {properties!r:.80}; expected a map")
    return dialect.correlation_filter(fields, _constants(properties, "properties"))


# --- showing ----------------------------------------------------------------------------------------------


def _described(name: str, rule: Rule, created_at_ms: int) -> Described:
    action = dialect.shown_action(rule.get("action"))
    shown = Described(EMPTY_ACTION, []) if action is None else Described(SQL_ACTION, [action.expression])
    return Described(DESCRIPTION, [_shown(rule), shown, name, Timestamp(created_at(rule, created_at_ms))])


def _shown(rule: Rule) -> Described:
    found = dialect.shown_filter(rule.get("filter"))
    if isinstance(found, bool):
        return Described(TRUE_FILTER if found else FALSE_FILTER, [])
    if isinstance(found, Sql):
        return Described(SQL_FILTER, [found.expression])
    values: list[Any] = [found.fields.get(field) for field in CORRELATED]
    properties = {name: to_amqp(value) for name, value in found.properties.items()}
    return Described(CORRELATION_FILTER, [*values, *([properties] if properties else [])])
