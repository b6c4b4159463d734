"""Directory: one process's view of all names, subscriptions and permissions, as of its last refresh.

`refresh()` applies the changes since the last call. It is called before each decision (an attach, a batch
for a router, a request) and every limits.DIRECTORY_POLL_MS; it costs microseconds without changes. Code that
acts on changes registers a function with `listen`, which is called with the changed names, routers and users.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from lightrail.cluster.changes import ChangeFollower
from lightrail.cluster.coordinator import KeySpace
from lightrail.cluster.entries import HISTORY, Entry
from lightrail.cluster.history import History
from lightrail.model import names
from lightrail.model.clock import Timetable, wall_ms
from lightrail.model.policy import QUEUE, Policy, Role
from lightrail.namespace.records import (
    NAMES,
    PERMISSIONS,
    SUBSCRIPTIONS,
    Name,
    Permission,
    Right,
    Subscription,
    dead_letter_policy,
    undefined,
)

SINGLY_MAX: Final = 64
"""Changes that are inserted one by one; more of them are merged in at once."""
_BEHIND: Final = "\1"
"""Sorts behind a name and all names below it, since names have no control characters."""


@dataclass(slots=True, eq=False, repr=False)
class SortedNames:
    """All names with a role as a tree lists them, where a/b precedes a!b.

    The order is made at its first use and kept from then on, so that a page of a list costs as much as it
    shows, however many names there are.

    Args:
        names: returns the names that exist now.
    """

    _names: Callable[[], Iterable[str]]
    _keys: list[str] | None = None
    """With NUL for each slash; None before the first use."""
    _changed: dict[str, bool] = field(default_factory=dict)
    """By key, whether a name that was created or deleted exists."""

    def note(self, name: str, exists: bool) -> None:
        """Notes that a name was created or deleted."""
        if self._keys is not None:
            self._changed[_key(name)] = exists

    def page(self, prefix: str, after: str, count: int, *, skips_below: bool = False) -> list[str]:
        """The next names at and below a prefix.

        Args:
            prefix: empty for all names.
            after: the names behind this one, which need not exist; empty for the first ones.
            skips_below: whether the names below `after` are left out, too.
        """
        keys = self._current()
        start, end = self._range(keys, prefix)
        if after:
            key = _key(after)
            start = max(start, bisect_left(keys, key + _BEHIND) if skips_below else bisect_right(keys, key))
        return [key.replace("\0", "/") for key in islice(keys, start, min(end, start + count))]

    def count(self, prefix: str) -> int:
        """Number of names at and below a prefix."""
        start, end = self._range(self._current(), prefix)
        return end - start

    def _range(self, keys: list[str], prefix: str) -> tuple[int, int]:
        if not prefix:
            return 0, len(keys)
        key = _key(prefix)
        return bisect_left(keys, key), bisect_left(keys, key + _BEHIND)

    def _current(self) -> list[str]:
        keys = self._keys
        if keys is None:
            keys = self._keys = sorted(map(_key, self._names()))
        elif len(self._changed) <= SINGLY_MAX:
            for key, exists in self._changed.items():
                index = bisect_left(keys, key)
                is_there = index < len(keys) and keys[index] == key
                if is_there and not exists:
                    del keys[index]
                elif exists and not is_there:
                    insort(keys, key)
        else:
            changed = self._changed
            keys = self._keys = [key for key in keys if key not in changed]
            keys += sorted(key for key, exists in changed.items() if exists)
            # Two sorted runs, which are merged.
            keys.sort()
        self._changed.clear()
        return keys


def _key(name: str) -> str:
    return name.replace("/", "\0")


@dataclass(slots=True)
class Changes:
    """Changes that one refresh found. A name in `names` that the directory does not have was deleted."""

    names: dict[str, Name | None] = field(default_factory=dict)
    """Records before the change by name; None for a new name."""
    routers: set[str] = field(default_factory=set)
    """Routers whose subscriptions changed."""
    users: set[str] = field(default_factory=set)
    """Users whose permissions changed."""


Listener = Callable[[Changes], None]
PREFIXES: Final = (NAMES, SUBSCRIPTIONS, PERMISSIONS, HISTORY)
"""Of the keys that the directory follows."""


class Directory:
    """All names of the installation in memory.

    Args:
        auto_create: whether a name becomes a queue at its first use if no policy above it decides.
        now_ms: milliseconds since 1970; tests inject it.
    """

    def __init__(
        self, space: KeySpace, *, auto_create: bool = True, now_ms: Callable[[], int] = wall_ms
    ) -> None:
        self._follower: ChangeFollower[Changes] = ChangeFollower(
            space, self._keys, self._take, PREFIXES, HISTORY
        )
        self._auto_create = auto_create
        self._now_ms = now_ms
        self._by_name: dict[str, Name] = {}
        self._sorted = SortedNames(lambda: self._by_name)
        self._spellings: dict[str, set[str]] = {}
        """By the form in small letters, the names, and subscriptions as ROUTER//ID, that have others."""
        self._subscriptions: dict[str, dict[str, Subscription]] = {}
        self.filter_bytes = 0
        """Sum of `Subscription.filter_bytes`."""
        self._subscriptions_to: dict[str, dict[tuple[str, str], None]] = {}
        """By target, the routers and ids of subscriptions."""
        self._permissions: dict[str, dict[str, Permission]] = {}
        self._expiring: Timetable[str] = Timetable()
        """Names that expire."""
        self._expired: dict[str, Name] = {}
        """Expired names that were not deleted yet."""
        self.history = ""
        """Id of the coordinator's history. A name that another history lacks need not have been deleted.
        """

    @property
    def revision(self) -> int:
        """Revision of the coordinator as of the last refresh."""
        return self._follower.revision

    def listen(self, listener: Listener) -> None:
        """Registers `listener`, which is called with later changes."""
        self._follower.listen(listener)

    # --- applying changes ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Applies changes. Raises CoordinatorError if the coordinator can't be read now."""
        changes = Changes()
        self._follower.read(changes)
        if self._expiring:
            self._expire(changes)
        if changes.names or changes.routers or changes.users:
            self._follower.tell(changes)

    def _begin_history(self, entry: Entry, changes: Changes) -> None:
        """Continues the known names under the id of a new history. Raises CoordinatorError."""
        self.history = History.decode(entry).id
        for name, record in self._by_name.items():
            changes.names.setdefault(name, record)
            self._by_name[name] = replace(record, history=self.history)

    def _keys(self) -> Iterator[str]:
        yield from (NAMES + name for name in self._by_name)
        yield from (each.key for each in self.every_subscription())
        yield from (each.key for each in self.every_permission())

    def _take(self, entry: Entry, changes: Changes) -> None:
        key = entry.key
        if key == HISTORY:
            self._begin_history(entry, changes)
        elif key.startswith(NAMES):
            name = key.removeprefix(NAMES)
            # First, as a name whose entry can't be read stays as it was.
            record = None if entry.value is None else Name.read(entry, self.history)
            before = self._by_name.pop(name, None)
            if (before is None) is not (record is None):
                self._note(name, record is not None)
            self._expiring.drop(name)
            self._expired.pop(name, None)
            changes.names.setdefault(name, before)
            if record is not None:
                self._by_name[name] = record
                if (expires := record.policy.expires_at_ms) is not None:
                    self._expiring.set(name, expires)
        elif key.startswith(SUBSCRIPTIONS):
            router, _, id = (path := key.removeprefix(SUBSCRIPTIONS)).partition("//")
            made = None if entry.value is None else Subscription.read(entry)
            group = self._subscriptions.setdefault(router, {})
            if (former := group.pop(id, None)) is not None:
                self.filter_bytes -= former.filter_bytes
                others = self._subscriptions_to[former.target]
                del others[router, id]
                if not others:
                    del self._subscriptions_to[former.target]
            if made is not None:
                self.filter_bytes += made.filter_bytes
                group[id] = made
                self._subscriptions_to.setdefault(made.target, {})[router, id] = None
            self._note_spelling(path, made is not None)
            if not group:
                del self._subscriptions[router]
            changes.routers.add(router)
        elif key.startswith(PERMISSIONS):
            permission = Permission.read(entry._replace(value=entry.value or '{"rights":[]}'))
            rights = self._permissions.setdefault(permission.user, {})
            rights.pop(permission.prefix, None)
            if entry.value is not None:
                rights[permission.prefix] = permission
            if not rights:
                del self._permissions[permission.user]
            changes.users.add(permission.user)

    def _expire(self, changes: Changes) -> None:
        """Treat an expired name as deleted, even before its entry is."""
        for name in self._expiring.take_due(self._now_ms()):
            gone = self._expired[name] = self._by_name.pop(name)
            self._note(name, False)
            changes.names.setdefault(name, gone)

    def _note(self, name: str, exists: bool) -> None:
        """A name was created or deleted."""
        self._sorted.note(name, exists)
        self._note_spelling(name, exists)

    def _note_spelling(self, text: str, exists: bool) -> None:
        small = names.folded(text)
        if exists and small != text:
            self._spellings.setdefault(small, set()).add(text)
        elif small in self._spellings:
            self._spellings[small].discard(text)
            if not self._spellings[small]:
                del self._spellings[small]

    # --- names -----------------------------------------------------------------------------------------

    def get(self, name: str) -> Name:
        """The record of a name. `NAME/$dlq` is a queue if NAME is a queue; a name without an entry has role
        none."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        if names.is_dead_letter(name):
            owner = self._by_name.get(names.owner(name))
            if owner is not None and owner.role is Role.QUEUE:
                above = self._by_name.get(names.transferring(owner.name), owner)
                policy = dead_letter_policy(above.policy)
                return Name(name, policy, owner.created, owner.revision, history=owner.history)
        return undefined(name)

    def find(self, name: str) -> Name | None:
        """The record of a name; None for a name without an entry."""
        return self._by_name.get(name)

    def spelled(self, name: str) -> list[str]:
        """The names that exist and differ from this one in the case of ASCII letters alone, or not at all."""
        small = names.folded(name)
        found = sorted(self._spellings.get(small, ()))
        return [small, *found] if small in self._by_name else found

    def resolve(self, name: str) -> str:
        """The name that a client means to which case makes no difference.

        The name itself if it has a role, or if none has that differs in the case of ASCII letters alone; for
        `NAME/$dlq` by NAME. A name with a policy alone, for names below, is not meant. Raises
        InvalidNameError: there are several others.
        """
        owner = names.owner(name)
        if self.get(owner).role is not Role.NONE or self.get(name).role is not Role.NONE:
            return name
        found = [each for each in self.spelled(owner) if self.get(each).role is not Role.NONE]
        if len(found) > 1:
            raise names.InvalidNameError(
                f"{owner} is the name of {' and '.join(found)} without regard to case; write one of them as "
                "it is"
            )
        return found[0] + name[len(owner) :] if found else name

    def stored_revision(self, name: str) -> int:
        """Revision of the entry of a name, also of an expired one; 0 without an entry."""
        found = self._by_name.get(name) or self._expired.get(name)
        return 0 if found is None else found.revision

    def below(self, prefix: str) -> Iterator[Name]:
        """Every name that has a role and is `prefix` or below it; all names for the empty prefix."""
        if prefix:
            yield from self.page(prefix, "", self.count(prefix))
        else:
            yield from self._by_name.values()

    def page(self, prefix: str, after: str, count: int, *, skips_below: bool = False) -> list[Name]:
        """The next names at and below a prefix, in the order of a tree; see SortedNames.page."""
        found = self._sorted.page(prefix, after, count, skips_below=skips_below)
        return [self._by_name[name] for name in found]

    def count(self, prefix: str = "") -> int:
        """Names that have a role, at and below a prefix."""
        return self._sorted.count(prefix) if prefix else len(self._by_name)

    def template(self, name: str, *, explicit: bool = False) -> Policy | None:
        """The policy for a name at its first use; None if names are not created by use.

        The nearest name above with `auto_create` decides, or without one the installation's setting. The
        nearest name above with a template supplies the policy.

        Args:
            explicit: names are created where a name above says so, whatever the installation's setting is.
        """
        policies = [self._by_name[above].policy for above in names.above(name) if above in self._by_name]
        default = self._auto_create and not explicit
        says = next((p["auto_create"] for p in policies if p["auto_create"] is not None), default)
        if not says:
            return None
        template = next((p["template"] for p in policies if p["template"] is not None), None)
        return QUEUE if template is None else Policy(Role.QUEUE, dict(template))

    def expired(self) -> list[Name]:
        """Expired names whose entries still exist, for the sweeper to delete."""
        return list(self._expired.values())

    # --- subscriptions ---------------------------------------------------------------------------------

    def subscriptions(self, router: str) -> list[Subscription]:
        """Subscriptions of a router, in the order of their creation."""
        return list(self._subscriptions.get(router, {}).values())

    def subscription(self, router: str, id: str) -> Subscription | None:
        return self._subscriptions.get(router, {}).get(id)

    def resolve_subscription(self, router: str, id: str) -> str:
        """The id that a client means to which case makes no difference; see `resolve`."""
        there = self._subscriptions.get(router, {})
        if id in there:
            return id
        small, path = names.folded(id), f"{router}//"
        spelled = (each for each in self._spellings.get(names.folded(path + id), ()) if each.startswith(path))
        found = sorted({small, *(each.removeprefix(path) for each in spelled)} & there.keys())
        if len(found) > 1:
            raise names.InvalidNameError(
                f"{id} is the name of the subscriptions {' and '.join(found)} of {router} without regard to "
                "case; write one of them as it is"
            )
        return found[0] if found else id

    def subscriptions_to(self, target: str) -> list[Subscription]:
        """Subscriptions of all routers whose target is this name or URL."""
        return [self._subscriptions[router][id] for router, id in self._subscriptions_to.get(target, ())]

    def every_subscription(self) -> Iterator[Subscription]:
        for group in self._subscriptions.values():
            yield from group.values()

    # --- rights ----------------------------------------------------------------------------------------

    def permissions(self, user: str) -> list[Permission]:
        """Permissions of a user."""
        return list(self._permissions.get(user, {}).values())

    def every_permission(self) -> Iterator[Permission]:
        for group in self._permissions.values():
            yield from group.values()

    def rights(self, user: str, name: str) -> frozenset[Right]:
        """Rights of a user on a name: all that are granted at the name or at any name above it."""
        granted = self._permissions.get(user)
        if granted is None:
            return frozenset()
        found = set(granted[""].rights) if "" in granted else set()
        for prefix in (name, *names.above(name)):
            if prefix in granted:
                found |= granted[prefix].rights
        return frozenset(found)
