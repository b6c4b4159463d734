"""Spreading: the ways of a sender to the queues of routers, and what is left of messages to route again.

A sender has a lane to each shard. Links and requests over HTTP send messages again for the same reasons
(`again`, shard_client/sending/lanes.py), and only to queues that have not stored them (`left_over`). They
differ in when: a link waits for its queues, in order and without an end; a request within its time.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lightrail.filters.message import MessageView
from lightrail.filters.rules.fields import property_path
from lightrail.filters.rules.rule_action import RULE_NAME
from lightrail.model import limits
from lightrail.namespace.ages import expiry
from lightrail.namespace.directory import Directory
from lightrail.namespace.forwarding import ChainEnd
from lightrail.namespace.router_plan import CopyGroup
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.shard_client.sending.lanes import Lane, Load
from lightrail.shard_client.sending.window import Attributes
from lightrail.shard_client.shard_connections import ShardConnections

ROUTED_LOOKS_AT_ONCE: Final[int] = 2_000
"""Messages of one routed batch times the queues with an index among its targets at one shard. Frontends split
a larger batch, down to one message."""


NO_ENDS: Final[Mapping[str, ChainEnd]] = {}
_RULE: Final = property_path(RULE_NAME)
Carried = set[tuple[int, bytes, str]]
"""Messages by index in their batch and content, with each queue that they are for: actions of subscriptions
make several contents of one message."""


@dataclass(slots=True, eq=False, repr=False)
class Spread:
    """A batch on its way to the queues that a plan has chosen for it."""

    attributes: Attributes
    came_ms: int
    outstanding: int = 0
    """Unanswered loads."""
    loads: list[Load] = field(default_factory=list)


class ShardRoute(NamedTuple):
    """The way to queues of one shard."""

    lane: Lane
    queues: frozenset[str]
    most: int
    """Most messages in one load: the shard decodes each, once for each queue that requires it."""
    age_ms: int | None
    """Age at which messages expire in these queues, by the policies of routers (see `expiry`); None for no
    bound."""

    def send(
        self, batch: Spread, indices: Sequence[int], payloads: Sequence[bytes], *, is_repeated: bool = False
    ) -> None:
        """Sends messages of a batch, given by index and by content, which live equally long."""
        lane, queues, most, age_ms = self
        attributes = batch.attributes
        if age_ms is not None:
            expires = expiry(attributes.expires_at_ms, batch.came_ms, age_ms, payloads[0])
            attributes = attributes._replace(expires_at_ms=expires)
        for start in range(0, len(indices), most):
            load = Load(batch, queues, indices[start : start + most], is_repeated)
            batch.loads.append(load)
            batch.outstanding += 1
            lane.send(load, payloads[start : start + most], attributes)


@dataclass(slots=True, eq=False, repr=False)
class Ways:
    """All ways of one sender.

    Args:
        open_lane: makes the sender's lane to a shard.
    """

    connections: ShardConnections
    _directory: Directory
    _open_lane: Callable[[ShardPeer], Lane]
    _lanes: dict[int, Lane] = field(default_factory=dict)
    """By shard."""
    known: dict[frozenset[str], list[ShardRoute]] = field(default_factory=dict)
    """Ways by sets of queues of the current plan, of a sender to one router: see `to`."""
    moved: int = field(init=False)
    """`ShardConnections.moved` when the ways were last changed: a different value means that queues have
    moved."""
    leaving: list[Lane] = field(default_factory=list)
    """Lanes with unanswered messages for a queue that has moved: later messages wait for these."""

    def __post_init__(self) -> None:
        self.moved = self.connections.moved

    @property
    def has_left(self) -> bool:
        """Whether all messages that were sent to former shards are answered."""
        return all(lane.is_idle for lane in self.leaving)

    def to(self, queues: frozenset[str], ages_ms: Mapping[str, int], unknown: list[str]) -> list[ShardRoute]:
        """As `find`, for a sender to one router: complete ways are known until `forget` or `follow`."""
        found = self.known.get(queues)
        if found is None:
            missing: list[str] = []
            found = self.find(queues, ages_ms, missing)
            if missing:
                unknown += missing
            else:
                self.known[queues] = found
        return found

    def find(
        self, queues: frozenset[str], ages_ms: Mapping[str, int], unknown: list[str]
    ) -> list[ShardRoute]:
        """The ways to these queues; queues whose shard is not known here are added to `unknown`.

        Args:
            ages_ms: see Plan.
        """
        by_shard: dict[tuple[int, int | None], tuple[Lane, list[str]]] = {}
        for queue in queues:
            peer = self.connections.placed(queue)
            if peer is None:
                unknown.append(queue)
                continue
            key = peer.shard, ages_ms.get(queue)
            by_shard.setdefault(key, (self._lane(peer), []))[1].append(queue)
        most = limits.ROUTE_TARGETS_MAX
        return [
            self._way(lane, names[start : start + most], age_ms)
            for (_, age_ms), (lane, names) in by_shard.items()
            for start in range(0, len(names), most)
        ]

    def _way(self, lane: Lane, queues: list[str], age_ms: int | None) -> ShardRoute:
        directory = self._directory
        looking = sum(directory.get(queue).policy.examines for queue in queues)
        most = max(1, ROUTED_LOOKS_AT_ONCE // looking) if looking else sys.maxsize
        return ShardRoute(lane, frozenset(queues), most, age_ms)

    def _lane(self, peer: ShardPeer) -> Lane:
        lane = self._lanes.get(peer.shard)
        if lane is None or lane.peer is not peer:
            lane = self._lanes[peer.shard] = self._open_lane(peer)
        return lane

    def forget(self) -> None:
        """Names or the plan have changed: sets of queues are resolved and declared anew."""
        self.known.clear()
        for lane in self._lanes.values():
            lane.forget_sets()

    def follow(self) -> None:
        """Queues have moved: unanswered messages for them have to be answered before later ones are sent."""
        connections = self.connections
        self.moved = connections.moved
        self.known.clear()
        self.leaving = [
            lane
            for lane in self._lanes.values()
            if not lane.is_idle
            and any(
                placement is not None and placement.shard != lane.peer.shard
                for queues in lane.sets_under_way()
                for placement in map(connections.placement, queues)
            )
        ]

    def abandon(self) -> None:
        """The client's link has ended: shards store sent messages only if there is room now."""
        for lane in self._lanes.values():
            lane.abandon()

    def close(self) -> None:
        """Closes the lanes, since every message is answered."""
        for lane in self._lanes.values():
            lane.close()


