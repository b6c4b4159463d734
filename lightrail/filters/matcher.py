"""Matcher: many subscriptions over one message; those that compare a field with a constant are found by one
look-up.

Filters that are one equality are grouped by their path: the field is extracted once and its value looked up
in a table, however many subscriptions compare it. Filters that need an equality and other conditions are in
the tables, too, and are evaluated only when the equality holds. The others are evaluated one by one. The set
of matching filters is a number with one bit for each entry, and the tuple of their keys is made once for each
number.

Looks: the budget of filters in one turn of a loop. It is counted and not timed, so that every run is the
same.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lightrail.filters.logic import Test
from lightrail.filters.message import MessageView, extract
from lightrail.filters.path import FOLDED, Path
from lightrail.filters.terms import term
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.filters.filter import Filter

BASE: Final = 20
"""Fixed units of one look, for the view and the loop, beside those of the filter and the message."""
COMPILING: Final = 50
"""Units of compiling one operator, literal or field of a filter."""


@dataclass(slots=True, eq=False, repr=False)
class Looks:
    """A budget in units of about 0.1 microseconds. A look is never interrupted, so a turn may exceed it by
    one look."""

    left: int = limits.LOOKS_OF_A_TURN
    spent: int = 0
    """Units spent in all earlier turns."""

    @property
    def is_used(self) -> bool:
        """Whether any unit was spent in this turn."""
        return self.left != limits.LOOKS_OF_A_TURN

    def begin(self) -> None:
        """Begin a turn."""
        self.spent += limits.LOOKS_OF_A_TURN - self.left
        self.left = limits.LOOKS_OF_A_TURN


def unlimited() -> Looks:
    """A budget without a bound, for tests and commands."""
    return Looks(1 << 62)


Key = TypeVar("Key")

Asked = tuple[int, Test, int]
"""The bit of a filter, its test, and the cost of a look without the part that depends on the message."""
Found = tuple[int, tuple[Asked, ...]]
"""By value: the bits of the filters that it decides, and the filters that have to be evaluated."""
_TOGETHER: Final = 1_000
"""Units that filters may spend between two checks of the budget."""
_SPENT: Final = 10_000
"""Units, of those that depend on the message, that filters may spend between two checks."""
_GROUPS_LIGHT: Final = 64

_NOTHING: Final[Found] = (0, ())
_TRUE: Final = ("boolean", True)
_FALSE: Final = ("boolean", False)


def _table_key(value: Any) -> Any:
    """A key that distinguishes True from 1, which are the same key of a dict."""
    return value if type(value) is not bool else _TRUE if value else _FALSE


def _asked(bit: int, filter: "Filter") -> Asked:
    return bit, filter.test, 2 + 2 * filter.weight


def _matched(asked: Iterable[Asked], view: MessageView, looks: Looks) -> Generator[None, None, int]:
    """The bits of the matching filters. The cost is counted for several filters at once."""
    matched = together = 0
    before = view.spent
    most = before + _SPENT
    for bit, test, cost in asked:
        if test(view) is True:
            matched |= bit
        together += cost
        if together >= _TOGETHER or view.spent > most:
            looks.left -= together + view.spent - before
            together = 0
            before = view.spent
            most = before + _SPENT
            if looks.left <= 0:
                yield
    looks.left -= together + view.spent - before
    return matched


class Matcher(Generic[Key]):
    """The filters of all subscriptions of one name. A matcher is immutable; a changed set gets a new one."""

    def __init__(self, entries: Sequence[tuple[Key, "Filter | None"]]) -> None:
        """`entries` are (key, filter); None matches every message. Keys may repeat and need not be hashable:
        `targets` returns each key once, in the order of the entries."""
        self._keys = [key for key, _ in entries]
        self._always = 0
        self._tests: list[Asked] = []
        groups: dict[Path, dict[Any, Found]] = {}
        for index, (_, filter) in enumerate(entries):
            bit = 1 << index
            if filter is None or filter.spec is None:
                self._always |= bit
            elif filter.guard is not None:
                path, constant = filter.guard
                table = groups.setdefault(path, {})
                sure, asked = table.get(_table_key(constant), _NOTHING)
                if filter.equality is not None:
                    sure |= bit
                else:
                    asked = (*asked, _asked(bit, filter))
                table[_table_key(constant)] = sure, asked
            else:
                self._tests.append(_asked(bit, filter))
        self._groups = list(groups.items())
        self._single: tuple[Path, dict[Any, int]] | None = None
        if len(groups) == 1 and not self._tests:
            (path, table) = self._groups[0]
            if path.section != FOLDED and not any(asked for _, asked in table.values()):
                self._single = path, {constant: sure for constant, (sure, _) in table.items()}
        self._targets: dict[int, tuple[Key, ...]] = {}
        self._kept = 0
        """Number of keys in all of `_targets`."""

        costs = sum(cost for _, _, cost in self._tests)
        if any(filter is not None and filter.is_heavy for _, filter in entries):
            costs = _TOGETHER + 1
        for table in groups.values():
            costs += max(sum(cost for _, _, cost in asked) for _, asked in table.values())
        self.is_light = len(groups) <= _GROUPS_LIGHT and costs <= _TOGETHER
        """Whether `targets` is so cheap for every message that its cost is not counted."""

    @property
    def looks_at_messages(self) -> bool:
        """False when every message has the same targets, so that no view is needed."""
        return bool(self._groups or self._tests)

    def targets(self, view: MessageView) -> tuple[Key, ...]:
        """The keys of the entries that match, each once. Equal sets are the same tuple (`is`), as long as
        there are no more than TARGET_SETS_MAX different ones."""
        matched = self._always
        if self._single is not None:
            # The most common case: one field decides, and the view need not cache its term.
            path, table = self._single
            value = extract(view.data, path)
            if type(value) is not str:
                value = _table_key(term(value))
            matched |= table.get(value, 0)
        else:
            for path, values in self._groups:
                sure, asked = values.get(_table_key(view.term(path)), _NOTHING)
                matched |= sure
                for bit, test, _ in asked:
                    if test(view) is True:
                        matched |= bit
            for bit, test, _ in self._tests:
                if test(view) is True:
                    matched |= bit
        targets = self._targets.get(matched)
        return self._remember(matched) if targets is None else targets

    def search(self, view: MessageView, looks: Looks) -> Generator[None, None, tuple[Key, ...]]:
        """As `targets`; yields when the looks are used up, and continues with those of the next turn."""
        matched = self._always
        for path, values in self._groups:
            sure, asked = values.get(_table_key(view.term(path)), _NOTHING)
            matched |= sure
            looks.left -= BASE
            if looks.left <= 0:
                yield
            if asked:
                matched |= yield from _matched(asked, view, looks)
        if self._tests:
            matched |= yield from _matched(self._tests, view, looks)
        targets = self._targets.get(matched)
        return self._remember(matched) if targets is None else targets

    def _remember(self, matched: int) -> tuple[Key, ...]:
        keys = (key for index, key in enumerate(self._keys) if matched >> index & 1)
        targets = tuple(dict.fromkeys(keys))
        self._kept += len(targets)
        if len(self._targets) >= limits.TARGET_SETS_MAX or self._kept > limits.TARGETS_KEPT_MAX:
            self._targets.clear()
            self._kept = len(targets)
        self._targets[matched] = targets
        return targets
