"""The configuration file: the entities of a Config.json of the emulator, read and checked.

    {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [QUEUE, ...], "Topics": [TOPIC, ...]}],
                    "Logging": {"Type": "File"}}}

JSON with comments and trailing commas. Every error names its place, as
`UserConfig.Namespaces[0].Queues[2].Properties.LockDuration`. Defaults are those of the emulator's schema.
Bounds are those of Service Bus, where the emulator's are narrower: more than 50 entities, messages that live
for more than an hour. A property that the schema lacks and administration clients have may be set as well.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.model.names import InvalidNameError, check, check_spelling
from lightrail.service_bus.administration.descriptions import CORRELATION
from lightrail.service_bus.administration.durations import seconds_of
from lightrail.service_bus.administration.properties import UNLIMITED_COUNT

CONFIGURATION_BYTES_MAX: Final[int] = 1024 * 1024
"""Size of a file: thousands of entities."""
PROBLEMS_SHOWN: Final[int] = 10
"""Problems of a file that are reported at once."""
QUEUE: Final = "QueueDescription"
TOPIC: Final = "TopicDescription"
SUBSCRIPTION: Final = "SubscriptionDescription"
DEFAULT_RULE: Final = "$Default"
EVERYTHING: Final = {"FilterType": "True"}
"""The rule of a subscription without rules in the file."""

Rules = Mapping[str, Mapping[str, Any]]
"""The property `Properties` of rules, by name."""


class ConfigFileError(Exception):
    """The file can't be used; each line of the message names a place, what is expected there and found."""


@dataclass(frozen=True, slots=True)
class ConfiguredEntity:
    """A queue, a topic or a subscription of the file, with all of its properties as texts."""

    kind: str
    name: str
    """Of the queue or the topic."""
    subscription: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    rules: Rules = field(default_factory=dict)
    place: str = ""
    """In the file."""

    @property
    def path(self) -> str:
        """The path at which it is administered."""
        return f"{self.name}/subscriptions/{self.subscription}" if self.subscription else self.name

    def to_json(self) -> dict[str, Any]:
        """What is kept of an entity that was applied."""
        return {"kind": self.kind, "properties": dict(self.properties), "rules": dict(self.rules)}


def load(path: str) -> list[ConfiguredEntity]:
    """The entities of the file at a path. Raises ConfigFileError."""
    try:
        with open(path, encoding="utf-8") as opened:
            return read(opened.read(CONFIGURATION_BYTES_MAX + 1))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"the file can't be read: {error}") from None


def read(text: str) -> list[ConfiguredEntity]:
    """The entities of a file, topics before their subscriptions. Raises ConfigFileError."""
    if len(text) > CONFIGURATION_BYTES_MAX:
        raise ConfigFileError(
            f"the file has {len(text)} characters, at most {CONFIGURATION_BYTES_MAX} are read"
        )
    try:
        root = json.loads(without_comments(text))
    except (ValueError, RecursionError) as error:
        raise ConfigFileError(f"the file is no JSON: {error}") from None
    reading = _FileReading()
    entities = list(reading.entities(root))
    if reading.problems:
        raise refusal(reading.problems)
    return entities


def refusal(problems: list[str]) -> ConfigFileError:
    """The error with the first of these problems."""
    more = len(problems) - PROBLEMS_SHOWN
    shown = problems[:PROBLEMS_SHOWN] + ([f"and {more} more"] if more > 0 else [])
    return ConfigFileError("\n".join(shown))


# --- comments ---------------------------------------------------------------------------------------------

_COMMENT: Final = r"//[^\n]*|/\*(?:(?!\*/).)*\*/"
_TOKEN: Final = re.compile(rf'"(?:[^"\\\n]|\\.)*"|{_COMMENT}|,(?=(?:\s|{_COMMENT})*[\]}}])', re.DOTALL)


def without_comments(text: str) -> str:
    """JSON of the same length without comments and trailing commas, so that errors have its lines."""

    def blank(found: re.Match[str]) -> str:
        token = found.group()
        return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)

    return _TOKEN.sub(blank, text.removeprefix("\ufeff"))


# --- properties -------------------------------------------------------------------------------------------

Check = Callable[[Any], str]
"""The text of a value. Raises ValueError with what is expected."""


_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that the requests of administration can't have."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    if _NO_XML.search(value):
        raise ValueError("a text without control characters")
    return value


def _boolean(value: Any) -> str:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return "true" if value else "false"


def _whole(most: int) -> Check:
    def checked(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"a whole number from 1 to {most}")
        return str(value)

    return checked


def _duration(least: str, most: str = "") -> Check:
    def checked(value: Any) -> str:
        seconds = seconds_of(_text(value))
        low, high = seconds_of(least), seconds_of(most) if most else None
        if low is not None and seconds is not None and seconds < low:
            raise ValueError(f"a duration of {least} or longer")
        if high is not None and (seconds is None or seconds > high):
            raise ValueError(f"a duration from {least} to {most}")
        return str(value)

    return checked


