"""Filters in the attach of a receiver: the filter-set of its source (messaging 3.5.8).

| descriptor | code | value |
|---|---|---|
| apache.org:selector-filter:string | 0x0000468C00000004 | a JMS selector |
| apache.org:jms-selector-filter:string | | the same under its older name |
| amqp:sql-filter | 0x120 | an expression (AMQP Filter Expressions 1.0 CSD01, 6) |
| amqp:properties-filter | 0x173 | a map of property names and values (the same, 4.2.4) |
| amqp:application-properties-filter | 0x174 | a map of keys and values (the same, 4.2.5) |
| apache.org:legacy-amqp-topic-binding:string | 0x0000468C00000001 | a pattern of the subject |
| apache.org:legacy-amqp-direct-binding:string | 0x0000468C00000000 | the subject itself |
| apache.org:legacy-amqp-headers-binding:map | 0x0000468C00000002 | a map of application properties, x-match |
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from lightrail.amqp.values import Described, Symbol
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.filter import EVERYTHING, Filter, compile_filter, joined
from lightrail.filters.path import APPLICATION_PROPERTIES, PROPERTIES, Path, entry, parse_path
from lightrail.filters.terms import OPAQUE, term
from lightrail.model import limits

SOURCE_FILTERS_MAX: Final[int] = 16
"""Filters of one receiving link; RabbitMQ takes as many fields."""


class SourceFilter(NamedTuple):
    """The result of `from_amqp`.

    `filter` is None when no filter is in effect; `accepted` are the filters in effect, which the answer to
    the attach echoes; `refused` has the names of the others with the reasons.
    """

    filter: Filter | None
    accepted: dict[Any, Described]
    refused: dict[Any, str]


def from_amqp(filter_set: Mapping[Any, Any] | None) -> SourceFilter:
    """The filter of a source's filter-set; a message passes when it passes each one (messaging 3.5.8).

    Unsupported filters are refused and have no effect. Raises FilterError for a supported filter with an
    invalid value (a selector with an error in it): the link has to be refused with amqp:invalid-field, since
    no client expects to get messages that it did not select.
    """
    parts: list[Filter] = []
    accepted: dict[Any, Described] = {}
    refused: dict[Any, str] = {}
    if filter_set is not None and len(filter_set) > SOURCE_FILTERS_MAX:
        raise FilterError(f"at most {SOURCE_FILTERS_MAX} filters of one source", str(len(filter_set)))
    for name, value in (filter_set or {}).items():
        if value is None:
            continue
        if not isinstance(value, Described):
            refused[name] = f"expected a described value, found {shown(value)}"
            continue
        make = _MAKERS.get(value.descriptor) if isinstance(value.descriptor, str | int) else None
        if make is None:
            refused[name] = f"a filter of descriptor {shown(value.descriptor)} is not supported"
            continue
        try:
            made = make(value.value)
        except FilterError as error:
            raise error.within(f"the filter {shown(str(name))}") from None
        accepted[name] = value
        if made is not EVERYTHING:
            parts.append(made)
            if sum(part.weight for part in parts) >= limits.FILTER_WEIGHT_MAX:
                # The filters are compiled again as one filter.
                most = limits.FILTER_WEIGHT_MAX
                raise FilterError(f"at most {most} operators, literals and fields in all of a filter", "more")
    return SourceFilter(joined(parts) if parts else None, accepted, refused)


def _text(value: Any) -> str:
    if type(value) not in (str, Symbol):
        raise FilterError("a string", shown(value))
    return str(value)


def _selector(value: Any) -> Filter:
    return compile_filter({"selector": _text(value)})


def _sql(value: Any) -> Filter:
    return compile_filter({"sql": _text(value)})


def _topic(value: Any) -> Filter:
    return compile_filter({"subject": _text(value)})


def _direct(value: Any) -> Filter:
    return compile_filter({"properties": {"subject": _text(value)}})


def _headers(value: Any) -> Filter:
    """Equal application properties, all of them or any by `x-match`; null only requires that one exists."""
    if not isinstance(value, Mapping):
        raise FilterError("a map of application properties", shown(value))
    how = value.get("x-match", "all")
    if how not in ("all", "any"):
        raise FilterError("all or any", shown(how), part="x-match")
    conditions: list[dict[str, Any]] = []
    for name, reference in value.items():
        if isinstance(name, str) and name.startswith("x-"):
            continue
        path = _application_property(name)
        constant = _reference(path, reference)
        if constant is None:
            conditions.append({"sql": f"{_identifier(path)} IS NOT NULL"})
        else:
            conditions.append({"properties": {path.text: constant}})
    return compile_filter({how: conditions}) if conditions else EVERYTHING


# --- filters by properties ------------------------------------------------------------------------------


def _properties(value: Any) -> Filter:
    return _fields(value, _property)


def _application_properties(value: Any) -> Filter:
    return _fields(value, _application_property)


def _property(name: Any) -> Path:
    path = parse_path(f"properties.{name}" if isinstance(name, str) else "")
    assert path.section == PROPERTIES
    return path


def _application_property(name: Any) -> Path:
    if not isinstance(name, str):
        raise FilterError("a string as the key of an application property", shown(name))
    return entry(APPLICATION_PROPERTIES, str(name))


def _fields(value: Any, path_of: Callable[[Any], Path]) -> Filter:
    if not isinstance(value, Mapping) or not value:
        raise FilterError("a map of one or more fields", shown(value))
    equal: dict[str, Any] = {}
    conditions: list[dict[str, Any]] = []
    for name, reference in value.items():
        path = path_of(name)
        constant = _reference(path, reference)
        if constant is None:
            # A null reference matches any value (4.1.1) of a present application property.
            if path.section == APPLICATION_PROPERTIES:
                conditions.append({"sql": f"{_identifier(path)} IS NOT NULL"})
        elif isinstance(constant, str) and constant.startswith("&"):
            _modified(path, constant, equal, conditions)
        else:
            equal[path.text] = constant
    if equal:
        conditions.insert(0, {"properties": equal})
    if not conditions:
        return EVERYTHING
    return compile_filter(conditions[0] if len(conditions) == 1 else {"all": conditions})


def _reference(path: Path, value: Any) -> Any:
    """The term to compare a field with."""
    constant = term(value)
    if constant is OPAQUE or isinstance(constant, bytes):
        expected = "a string, a number, a boolean, a uuid or null"
        raise FilterError(expected, shown(value), part=path.text)
    return constant


def _modified(path: Path, text: str, equal: dict[str, Any], conditions: list[dict[str, Any]]) -> None:
    """`&p:` a prefix, `&s:` a suffix, `&&` a literal ampersand (4.1.1)."""
    if text.startswith("&&"):
        equal[path.text] = text[1:]
        return
    kind, rest = text[:3], text[3:]
    if kind not in ("&p:", "&s:"):
        raise FilterError("&p:, &s: or && at the beginning", shown(text), part=path.text)
    literal = rest.replace("!", "!!").replace("%", "!%").replace("_", "!_").replace("'", "''")
    pattern = f"{literal}%" if kind == "&p:" else f"%{literal}"
    conditions.append({"sql": f"{_identifier(path)} LIKE '{pattern}' ESCAPE '!'"})


def _identifier(path: Path) -> str:
    """The name of a field in an expression."""
    if path.section == PROPERTIES:
        return f"properties.{path.name}"
    quoted = path.name.replace('"', '""')
    return f'application_properties."{quoted}"'


_MAKERS: Final[dict[Any, Callable[[Any], Filter]]] = {
    "apache.org:selector-filter:string": _selector,
    "apache.org:jms-selector-filter:string": _selector,
    0x0000468C00000004: _selector,
    "apache.org:legacy-amqp-direct-binding:string": _direct,
    0x0000468C00000000: _direct,
    "apache.org:legacy-amqp-topic-binding:string": _topic,
    0x0000468C00000001: _topic,
    "apache.org:legacy-amqp-headers-binding:map": _headers,
    0x0000468C00000002: _headers,
    "amqp:sql-filter": _sql,
    0x120: _sql,
    "amqp:properties-filter": _properties,
    0x173: _properties,
    "amqp:application-properties-filter": _application_properties,
    0x174: _application_properties,
}
