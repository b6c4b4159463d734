"""A link on which a client of Azure Service Bus sends to a queue with sessions: each message has a session.

A message without one would be for no receiver of a session, and so nobody would ever get it. Service Bus
rejects it; of a batch, all messages.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final

from lightrail.amqp.events import Transfers
from lightrail.amqp.sections import decode_properties
from lightrail.amqp.values import DecodeError
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.batched import BATCHED, messages, one_by_one, reject
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.namespace.records import Name

NO_SESSION: Final = (
    "expected a message with a session id (group-id) for {name}, whose policy has groups; found none"
)


def demand_session(record: "Name", messages_: Iterable[bytes]) -> None:
    """Raises ConditionError if a message for a queue with sessions has none."""
    if not record.policy["groups"]:
        return
    for message in messages_:
        try:
            session = decode_properties(message).group_id
        except DecodeError as error:
            raise ConditionError(conditions.DECODE_ERROR, f"a message can't be read: {error}") from None
        if session is None:
            raise ConditionError(conditions.NOT_ALLOWED, NO_SESSION.format(name=record.name))


class SessionProducer(ProducerLink):
    """One incoming link of such a client."""

    __slots__ = ()

    checks: ClassVar[bool] = True

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """See ProducerLink; messages without a session are rejected."""
        found = [(id, payload, self._refusal(event, payload)) for id, payload in one_by_one(event)]
        if all(refusal is None for _, _, refusal in found):
            super().transfers(event, now_ms)
            return
        for refusal, run in groupby(found, key=itemgetter(2)):
            some = list(run)
            if self._closed:
                # A message that was sent settled has ended the link.
                return
            if refusal is None:
                super().transfers(_part(event, some[0][0], [payload for _, payload, _ in some]), now_ms)
                continue
            for id, _, _ in some:
                self._counts.messages_refused += 1
                reject(self._connection, self._link, event, id, refusal)
        self.relieved()

    def refusal(self, event: Transfers) -> ConditionError | None:
        """See ProducerLink."""
        for _, payload in one_by_one(event):
            refusal = self._refusal(event, payload)
            if refusal is not None:
                return refusal
        return None

    def _refusal(self, event: Transfers, payload: bytes) -> ConditionError | None:
        if event.message_format and event.message_format != BATCHED:
            return None
        try:
            found = messages(payload) if event.message_format == BATCHED else (payload,)
            demand_session(self._frontend.directory.get(self.queue), found)
        except ConditionError as error:
            return error
        return None


def _part(event: Transfers, first_id: int, payloads: list[bytes]) -> Transfers:
    """Some neighbouring messages of an event."""
    return Transfers(
        event.link,
        first_id,
        payloads,
        event.settled,
        event.message_format,
        event.head,
        event.absolute_expiry_ms,
        mixed=event.mixed,
        earliest_expiry_ms=event.earliest_expiry_ms,
    )
