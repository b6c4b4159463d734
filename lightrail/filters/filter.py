"""Filters of subscriptions, compiled from JSON.

    {"subject": "orders.*.created"}                      words of the subject, `*` one, `#` any number
    {"properties": {"priority": 4, "application-properties.colour": "red"}}    all of them equal
    {"sql": "colour = 'red' AND weight > 10"}            an expression (docs/filters.md)
    {"sql": "weight > @least", "parameters": {"@least": 10}}    with constants for its parameters
    {"selector": "JMSType = 'order'"}                    the same language under its JMS name
    {"rule": {"sql": "Colour = 'red'"}}                  a filter of Azure Service Bus (rules/rule_filter.py)
    {"all": [...]}, {"any": [...]}, {"not": {...}}       filters of filters

An object with several of these keys matches when all of them do. `not` matches every message that the filter
inside it does not match, also if its result is unknown; NOT inside an expression keeps an unknown result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.filters.errors import FilterError, shown
from lightrail.filters.logic import Test
from lightrail.filters.message import MessageView
from lightrail.filters.parameters import check_parameters, with_constants
from lightrail.filters.path import SUBJECT, Path, parse_path
from lightrail.filters.patterns import Like, check_pattern, compile_pattern, has_wildcard, share
from lightrail.filters.rules.rule_filter import compile_rule
from lightrail.filters.rules.values import NO_ID, NewId
from lightrail.filters.sql import Equality, compile_expression
from lightrail.model import limits

KEYS: Final = ("subject", "properties", "sql", "parameters", "selector", "rule", "all", "any", "not")


class Filter:
    """A compiled filter.

    `spec` is its JSON (None: every message matches), `paths` are the fields that it reads, `equality` is
    (path, term) if it only compares one field with one constant, None otherwise; the term None means that the
    field is absent. `guard` is an equality that holds for every matching message, None if none is known.
    `weight` is the largest number of operators, literals and fields that it evaluates for a message; eight
    words of a subject pattern count as one.
    """

    __slots__ = ("equality", "error", "guard", "is_heavy", "paths", "spec", "test", "weight")

    def __init__(
        self,
        spec: Any,
        test: Test,
        paths: Sequence[Path],
        equality: Equality | None = None,
        guard: Equality | None = None,
        weight: int = 1,
        is_heavy: bool = False,
    ) -> None:
        self.spec = spec
        self.test = test
        self.paths = tuple(dict.fromkeys(paths))
        self.equality = equality
        self.guard = guard or equality
        self.weight = weight
        self.is_heavy = is_heavy
        """Whether its cost may be far above its weight for some messages, as with LIKE."""
        self.error: Callable[[MessageView], str | None] | None = None
        """Of a rule of Azure Service Bus that has no result for some messages: the error for a message."""

    @property
    def is_always(self) -> bool:
        """Whether every message matches."""
        return self.test is EVERYTHING.test

    def matches(self, view: MessageView) -> bool:
        """Whether the message matches; an unknown result does not. Never raises."""
        return self.test(view) is True

    def __repr__(self) -> str:
        return f"Filter({self.spec!r})"


EVERYTHING: Final = Filter(None, lambda view: True, ())
"""The filter that matches every message."""


def compile_filter(spec: Mapping[str, Any] | None, new_id: NewId = lambda: NO_ID) -> Filter:
    """Compile the JSON of a filter, None for one that matches every message.

    Raises FilterError with the expected and found values and the position.

    Args:
        new_id: makes the uuids of rules that call newid(); by default all are zero, to check a filter.
    """
    if spec is None:
        return EVERYTHING
    compiler = _Compiler(new_id)
    made = compiler.object(spec, 1)
    share(compiler.likes)
    return made


@dataclass(eq=False, repr=False)
class _Compiler:
    """Compiles one filter, and counts its operators, literals and fields."""

    _new_id: NewId
    _nodes: int = 0
    _weight: int = 0
    likes: list[Like] = field(default_factory=list)

    def object(self, spec: Any, depth: int) -> Filter:
        if not isinstance(spec, Mapping):
            raise FilterError(f"an object with {_listed(KEYS)}", shown(spec))
        unknown = next((key for key in spec if key not in KEYS), None)
        if unknown is not None:
            raise FilterError(f"no other keys than {_listed(KEYS)}", shown(unknown))
        if not spec:
            raise FilterError(f"an object with at least one of {_listed(KEYS)}", "an empty object")
        if depth > limits.FILTER_DEPTH_MAX:
            raise FilterError(f"at most {limits.FILTER_DEPTH_MAX} filters inside one another", "more")
        parts: list[Filter] = []
        if "parameters" in spec and "sql" not in spec:
            raise FilterError("sql beside parameters", "no sql")
        parameters = check_parameters(spec["parameters"]) if "parameters" in spec else None
        for key, value in spec.items():
            if key == "parameters":
                continue
            self._count(1)
            try:
                parts.append(self._part(key, value, depth, parameters))
            except FilterError as error:
                raise error.within(key) from None
        return parts[0] if len(parts) == 1 else _joined(_specs(parts), parts)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > limits.FILTER_NODES_MAX:
            raise FilterError(f"at most {limits.FILTER_NODES_MAX} filters and properties", "more")

    def _weigh(self, weight: int) -> None:
        self._weight += weight
        if self._weight > limits.FILTER_WEIGHT_MAX:
            most = limits.FILTER_WEIGHT_MAX
            raise FilterError(f"at most {most} operators, literals and fields in all of a filter", "more")

    def _part(self, key: str, value: Any, depth: int, parameters: Mapping[str, Any] | None) -> Filter:
        if key == "subject":
            pattern = subject_filter(_text(value))
            self._weigh(pattern.weight)
            return pattern
        if key == "properties":
            return self._properties(value)
        if key in ("sql", "selector"):
            part = {key: value}
            text = _text(value)
            if key == "sql" and parameters is not None:
                text = with_constants(text, parameters)
                part["parameters"] = dict(parameters)
            expression = compile_expression(text)
            self._weigh(expression.weight)
            self.likes += expression.likes
            test, paths = expression.test, expression.paths
            return Filter(
                part,
                test,
                paths,
                expression.equality,
                expression.guard,
                expression.weight,
                bool(expression.likes),
            )
        if key == "rule":
            return self._rule(value)
        if key == "not":
            return _inverse(self.object(value, depth + 1))
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise FilterError("a list of one or more filters", shown(value))
        parts: list[Filter] = []
        for index, item in enumerate(value):
            try:
                parts.append(self.object(item, depth + 1))
            except FilterError as error:
                raise error.within(str(index)) from None
        spec = {key: [part.spec for part in parts]}
        return _joined(spec, parts) if key == "all" or len(parts) == 1 else _either(spec, parts)

    def _rule(self, value: Any) -> Filter:
        made = compile_rule(value, self._new_id)
        self._weigh(made.weight)
        self.likes += made.likes
        is_heavy = bool(made.likes or made.compiler.loose_likes)
        test = EVERYTHING.test if made.always else made.test
        found = Filter(
            {"rule": dict(value)}, test, made.compiler.paths, made.equality, made.guard, made.weight, is_heavy
        )
        found.error = made.error
        return found

    def _properties(self, value: Any) -> Filter:
        if not isinstance(value, Mapping) or not value:
            raise FilterError("an object of one or more paths and values", shown(value))
        self._count(len(value))
        equalities: list[Equality] = []
        for text, constant in value.items():
            if not isinstance(text, str):
                raise FilterError("the path of a field", shown(text))
            path = parse_path(text)
            if not (constant is None or isinstance(constant, str | bool | int | float)):
                raise FilterError("a string, a number, a boolean or null", shown(constant), part=text)
            equalities.append((path, constant))
        tests = [equality_test(path, constant) for path, constant in equalities]
        only = equalities[0] if len(equalities) == 1 else None
        test = tests[0] if only else _all_true(tests)
        # The absence of a field is a weak guard: most fields are absent.
        guard = next((each for each in equalities if each[1] is not None), equalities[0])
        paths = [path for path, _ in equalities]
        return Filter({"properties": dict(value)}, test, paths, only, guard, len(equalities))


def subject_filter(pattern: str) -> Filter:
    """The filter of a subject pattern. Raises FilterError."""
    words = check_pattern(pattern)
    matches = compile_pattern(pattern)
    # A pattern of one plain word is equal to one subject only; `a.b` is equal to `a/b` too.
    equality = (SUBJECT, pattern) if len(words) == 1 and not has_wildcard(words) else None
    weight = 1 + len(words) // 8

    def test(view: MessageView) -> bool:
        subject = view.subject_words()
        if len(subject) > 8:
            view.spent += len(subject) << 1
        return matches(subject)

    return Filter({"subject": pattern}, test, (SUBJECT,), equality, weight=weight)


def equality_test(path: Path, constant: Any) -> Callable[[MessageView], bool]:
    """The filter `field = constant`: numbers compare by value, true and 1 differ, None means absent."""
    if type(constant) is bool:
        return lambda view: view.term(path) is constant

    def test(view: MessageView) -> bool:
        value = view.term(path)
        return type(value) is not bool and bool(value == constant)

    return test


def failing(filter: Filter) -> Filter:
    """The filter that matches the messages for which this one, of a rule, has no result."""
    error = filter.error
    assert error is not None
    spec = {"not": filter.spec}
    return Filter(
        spec, lambda view: error(view) is not None, filter.paths, None, None, filter.weight, filter.is_heavy
    )


def joined(parts: Sequence[Filter]) -> Filter:
    """The filter that matches when all of one or more do."""
    if len(parts) == 1:
        return parts[0]
    return _joined({"all": [part.spec for part in parts]}, parts)


def _joined(spec: Any, parts: Sequence[Filter]) -> Filter:
    equality = parts[0].equality if len(parts) == 1 else None
    guard = next((part.guard for part in parts if part.guard), None)
    test = _all_true([part.test for part in parts])
    return Filter(spec, test, _paths(parts), equality, guard, _weight(parts), _is_heavy(parts))


def _either(spec: Any, parts: Sequence[Filter]) -> Filter:
    return Filter(spec, _some(parts), _paths(parts), None, None, _weight(parts), _is_heavy(parts))


def _paths(parts: Sequence[Filter]) -> list[Path]:
    return [path for part in parts for path in part.paths]


def _weight(parts: Sequence[Filter]) -> int:
    return 1 + sum(part.weight for part in parts)


def _is_heavy(parts: Sequence[Filter]) -> bool:
    return any(part.is_heavy for part in parts)


def _specs(parts: Sequence[Filter]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.spec.items()}


def _all_true(tests: Sequence[Test]) -> Test:
    def test(view: MessageView) -> bool:
        for each in tests:  # noqa: SIM110 -- all() with a generator takes twice as long
            if each(view) is not True:
                return False
        return True

    return test


def _some(parts: Sequence[Filter]) -> Test:
    tests = [part.test for part in parts]

    def test(view: MessageView) -> bool:
        for each in tests:  # noqa: SIM110 -- any() with a generator takes twice as long
            if each(view) is True:
                return True
        return False

    return test


def _inverse(part: Filter) -> Filter:
    inner = part.test
    spec = {"not": part.spec}
    return Filter(
        spec, lambda view: inner(view) is not True, part.paths, None, None, part.weight, part.is_heavy
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise FilterError("a string", shown(value))
    return value


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys[:-1]) + " or " + keys[-1]