def left_over(
    groups: Sequence[CopyGroup],
    positions: Sequence[int],
    carried: Carried,
    forwarded: Mapping[str, ChainEnd] = NO_ENDS,
) -> Iterator[tuple[frozenset[str], list[int], list[bytes]]]:
    """Messages for queues for which they are in no load yet: the queues, indices in the batch, and contents.

    Args:
        positions: for each message of the groups, its index in the batch.
        forwarded: see Plan. What is in the source of a queue comes into that queue from there.
    """
    wanted = {
        (positions[index], payload, queue)
        for group in groups
        for index, payload in zip(group.indices, group.payloads, strict=True)
        for queue in _places(group.queues, forwarded)
    }
    # Where an action has changed since, or makes new ids, a queue has the message with its former content.
    former = Former(
        [((position, queue), payload) for position, payload, queue in carried - wanted],
        [((position, queue), payload) for position, payload, queue in wanted - carried],
    )
    for group in groups:
        parts: dict[frozenset[str], tuple[list[int], list[bytes]]] = {}
        for index, payload in zip(group.indices, group.payloads, strict=True):
            position = positions[index]
            left = frozenset(
                queue
                for queue in group.queues
                if not any((position, payload, each) in carried for each in _places([queue], forwarded))
                and not any(former.has((position, each), payload) for each in _places([queue], forwarded))
            )
            if left:
                indices, payloads = parts.setdefault(left, ([], []))
                indices.append(position)
                payloads.append(payload)
        for queues, (indices, payloads) in parts.items():
            yield queues, indices, payloads


def _places(queues: Iterable[str], forwarded: Mapping[str, ChainEnd]) -> Iterator[str]:
    """Where messages for queues may be stored: in a queue, or in its source."""
    for queue in queues:
        yield queue
        if queue in forwarded:
            yield forwarded[queue].source


class Former:
    """Stored copies with contents which routing has not made again, each of which stands for a new copy.

    A copy stands for that of the same rule first: of two rules one message may be stored, and not the other.

    Args:
        stored: place and content of these copies.
        anew: of those that routing has made now, and that are not stored as they are.
    """

    __slots__ = ("_of_others", "_of_rules")

    def __init__(
        self, stored: Sequence[tuple[Hashable, bytes]], anew: Iterable[tuple[Hashable, bytes]]
    ) -> None:
        self._of_rules: Counter[tuple[Hashable, str]] = Counter()
        self._of_others = Counter(place for place, _ in stored)
        if stored:
            self._of_rules = Counter(map(_by_rule, stored)) & Counter(map(_by_rule, anew))
            for (place, _), count in self._of_rules.items():
                self._of_others[place] -= count

    def has(self, place: Hashable, payload: bytes) -> bool:
        """Whether a copy is stored at a place, with another content; that copy stands for no further one."""
        if not self._of_others:
            return False
        key = _by_rule((place, payload))
        return _took(self._of_rules, key) or _took(self._of_others, place)


def _by_rule(copy: tuple[Hashable, bytes]) -> tuple[Hashable, str]:
    place, payload = copy
    return place, repr(MessageView(payload).property(_RULE))


def _took(counts: Counter[Any], key: Hashable) -> bool:
    """Removes one more, if there is one; returns whether there was."""
    counts[key] -= 1
    return counts[key] >= 0