_MESSAGES: Final[Mapping[str, Check]] = {
    "DefaultMessageTimeToLive": _duration("PT1S"),
    "AutoDeleteOnIdle": _duration("PT5M"),
    "EnableBatchedOperations": _boolean,
    "Status": _text,
    "UserMetadata": _text,
}
_STORED: Final[Mapping[str, Check]] = {
    **_MESSAGES,
    "DeadLetteringOnMessageExpiration": _boolean,
    "LockDuration": _duration("PT5S", "PT5M"),
    "MaxDeliveryCount": _whole(UNLIMITED_COUNT),
    "RequiresSession": _boolean,
    "ForwardTo": _text,
    "ForwardDeadLetteredMessagesTo": _text,
}
_SIZED: Final[Mapping[str, Check]] = {
    "RequiresDuplicateDetection": _boolean,
    "DuplicateDetectionHistoryTimeWindow": _duration("PT5S", "P7D"),
    "MaxSizeInMegabytes": _whole(UNLIMITED_COUNT),
    "MaxMessageSizeInKilobytes": _whole(UNLIMITED_COUNT),
    "EnableExpress": _boolean,
    "EnablePartitioning": _boolean,
    "SupportOrdering": _boolean,
}
_PROPERTIES: Final[Mapping[str, Mapping[str, Check]]] = {
    QUEUE: {**_STORED, **_SIZED},
    TOPIC: {**_MESSAGES, **_SIZED},
    SUBSCRIPTION: {**_STORED, "DeadLetteringOnFilterEvaluationExceptions": _boolean},
}
_OF_STORED: Final = {
    "DeadLetteringOnMessageExpiration": "false",
    "DefaultMessageTimeToLive": "PT1H",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": "3",
    "RequiresSession": "false",
    "ForwardTo": "",
    "ForwardDeadLetteredMessagesTo": "",
}
_OF_SIZED: Final = {"RequiresDuplicateDetection": "false", "DuplicateDetectionHistoryTimeWindow": "PT20S"}
DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    QUEUE: {**_OF_STORED, **_OF_SIZED},
    TOPIC: {"DefaultMessageTimeToLive": "PT1H", **_OF_SIZED},
    SUBSCRIPTION: _OF_STORED,
}
"""Properties that the file does not have, by kind of entity, from the emulator's schema."""

# --- rules ------------------------------------------------------------------------------------------------

_KINDS_OF_FILTER: Final = {
    "Sql": "Sql",
    "SqlFilter": "Sql",
    "Correlation": "Correlation",
    "CorrelationFilter": "Correlation",
}
_SQL_FIELDS: Final = ("SqlExpression", "CompatibilityLevel", "RequiresPreprocessing")


