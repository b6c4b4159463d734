"""The bound links of one connection: answers their attaches, and closes their objects at their end."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.events import Closed, Detached, Ended
from lightrail.amqp.link import ATTACHING, Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.values import Symbol
from lightrail.frontend.guard import Hold
from lightrail.frontend.links.bound import Bound, Terms
from lightrail.model import conditions
from lightrail.model.links import Ending
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.links")

LINK_DETACH: Final = Symbol("link-detach")


DELETED: Final = (conditions.RESOURCE_DELETED, conditions.NOT_FOUND)
"""A link that is attached at a known name ends so if the name is deleted at this moment."""


@dataclass(slots=True, eq=False, repr=False)
class BoundLinks:
    """The table of links of one connection. Iteration yields the objects of the links."""

    _connection: "ClientConnection"
    _terms: dict[Bound, Terms] | None = None
    """None before the first link: most idle connections have no link."""

    def __iter__(self) -> Iterator[Bound]:
        return iter(list(self._terms or ()))

    def delivered(self) -> int:
        """Messages that were sent from queues over all links."""
        return sum(bound.delivered() for bound in self._terms or ())

    # --- attaches --------------------------------------------------------------------------------------

    def bind(self, bound: Bound, terms: Terms) -> None:
        """A link is bound from now on, until it is detached or refused."""
        if self._terms is None:
            self._terms = {}
        self._terms[bound] = terms
        self._connection.frontend.counts.links_opened += 1

    def accept_incoming(self, link: Link) -> None:
        """Answers the attach of a link on which the client sends: receiver-settle-mode first (ADR 24).

        If the client may resume the link, the mode is the client's, since its unsettled deliveries are kept.
        """
        target = link.target
        assert isinstance(target, Target)
        _forget_durability(target)
        terms = self._terms_of(link)
        target.timeout = terms.suspended_s
        target.durable = terms.durability
        link.accept(
            source=link.source,
            target=target,
            rcv_settle_mode=terms.rcv_settle_mode,
            offered_capabilities=terms.offered,
            unsettled=terms.unsettled,
        )
        self._connection.touch()

    def accept_outgoing(self, link: Link) -> None:
        """Answers the attach of a link on which the client receives, with the applied filters (3.5.3)."""
        source = link.source
        assert isinstance(source, Source)
        terms = self._terms_of(link)
        source.filter = terms.filter
        if not terms.outlives:
            _forget_durability(source)
            source.timeout = terms.suspended_s
            source.durable = terms.durability
        unsettled = terms.unsettled
        if unsettled is None and link.attach is not None and link.attach.unsettled is not None:
            # Deliveries of a former attach are settled, or were released when the link ended.
            unsettled = {}
        link.accept(
            source=source,
            target=link.target,
            offered_capabilities=terms.offered,
            properties=terms.properties or {},
            unsettled=unsettled,
        )
        self._connection.touch()

    def hold_of(self, bound: Bound) -> Hold | None:
        """The use of a name by a link; None if it has ended, or uses no single name."""
        terms = self._terms.get(bound) if self._terms is not None else None
        return None if terms is None else terms.hold

    def _again(self, bound: Bound | None) -> Callable[[], None] | None:
        terms = self._terms.get(bound) if self._terms is not None and bound is not None else None
        return None if terms is None else terms.again

    def _terms_of(self, link: Link) -> Terms:
        assert self._terms is not None
        return self._terms[link.context]

    # --- ends ------------------------------------------------------------------------------------------

    def refuse(self, link: Link, attached: bool, refusal: Refusal) -> None:
        """Ends a link with its shard's reason, without closing the object of the link."""
        bound = link.context
        link.context = None
        again = None if attached else self._again(bound)
        self._release(bound)
        self._end(link, attached, refusal.condition, refusal.description, again=again)

    def detach(
        self, link: Link, condition: str, description: str, info: dict[Symbol, Any] | None = None
    ) -> None:
        """Ends a link with an error, and closes the object of the link."""
        attached = link.state != ATTACHING
        again = None if attached else self._again(link.context)
        self.close(link)
        self._end(link, attached, condition, description, info, again)

    def _end(
        self,
        link: Link,
        attached: bool,
        condition: str,
        description: str,
        info: dict[Symbol, Any] | None = None,
        again: Callable[[], None] | None = None,
    ) -> None:
        if not self._connection.is_open:
            return
        if condition in DELETED and again is not None:
            again()
            return
        self._connection.log_refused(condition, description)
        if attached:
            link.detach(condition, description, info=info)
        else:
            link.refuse(condition, description, info)
        self._connection.touch()

    def detached(self, event: Detached) -> None:
        """A link was detached, by the client or by the broker."""
        bound = event.link.context
        if not event.by_peer and event.error is not None:
            self._connection.log_refused(event.error.condition, event.error.description or "")
        terms = self._terms.get(bound) if self._terms is not None else None
        if bound is not None:
            bound.ends(ending_of(event))
            if event.closed and event.by_peer:
                bound.closed_for_good()
        self.close(event.link)
        if terms is not None and terms.at_close is not None and event.closed and event.by_peer:
            self._connection.frontend.spawn(self._finish_close(event.link, terms.at_close()))

    async def _finish_close(self, link: Link, work: Awaitable[Refusal | None]) -> None:
        """Answers a closing detach when the work that belongs to it has ended, or failed."""
        try:
            refusal = await work
        except Exception:
            log.exception("the end of a link could not be completed")
            refusal = Refusal(conditions.INTERNAL_ERROR, "internal error; whether it has ended is not known")
        if refusal is None:
            link.answer_close()
        else:
            link.answer_close(refusal.condition, refusal.description)
        self._connection.touch()

    def close(self, link: Link) -> None:
        """Closes the object of a link that has ended."""
        bound = link.context
        if bound is not None:
            link.context = None
            bound.close()
            bound.when_released(partial(self._release, bound))

    def session_ended(self, event: Ended) -> None:
        """A session has ended, with its links: answers its end when the names of the session are deleted."""
        session, lifetimes = event.session, self._connection.frontend.lifetimes
        owner = self._connection.client.session_owner(session)
        bounds = [link.context for link in session.links if link.context is not None]
        left = len(bounds) + 1
        has_names = lifetimes.has_names(owner)
        waits = False

        def answer() -> None:
            session.answer_end()
            self._connection.touch()

        def released() -> None:
            nonlocal left, waits
            left -= 1
            if not left and has_names:
                lifetimes.ended(owner)
                waits = lifetimes.after_end(owner, answer)

        for bound in bounds:
            bound.ends(ending_of(event))
        for link in session.links:
            self.close(link)
        for bound in bounds:
            bound.when_released(released)
        released()
        if not waits:
            # Links that a transaction keeps end with its discharge, which the client may send after this.
            session.answer_end()

    def close_all(self, ending: Ending) -> None:
        """The connection has ended."""
        all_terms, self._terms = self._terms, None
        for bound in all_terms or ():
            bound.ends(ending)
        for bound, terms in (all_terms or {}).items():
            bound.close()
            self._forget(terms)

    def _release(self, bound: Bound) -> None:
        terms = self._terms.pop(bound, None) if self._terms is not None else None
        if terms is not None:
            self._forget(terms)

    def _forget(self, terms: Terms) -> None:
        frontend = self._connection.frontend
        frontend.counts.links_closed += 1
        if terms.hold is not None:
            frontend.guard.release(terms.hold)
        frontend.lifetimes.ended(terms.owner)


def ending_of(event: Detached | Ended | Closed) -> Ending:
    """How links end with a detach, end or close of the client, or of the engine after the client's error."""
    if event.error is None:
        return Ending.BY_CLIENT
    # The client may have lost its former connection, and attaches the link again (2.6.1).
    return Ending.BY_BROKER if event.error.condition == conditions.STOLEN else Ending.FAILED


def _forget_durability(terminus: Source | Target) -> None:
    """Enters into the answer that no state of the terminus stays when the link has ended (3.5.3, 3.5.4)."""
    terminus.durable = 0
    terminus.expiry_policy = LINK_DETACH
    terminus.timeout = 0
