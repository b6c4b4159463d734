"""A link of a client of Azure Service Bus that receives the messages of one session, a group of the queue.

The filter of its source has the id of the session, or null for the next available one. The attach is answered
when the shard has accepted a session for it: the source's filter then has the id, and the properties have the
end of the session's lock in ticks. Until then the link has no credit at the shard.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.values import Described, Long, Symbol
from lightrail.filters.errors import FilterError
from lightrail.filters.source import from_amqp
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.bound import Attach, Terms
from lightrail.model import conditions, limits
from lightrail.service_bus.links.deliveries import BusConsumerLink
from lightrail.wire.bodies import ConsumerOpen, Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.shard_client.owners.owner import Owner

SESSION_WAIT_MS: Final[int] = 60_000
"""How long a receiver waits for the next available session, unless its client has another time-out: Azure
Service Bus waits for a minute."""
SESSION_WAIT_MS_MAX: Final[int] = 3_600_000
"""Longest such wait."""
SESSION_ANSWER_MS: Final[int] = 100
"""How long before the client's time-out it is answered that there is no session: the answer is on its way for
a while, and a client whose own time ends first reports another error."""
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
TIMEOUT: Final = Symbol("com.microsoft:timeout")
"""Property of an attach: milliseconds that the client waits for a session."""
TIMED_OUT: Final = "com.microsoft:timeout"
"""Condition for a client for which no session became available in time."""
EPOCH_TICKS: Final = 621_355_968_000_000_000
"""1970 in ticks of .NET: 100 nanoseconds each, from the year 1 on."""
TICKS_PER_MS: Final = 10_000


def request_session(attach: Attach, options: ConsumerOpen) -> bool:
    """Enters the session that a source requests into the options; returns False if it requests none.

    Raises ConditionError: the source is not one of a session, or the name has no sessions.
    """
    source = attach.link.source
    if not isinstance(source, Source) or not source.filter or SESSION_FILTER not in source.filter:
        return False
    session = _value_of(source.filter[SESSION_FILTER])
    if session is not None and not isinstance(session, str):
        raise ConditionError(
            conditions.INVALID_FIELD,
            f"expected the session filter to have a string or null, found {type(session).__name__}",
        )
    policy = attach.record.policy
    if options.relay or options.browse or policy["single_active"] or not policy["groups"]:
        raise ConditionError(
            conditions.NOT_ALLOWED,
            f"{attach.record.name} has no sessions: they need a queue whose policy has groups and not "
            "single_active, and a source without distribution-mode copy",
        )
    try:
        others = from_amqp({name: each for name, each in source.filter.items() if name != SESSION_FILTER})
    except FilterError as error:
        raise ConditionError(conditions.INVALID_FIELD, str(error)) from None
    if others.filter is not None:
        raise ConditionError(
            conditions.NOT_IMPLEMENTED,
            "expected the session filter alone: a receiver of a session gets all of its messages",
        )
    options.session = None if session is None else str(session)
    options.any_session = session is None
    return True


def _value_of(given: Any) -> Any:
    """The value of a filter; the client for Go describes it."""
    return given.value if isinstance(given, Described) else given


class SessionLink(BusConsumerLink):
    """One outgoing link (the client receives) bound to a session of a queue."""

    __slots__ = ("_filter", "_is_answered", "_session_link", "_terms", "_timer", "locked_until_ms", "session")

    def __init__(
        self,
        connection: "ClientConnection",
        link: "Link",
        owner: "Owner",
        *,
        number: int,
        options: ConsumerOpen,
        terms: Terms,
    ) -> None:
        super().__init__(connection, link, owner, number=number, options=options)
        self._terms = terms
        self._session_link = link
        self._is_answered = False
        """Whether the client's attach is answered, as a session is accepted."""
        self._filter = link.source.filter[SESSION_FILTER]
        self.session: str | None = None
        """The accepted session; None until the shard has accepted one."""
        self.locked_until_ms = 0
        """End of the session's lock, in milliseconds since the epoch."""
        self._timer: asyncio.TimerHandle | None = None
        if options.any_session:
            self._timer = connection.frontend.timer(_wait_ms(link), self._time_out)

    def ready(self) -> None:
        """The shard has opened the consumer; the client's attach is answered when a session is accepted."""

    def accepted(self, session: str, locked_ms: int) -> None:
        """The link has this session: answers the client's attach, or notes the new end of the lock."""
        if self.settlements.is_closed:
            return
        self.session = self.options.session = session
        self.options.any_session = False
        self.locked_until_ms = self.connection.frontend.now_ms() + (locked_ms or limits.BUS_LOCK_SHOWN_MS)
        if self._is_answered:
            return
        self._is_answered = True
        self._cancel_timer()
        given = self._filter
        self._terms.filter = {
            SESSION_FILTER: Described(given.descriptor, session) if isinstance(given, Described) else session
        }
        self._terms.properties = {LOCKED_UNTIL: Long(EPOCH_TICKS + TICKS_PER_MS * self.locked_until_ms)}
        super().ready()
        self._send_credit(force=True)

    def ended(self, refusal: Refusal) -> None:
        """See Consumer; another receiver may have accepted the session after a loss of the shard."""
        if self._is_answered and refusal.condition == conditions.SESSION_CANNOT_BE_LOCKED:
            refusal = Refusal(conditions.SESSION_LOCK_LOST, refusal.description)
        super().ended(refusal)

    def _time_out(self) -> None:
        if not (self._is_answered or self.settlements.is_closed):
            self.connection.links.detach(
                self._session_link,
                TIMED_OUT,
                f"no session of {self.queue} became available in time: each is with another receiver, or has "
                "no message",
            )

    def _leave(self) -> None:
        self._cancel_timer()
        super()._leave()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_credit(self, *, force: bool = False) -> None:
        if self._is_answered:
            super()._send_credit(force=force)

    def _locked_until(self, part: bytes | memoryview) -> int:
        return self.locked_until_ms


def _wait_ms(link: "Link") -> int:
    """How long a client waits for the next available session."""
    properties = None if link.attach is None else link.attach.properties
    wanted = (properties or {}).get(TIMEOUT)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        return SESSION_WAIT_MS
    # The client's own time-out ends at that moment, too, and it should get the answer before.
    early = min(SESSION_ANSWER_MS, int(wanted) // 10)
    return min(int(wanted) - early, SESSION_WAIT_MS_MAX)
