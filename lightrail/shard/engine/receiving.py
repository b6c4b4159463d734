"""Receiving: the frames of one message of a frontend, applied in their order."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.shard.effects.answers import Answers, answer, error_fields
from lightrail.shard.effects.peers import NumberMissingError, Peer
from lightrail.shard.journal.store import Position, StoreBrokenError, StoreBusyError
from lightrail.shard.links.ingress.batches import Batches
from lightrail.shard.links.ingress.routes import Routes
from lightrail.shard.links.relaying.relay import Relays
from lightrail.shard.links.takeovers import LinkOpening
from lightrail.wire.bodies import ConsumerOpen, Hello, ProducerOpen, Refusal, Targets
from lightrail.wire.frames import (
    COUNT_MASK,
    DUE,
    ENDING,
    FOR_GOOD,
    HEADER,
    HEADER_SIZE,
    TIMED,
    Kind,
    Part,
    frame,
    is_late,
)

if TYPE_CHECKING:
    from lightrail.shard.engine.follower import Follower
    from lightrail.shard.engine.settling import Settling
    from lightrail.shard.links.frontends import Frontends
    from lightrail.shard.links.links import Links
    from lightrail.shard.requests.requests import Requests

log = logging.getLogger("lightrail.shard.engine.receiving")

ENQUEUE: Final = int(Kind.ENQUEUE)
SETTLE: Final = int(Kind.SETTLE)
CREDIT: Final = int(Kind.CREDIT)
ROUTE: Final = int(Kind.ROUTE)
LATE: Final = "it came too late to the shard, which did not execute it; try again"
CONSUMER_CLOSE: Final = int(Kind.CONSUMER_CLOSE)

Apply = Callable[[Peer, Part, int], None]


@dataclass(slots=True, eq=False, repr=False)
class Receiving:
    """Passes each frame to the module that applies it.

    Args:
        _position: of the store; it shows whether a frame has appended a record.
    """

    _position: Position
    _frontends: "Frontends"
    _follower: "Follower"
    _links: "Links"
    _relays: Relays
    _batches: Batches
    _routes: Routes
    _settling: "Settling"
    _requests: "Requests"
    _answers: Answers
    _rare: dict[int, Apply] = field(init=False)

    def __post_init__(self) -> None:
        self._rare = {
            Kind.COUNT: self._count,
            Kind.PING: self._ping,
            Kind.PRODUCER_OPEN: self._open_producer,
            Kind.CONSUMER_OPEN: self._open_consumer,
            Kind.PRODUCER_CLOSE: self._close_producer,
            Kind.PRODUCER_ABANDON: self._abandon_producer,
            Kind.TARGETS: self._targets,
            Kind.REQUEST: self._request,
            Kind.HELLO: self._hello,
            Kind.TAGS: self._links.sending.termini.expect,
            Kind.FORGET: self._links.sending.termini.forget_tags,
            Kind.RESEND: self._links.resending.resend,
            Kind.YIELDED: self._yielded,
            Kind.GOODBYE: lambda peer, _part, now_ms: self._frontends.forget(peer, now_ms),
        }

    def receive(self, identity: bytes, parts: list[Any], now_ms: int) -> list[Any]:
        """Applies one message of a frontend.

        Returns:
            Parts that would take too long now, and must be passed to a later call, in their order.
        """
        # This is called for every frame; the frequent kinds are handled in place to save a call for each.
        frontends = self._frontends
        peer = frontends.find(identity)
        if peer is None:
            if not frontends.meet(identity, parts[0] if parts else b"", now_ms):
                return []
            return self.receive(identity, parts[1:], now_ms)
        peer.heard_ms = now_ms
        position = self._position
        looks_left = limits.LOOKED_INTO_AT_ONCE
        for index, part in enumerate(parts):
            lsn = position.lsn
            rest: list[Any] | None = None
            try:
                kind = part[0]
                if kind == ENQUEUE:
                    looked = self._batches.enqueue(peer, part, now_ms)
                    if not looked:
                        continue
                    looks_left -= looked
                    if looks_left > 0:
                        continue
                    producer = peer.producers.get(HEADER.unpack_from(part)[4])
                    goes_on = producer is not None and producer.goes_on
                    rest = parts[index:] if goes_on else parts[index + 1 :]
                elif kind == SETTLE:
                    left = self._settling.settle(peer, part, now_ms)
                    if left is None:
                        continue
                    rest = [left, *parts[index + 1 :]]
                elif kind == CREDIT:
                    self._settling.credit(peer, part, now_ms)
                    continue
                elif kind == ROUTE:
                    if self._answers.failure is None:
                        looks_left -= self._routes.route(peer, part, now_ms)
                    if looks_left > 0:
                        continue
                    rest = parts[index + 1 :]
                elif kind == CONSUMER_CLOSE:
                    left = self._settling.return_piece(peer, part, now_ms)
                    if left is None:
                        self._close_consumer(peer, part, now_ms)
                    else:
                        rest = [left, *parts[index + 1 :]]
                else:
                    self._apply(peer, part, now_ms)
            except NumberMissingError as missing:
                frontends.ask_to_greet(peer, str(missing), now_ms)
            except StoreBusyError:
                # This frame and later ones wait until the commit under way has ended.
                rest = parts[index:]
            except StoreBrokenError as broken:
                self._answers.fail(broken)
            except Exception as error:
                self._not_applied(peer, part, error, position.lsn != lsn, now_ms)
            if rest is not None:
                return rest
            now_peer = frontends.find(identity)
            if now_peer is None:
                return []
            peer = now_peer
        return []

    def _not_applied(self, peer: Peer, part: Part, error: Exception, is_stored: bool, now_ms: int) -> None:
        """Ends the link of a malformed frame, or of one that caused an internal error, and no other link.

        The frontend gets GONE, so that it learns of the missing number; the deliveries of the link return. A
        request is answered with an error.

        Args:
            is_stored: whether the store has a record of the frame, so that the state of the queue is unknown.
        """
        kind = part[0] if part else -1
        log.error("a frame of kind %d from frontend %s was not applied", kind, peer.frontend, exc_info=error)
        if is_stored:
            self._answers.fail(RuntimeError(f"internal error: a frame of kind {kind} was applied in part"))
        elif kind == Kind.REQUEST and len(part) >= HEADER_SIZE:
            self._requests.fail(peer, HEADER.unpack_from(part)[6])
        elif len(part) >= HEADER_SIZE:
            link = HEADER.unpack_from(part)[4]
            self._links.end_link(peer, link, now_ms)
            self._relays.close_sender(peer, link)
            self._relays.close_listener(peer, link)
            why = "internal error; see the shard's log, and attach the link again"
            refusal = Refusal(conditions.INTERNAL_ERROR, why)
            peer.out.append(frame(Kind.GONE, link=link, body=refusal.encode()))

    # --- frames that are not sent per batch --------------------------------------------------------------

    def _apply(self, peer: Peer, part: Part, now_ms: int) -> None:
        apply = self._rare.get(HEADER.unpack_from(part)[0])
        if apply is None:
            log.error("a frame of unknown kind %d from frontend %s was ignored", part[0], peer.frontend)
        else:
            apply(peer, part, now_ms)

    def _count(self, peer: Peer, part: Part, now_ms: int) -> None:
        number = HEADER.unpack_from(part)[6]
        peer.heard += 1
        if number != peer.heard:
            # The messages were lost with a connection.
            why = f"{number - peer.heard} of its messages were lost"
            self._frontends.ask_to_greet(peer, why, now_ms)

    def _ping(self, peer: Peer, _part: Part, now_ms: int) -> None:
        said, boot = peer.said & COUNT_MASK, self._frontends.boot
        peer.out.append(frame(Kind.PONG, flags=TIMED, epoch=now_ms, count=said, number=boot))

    def _open_producer(self, peer: Peer, part: Part, now_ms: int) -> None:
        _, flags, _, epoch, link, due, number = HEADER.unpack_from(part)
        if flags & DUE and is_late(due, now_ms):
            peer.end_link(link, Refusal(conditions.TIMEOUT, LATE))
            return
        self._follower.refresh(now_ms)
        opening = ProducerOpen.decode(part[HEADER_SIZE:])
        if opening.relay:
            self._relays.open_sender(peer, link, epoch, opening.queue, now_ms)
        elif opening.queue:
            waiting = LinkOpening(peer, link, epoch, opening, number)
            if not self._settling.takeovers.begin(waiting, now_ms):
                self._open_link(waiting, now_ms)
        else:
            self._links.sending.open_router(peer, link, opening, number)

    def _open_consumer(self, peer: Peer, part: Part, now_ms: int) -> None:
        _, _, _, epoch, link, _, _ = HEADER.unpack_from(part)
        self._follower.refresh(now_ms)
        opening = ConsumerOpen.decode(part[HEADER_SIZE:])
        if opening.relay:
            self._relays.open_listener(peer, link, epoch, opening)
            return
        waiting = LinkOpening(peer, link, epoch, opening)
        if not self._settling.takeovers.begin(waiting, now_ms):
            self._open_link(waiting, now_ms)

    def _open_link(self, opening: LinkOpening, now_ms: int) -> None:
        peer, link, epoch, body, next_number = opening
        if isinstance(body, ProducerOpen):
            self._links.open_producer(peer, link, epoch, body, next_number, now_ms)
        else:
            self._links.open_consumer(peer, link, epoch, body, now_ms)

    def _yielded(self, peer: Peer, part: Part, _now_ms: int) -> None:
        self._settling.takeovers.yielded(peer, HEADER.unpack_from(part)[4])

    def take_over(self, now_ms: int) -> None:
        """Opens links that no longer need to wait for a former link of their client."""
        for takeover in self._settling.takeovers.take_due(now_ms):
            peer, link, _, body, _ = takeover.opening
            if self._frontends.find(peer.identity) is not peer:
                continue
            lsn = self._position.lsn
            try:
                self._open_link(takeover.opening, now_ms)
                if takeover.credit is not None:
                    self._settling.credit(peer, takeover.credit, now_ms)
            except StoreBusyError:
                self._settling.takeovers.put_back(takeover)
            except StoreBrokenError as broken:
                self._answers.fail(broken)
            except Exception as error:
                kind = Kind.PRODUCER_OPEN if isinstance(body, ProducerOpen) else Kind.CONSUMER_OPEN
                opened = frame(kind, link=link)
                self._not_applied(peer, opened, error, self._position.lsn != lsn, now_ms)

    def _close_producer(self, peer: Peer, part: Part, _now_ms: int) -> None:
        link = HEADER.unpack_from(part)[4]
        self._settling.takeovers.drop(peer, link)
        self._links.sending.close(peer, link)
        self._relays.close_sender(peer, link)

    def _abandon_producer(self, peer: Peer, part: Part, now_ms: int) -> None:
        link = HEADER.unpack_from(part)[4]
        self._links.sending.abandon(peer, link)
        router = peer.routers.get(link)
        if router is not None and self._answers.failure is None:
            self._routes.abandon(router, now_ms)

    def _close_consumer(self, peer: Peer, part: Part, now_ms: int) -> None:
        _, flags, _, _, link, _, _ = HEADER.unpack_from(part)
        ending = Ending(flags & ENDING)
        consumer = peer.consumers.get(link)
        if consumer is not None:
            self._links.receiving.close(consumer, now_ms, ending, for_good=bool(flags & FOR_GOOD))
        elif not self._settling.takeovers.drop(peer, link):
            self._relays.close_listener(peer, link, ending)
            self._settling.stray(peer, part, now_ms)

    def _targets(self, peer: Peer, part: Part, now_ms: int) -> None:
        _, _, _, _, link, _, number = HEADER.unpack_from(part)
        self._follower.refresh(now_ms)
        self._routes.targets(peer, link, number, Targets.decode(part[HEADER_SIZE:]), now_ms)

    def _request(self, peer: Peer, part: Part, now_ms: int) -> None:
        _, flags, _, due, _, _, number = HEADER.unpack_from(part)
        if flags & DUE and is_late(due, now_ms):
            answer(peer, number, error_fields(conditions.LATE, LATE))
            return
        self._follower.refresh(now_ms)
        self._requests.receive(peer, number, part, now_ms, self._answers.failure)

    def _hello(self, peer: Peer, part: Part, now_ms: int) -> None:
        self._frontends.greet_again(peer, Hello.decode(part[HEADER_SIZE:]), now_ms)
