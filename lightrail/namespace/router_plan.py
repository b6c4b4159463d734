"""Plan of a router: finds the queues of each message of a batch; void when a name on the path changes.

Router nodes: a graph of routers, which is walked to find the queues of a message.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from lightrail.amqp.decoder import Buffer
from lightrail.amqp.lifetime import life_of
from lightrail.amqp.values import DecodeError
from lightrail.filters.errors import EvaluationError
from lightrail.filters.filter import Filter
from lightrail.filters.matcher import Looks, Matcher, unlimited
from lightrail.filters.message import MessageView
from lightrail.filters.rules.rule_action import RuleAction
from lightrail.model import limits
from lightrail.model.names import dead_letter_name
from lightrail.model.policy import Policy
from lightrail.namespace.ages import NEVER, LivingCopy, life_of_copy, living
from lightrail.namespace.copies import Choose, Copies, SizeBound
from lightrail.namespace.failures import Noting, noted
from lightrail.namespace.forwarding import ChainEnd
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.namespace.rules import AnyAction

_STEP: Final = 10
_ACTION: Final = 100
"""Cost of following one subscription, and of running its action, in units of filters/matcher.py."""


@dataclass(slots=True, eq=False, repr=False)
class Branch:
    """An edge that is followed for each message: behind an action, or into a router that chooses."""

    action: "AnyAction | Noting | None"
    target: "str | RouterNode"
    failing_at: str | None = None
    """The queue whose dead letter a message becomes for which the action has no result; None for none."""


Key = str | Branch


class RouterNode:
    """A router and the targets of its subscriptions, including those of plain routers behind it."""

    __slots__ = ("chooses", "entries", "matcher", "paths")

    def __init__(self, chooses: bool, entries: Sequence[tuple[Key, Filter | None]], paths: int) -> None:
        self.chooses = chooses
        self.entries = entries
        self.matcher: Matcher[Key] = Matcher(entries)
        self.paths = paths
        """Number of paths from here to queues."""

    def spread(
        self, view: MessageView, copies: Copies, rule: str | None = None
    ) -> Generator[None, None, bool]:
        """Adds a message for its queues to `copies`; returns False if there are none. Yields when the looks
        are used up.

        Args:
            rule: the name of the last rule of Azure Service Bus on the way whose action has made the message.
        """
        keys: Sequence[Key] = yield from self.matcher.search(view, copies.looks)
        if self.chooses:
            left = list(keys)
            while left:
                if (yield from _follow(left.pop(copies.choose(len(left))), view, copies, rule)):
                    return True
            return False
        found = False
        for key in keys:
            if (yield from _follow(key, view, copies, rule)):
                found = True
        return found


def _follow(key: Key, view: MessageView, copies: Copies, rule: str | None) -> Generator[None, None, bool]:
    looks, failing_at = copies.looks, None
    looks.left -= _STEP + (len(view.data) >> 9)
    if type(key) is str:
        queue: str | RouterNode = key
    else:
        assert isinstance(key, Branch)
        queue, failing_at = key.target, key.failing_at
        if key.action is not None:
            message = bytes(view.data)
            try:
                view = MessageView(_changed(key.action, view.data, message, copies.came_ms))
                rule = key.action.rule if isinstance(key.action, RuleAction) else rule
            except EvaluationError as error:
                if failing_at is None:
                    return False
                rule = None
                queue = dead_letter_name(failing_at)
                view = MessageView(noted(message, failing_at, str(error)))
            looks.left -= _ACTION + 2 * key.action.weight + (len(view.data) >> 6)
    if looks.left <= 0:
        yield
    if isinstance(queue, RouterNode):
        return (yield from queue.spread(view, copies, rule))
    data = view.data
    if queue in copies.bounds and len(data) > copies.bounds[queue].bytes_max:
        return copies.add_bounded(data, queue, failing_at, rule)
    # A LivingCopy stays what it is.
    content = data if isinstance(data, bytes) else bytes(data)
    copies.queues.setdefault(content if rule is None else (content, rule), {})[queue] = None
    return True


def _changed(action: "AnyAction | Noting", data: Buffer, message: bytes, came_ms: int) -> bytes:
    """What an action makes of a message, which keeps the time to live that a former action has set."""
    if not isinstance(action, RuleAction):
        changed = action.apply(message)
        return living(changed, data.life_ms) if isinstance(data, LivingCopy) else changed
    changed = action.apply(message, came_ms)
    life_ms = life_of_copy(data)
    if action.sets_life:
        # A message with malformed sections is as it was sent.
        with suppress(DecodeError):
            found = life_of(changed)
            life_ms = NEVER if found is None else found
    return changed if life_ms is None else living(changed, life_ms)


_NOWHERE: Final[frozenset[str]] = frozenset()
_LIGHT: Final = 30
"""Cost of a message beside its filters, in units of filters/matcher.py."""

Queues = frozenset[str]
GroupKey = Queues | tuple[Queues, int]
"""Queues, and the time to live of copies that have one."""


@dataclass(slots=True, eq=False, repr=False)
class CopyGroup:
    """Messages of one batch for the same queues: their indices in the batch, and their bytes.

    All of them are a LivingCopy with the same time to live, or none is one.
    """

    queues: Queues
    indices: list[int]
    """Rising indices; an index occurs twice if an action made a second message for the same queues."""
    payloads: list[bytes]


class Routed(NamedTuple):
    """The queues of each message of a batch."""

    groups: list[CopyGroup]
    """Groups in the order in which they have to be sent."""
    unroutable: Sequence[int]
    """Indices of the messages without a queue."""


@dataclass(slots=True, eq=False, repr=False)
class Walk:
    """Routing of one batch, which pauses when the looks of a turn are used up."""

    plan: "Plan"
    _steps: Generator[None, None, Routed]
    routed: Routed | None = None
    """The result, once `route_more` has returned True."""

    def route_more(self) -> bool:
        """Routes further messages; returns True when all are routed. Never raises for a message's content."""
        if self.routed is None:
            try:
                next(self._steps)
            except StopIteration as end:
                self.routed = end.value
        return self.routed is not None