class _FileReading:
    """One pass over a file, which collects the problems that it finds."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._places: dict[str, str] = {}
        """Places of entities, by path in small letters."""

    def entities(self, root: Any) -> Iterator[ConfiguredEntity]:
        config = self._object(root, "", ("UserConfig", "$schema"), ("UserConfig",)).get("UserConfig")
        if config is None:
            return
        top = self._object(config, "UserConfig", ("Namespaces", "Logging"), ("Namespaces",))
        self._object(top.get("Logging", {}), "UserConfig.Logging", ("Type",))
        namespaces = self._list(top, "UserConfig", "Namespaces")
        if "Namespaces" in top and len(namespaces) != 1:
            self._problem("UserConfig.Namespaces", f"{len(namespaces)} namespaces", "one namespace")
        for at, each in enumerate(namespaces[:1]):
            place = f"UserConfig.Namespaces[{at}]"
            found = self._object(each, place, ("Name", "Queues", "Topics"))
            for where, queue in self._items(found, place, "Queues"):
                yield from self._queue(queue, where)
            for where, topic in self._items(found, place, "Topics"):
                yield from self._topic(topic, where)

    def _queue(self, value: Any, place: str) -> Iterator[ConfiguredEntity]:
        found = self._object(value, place, ("Name", "Properties"), ("Name",))
        name = self._name(found, place)
        if name:
            yield self._entity(QUEUE, found, place, name)

    def _topic(self, value: Any, place: str) -> Iterator[ConfiguredEntity]:
        found = self._object(value, place, ("Name", "Properties", "Subscriptions"), ("Name",))
        name = self._name(found, place)
        if not name:
            return
        yield self._entity(TOPIC, found, place, name)
        for at, subscription in self._items(found, place, "Subscriptions"):
            each = self._object(subscription, at, ("Name", "Properties", "Rules"), ("Name",))
            id = self._name(each, at, is_segment=True)
            if id:
                yield self._entity(SUBSCRIPTION, each, at, name, id)

    def _entity(
        self, kind: str, found: Mapping[str, Any], place: str, name: str, subscription: str = ""
    ) -> ConfiguredEntity:
        properties = dict(DEFAULTS[kind])
        known = _PROPERTIES[kind]
        at = f"{place}.Properties"
        for key, value in self._object(found.get("Properties", {}), at, tuple(known)).items():
            if key in known:
                properties[key] = self._value(known[key], value, f"{at}.{key}")
        rules: dict[str, Mapping[str, Any]] = {}
        for at, rule in self._items(found, place, "Rules"):
            each = self._object(rule, at, ("Name", "Properties"), ("Name", "Properties"))
            id = self._value(_text, each.get("Name", ""), f"{at}.Name")
            if id in rules:
                self._problem(f"{at}.Name", repr(id), "a name that no other rule of the subscription has")
            rules[id] = self._rule(each.get("Properties", {}), f"{at}.Properties")
        if subscription and not rules:
            rules = {DEFAULT_RULE: EVERYTHING}
        made = ConfiguredEntity(kind, name, subscription, properties, rules, place)
        first = self._places.setdefault(made.path.lower(), place)
        if first != place:
            self._problem(f"{place}.Name", repr(subscription or name), f"another name than that of {first}")
        return made

    def _rule(self, value: Any, place: str) -> Mapping[str, Any]:
        parts = ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
        found = self._object(value, place, parts, ("FilterType",))
        kind = _KINDS_OF_FILTER.get(str(found.get("FilterType")))
        if kind is None:
            if "FilterType" in found:
                self._problem(f"{place}.FilterType", repr(found["FilterType"]), "Sql or Correlation")
            return {}
        made: dict[str, Any] = {"FilterType": kind}
        part = f"{kind}Filter"
        if part not in found:
            self._problem(place, "no such member", f"{part}, as FilterType is {kind}")
        elif kind == "Sql":
            made[part] = self._sql(found[part], f"{place}.{part}")
        else:
            made[part] = self._correlation(found[part], f"{place}.{part}")
        if "Action" in found:
            made["Action"] = self._sql(found["Action"], f"{place}.Action")
        return made

    def _sql(self, value: Any, place: str) -> Mapping[str, str]:
        found = self._object(value, place, _SQL_FIELDS, ("SqlExpression",))
        return {"SqlExpression": self._value(_text, found.get("SqlExpression", ""), f"{place}.SqlExpression")}

    def _correlation(self, value: Any, place: str) -> Mapping[str, Any]:
        found = self._object(value, place, (*CORRELATION, "Properties"))
        if not found:
            self._problem(place, "no field", "at least one field to compare")
        made: dict[str, Any] = {
            key: self._value(_text, each, f"{place}.{key}")
            for key, each in found.items()
            if key in CORRELATION
        }
        properties = found.get("Properties", {})
        if not isinstance(properties, dict):
            self._problem(f"{place}.Properties", shown(properties), "an object")
            return made
        for key, each in properties.items():
            self._value(_text, key, f"{place}.Properties")
            if isinstance(each, str):
                self._value(_text, each, f"{place}.Properties.{key}")
            elif not isinstance(each, int | float):
                self._problem(f"{place}.Properties.{key}", shown(each), "a text, a number or a boolean")
        if properties:
            made["Properties"] = properties
        return made

    # --- parts -----------------------------------------------------------------------------------------

    def _problem(self, place: str, found: str, expected: str) -> None:
        self.problems.append(f"{place or 'the file'}: expected {expected}, found {found}")

    def _value(self, check: Check, value: Any, place: str) -> str:
        try:
            return check(value)
        except ValueError as error:
            self._problem(place, shown(value), str(error))
            return ""

    def _object(
        self, value: Any, place: str, known: tuple[str, ...], required: tuple[str, ...] = ()
    ) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._problem(place, shown(value), "an object")
            return {}
        for key in value:
            if key not in known:
                self._problem(f"{place}.{key}".lstrip("."), "this member", f"one of {', '.join(known)}")
        for key in required:
            if key not in value:
                self._problem(place, "none", f"the member {key}")
        return value

    def _list(self, found: Mapping[str, Any], place: str, key: str) -> list[Any]:
        value = found.get(key, [])
        if not isinstance(value, list):
            self._problem(f"{place}.{key}", shown(value), "a list")
            return []
        return value

    def _items(self, found: Mapping[str, Any], place: str, key: str) -> Iterator[tuple[str, Any]]:
        for at, each in enumerate(self._list(found, place, key)):
            yield f"{place}.{key}[{at}]", each

    def _name(self, found: Mapping[str, Any], place: str, *, is_segment: bool = False) -> str:
        """The name of an entity; empty for one that can't be used."""
        if "Name" not in found:
            return ""
        name = self._value(_text, found["Name"], f"{place}.Name")
        try:
            if is_segment and "/" in name:
                raise InvalidNameError("the name of a subscription has no slash")
            check(name)
            check_spelling(name)
            return name
        except InvalidNameError as error:
            self._problem(f"{place}.Name", shown(name), f"a name that can be used ({error})")
            return ""


def shown(value: Any) -> str:
    """A value of the file, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