@dataclass(slots=True, eq=False, repr=False)
class Plan:
    """A flattened router, which routes batches until a name on the path changes."""

    _node: RouterNode | None
    _choose: Choose
    policy: Policy
    """Policy of the router."""
    names: frozenset[str]
    """Names that the plan depends on; a change of any of them makes it void."""
    until_ms: int | None
    """Time at which the first subscription on the path expires, or None."""
    problem: Refusal | None
    """Why no message can be routed; None if messages can."""
    no_local: Mapping[str, str]
    """Container-ids whose messages a subscription does not accept, by its queue."""
    ages_ms: Mapping[str, int]
    """Age at which messages expire, by queue, or NEVER; queues without one are missing."""
    forwarded: Mapping[str, ChainEnd] = field(default_factory=dict)
    """Queues at the ends of chains of queues that forward; see `at_sources`."""
    bounds: Mapping[str, SizeBound] = field(default_factory=dict)
    """See Copies."""
    _known: dict[int, tuple[Sequence[Key], Queues | None]] = field(default_factory=dict)
    """Queues by identity of the matcher's result, or None where edges have to be followed."""
    _known_kept: int = 0
    """Number of keys in all of `_known`."""
    _sets: dict[tuple[str, ...], Queues] = field(default_factory=dict)
    _sets_kept: int = 0
    """Number of queues in all of `_sets`."""
    _fixed: Queues | None = None
    _is_light: bool = False

    def __post_init__(self) -> None:
        if self._node is not None and all(type(key) is str for key, _ in self._node.entries):
            self._is_light = self._node.matcher.is_light
            if not self._node.chooses and not self._node.matcher.looks_at_messages:
                self._fixed = frozenset(str(key) for key, _ in self._node.entries)

    def at_sources(self, queues: Queues) -> Queues:
        """The queues that store messages which some of these refuse: for an end of a chain, its source."""
        forwarded = self.forwarded
        return frozenset(forwarded[each].source if each in forwarded else each for each in queues)

    def forwards(self, queues: Iterable[str]) -> bool:
        """Whether one of these queues is the end of a chain."""
        return not self.forwarded.keys().isdisjoint(queues)

    @property
    def is_empty(self) -> bool:
        """Whether no queue can be reached."""
        return self._node is None

    def route(self, payloads: list[bytes], came_ms: int = 0) -> Routed:
        """Routes a batch in one turn."""
        walk = self.begin(payloads, unlimited(), came_ms)
        assert walk.route_more()
        assert walk.routed is not None
        return walk.routed

    def at_once(self, payloads: list[bytes], looks: Looks) -> Routed | None:
        """Routes a batch if that is cheap; returns None if it needs a walk (`begin`)."""
        if self._fixed is not None:
            return Routed([CopyGroup(self._fixed, list(range(len(payloads))), payloads)], ())
        if self._node is None:
            return Routed([], range(len(payloads)))
        if self._is_light:
            cost = _LIGHT * len(payloads) + (sum(map(len, payloads)) >> 2)
            if cost <= looks.left:
                looks.left -= cost
                return self._light(self._node, payloads)
        return None

    def _light(self, node: RouterNode, payloads: list[bytes]) -> Routed:
        """Routes a batch where a message costs next to nothing and only queues lie behind the router."""
        groups: list[CopyGroup] = []
        unroutable: list[int] = []
        by_queues: dict[GroupKey, CopyGroup] = {}
        by_queue: dict[str, GroupKey] = {}
        known = self._known
        targets = node.matcher.targets
        choose = self._choose if node.chooses else None
        for index, payload in enumerate(payloads):
            keys = targets(MessageView(payload))
            if choose is None:
                found = known.get(id(keys))
                queues = self._learn(keys) if found is None else found[1]
            else:
                queues = self._set((str(keys[choose(len(keys))]),)) if keys else _NOWHERE
            if not queues:
                unroutable.append(index)
                continue
            group = by_queues.get(queues) or _begin(queues, queues, groups, by_queues, by_queue)
            group.indices.append(index)
            group.payloads.append(payload)
        return Routed(groups, unroutable)

    def begin(self, payloads: list[bytes], looks: Looks, came_ms: int, choose: Choose | None = None) -> Walk:
        """Begins to route a batch.

        Args:
            looks: budget of the turn, which the walk keeps and spends in later turns.
            came_ms: when the batch came; actions count times from then.
            choose: replaces the plan's random choice.
        """
        return Walk(self, self._steps(payloads, looks, came_ms, choose or self._choose))

    def _steps(
        self, payloads: list[bytes], looks: Looks, came_ms: int, choose: Choose
    ) -> Generator[None, None, Routed]:
        if looks.left <= 0:
            yield
        node = self._node
        if node is None or self._fixed is not None:
            routed = self.at_once(payloads, looks)
            assert routed is not None
            return routed
        groups: list[CopyGroup] = []
        unroutable: list[int] = []
        by_queues: dict[GroupKey, CopyGroup] = {}
        by_queue: dict[str, GroupKey] = {}
        known = self._known
        targets = node.matcher.targets
        is_light = node.matcher.is_light
        walks = node.chooses
        copies: Copies | None = None
        left = looks.left
        for index, payload in enumerate(payloads):
            view = MessageView(payload)
            if not walks:
                if is_light:
                    left -= _LIGHT + (len(payload) >> 6)
                    if left <= 0:
                        looks.left = left
                        yield
                        left = looks.left
                    keys = targets(view)
                    left -= view.spent
                else:
                    looks.left = left
                    keys = yield from node.matcher.search(view, looks)
                    left = looks.left - _LIGHT
                    if left <= 0:
                        looks.left = left
                        yield
                        left = looks.left
                found = known.get(id(keys))
                queues = self._learn(keys) if found is None else found[1]
                if queues is not None:
                    if not queues:
                        unroutable.append(index)
                        continue
                    group = by_queues.get(queues) or _begin(queues, queues, groups, by_queues, by_queue)
                    group.indices.append(index)
                    group.payloads.append(payload)
                    continue
            looks.left = left
            if copies is None:
                copies = Copies(came_ms, choose, looks, self.bounds)
            copies.message, copies.queues = payload, {}
            if not (yield from node.spread(view, copies)):
                unroutable.append(index)
            for made, names in copies.queues.items():
                content = made if isinstance(made, bytes) else made[0]
                queues = self._set(tuple(names))
                life_ms = life_of_copy(content)
                key = queues if life_ms is None else (queues, life_ms)
                group = by_queues.get(key) or _begin(key, queues, groups, by_queues, by_queue)
                group.indices.append(index)
                group.payloads.append(content)
            left = looks.left - _LIGHT
        looks.left = left
        return Routed(groups, unroutable)

    def _learn(self, keys: Sequence[Key]) -> Queues | None:
        self._known_kept += len(keys)
        if len(self._known) >= limits.TARGET_SETS_MAX or self._known_kept > limits.TARGETS_KEPT_MAX:
            self._known.clear()
            self._known_kept = len(keys)
        plain = all(type(key) is str for key in keys)
        queues = self._set(tuple(str(key) for key in keys)) if plain else None
        # Keep a reference to the keys, so that their id is not reused.
        self._known[id(keys)] = keys, queues
        return queues

    def _set(self, names: tuple[str, ...]) -> Queues:
        found = self._sets.get(names)
        if found is None:
            self._sets_kept += len(names)
            if len(self._sets) >= limits.TARGET_SETS_MAX or self._sets_kept > limits.TARGETS_KEPT_MAX:
                self._sets.clear()
                self._sets_kept = len(names)
            found = self._sets[names] = frozenset(names)
        return found


def _begin(
    key: GroupKey,
    queues: Queues,
    groups: list[CopyGroup],
    by_queues: dict[GroupKey, CopyGroup],
    by_queue: dict[str, GroupKey],
) -> CopyGroup:
    """Begins a group, and ends earlier groups with one of its queues, to keep the order of each queue."""
    group = CopyGroup(queues, [], [])
    groups.append(group)
    for queue in queues:
        earlier = by_queue.get(queue)
        if earlier is not None:
            by_queues.pop(earlier, None)
        by_queue[queue] = key
    by_queues[key] = group
    return group
