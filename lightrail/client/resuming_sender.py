"""Senders whose link is resumed over the loss of a connection: no message is lost or stored twice (2.6.13).

Messages have the link's own numbers over all attaches, and delivery-tags that end with them. A message is
kept until its outcome arrives. After a loss the attach has the tags of all of these, and the broker's map
decides, in the order of sending and ahead of newer messages:

    the broker has an outcome     it is the message's; a settled, resumed transfer lets the broker forget it
    the broker has no outcome     the message is sent again, resumed, from its beginning
    the broker has no delivery    the message is sent again as a new delivery, under its tag
    too late                      the broker may have forgotten the delivery: the outcome is unknown

It is too late when the broker's answer arrives more than the link's time-out after the latest moment in which
the former link is known to have lived: when the message was sent, or one whose outcome arrived. By the
broker's map a forgotten link can't be distinguished from one that stored nothing.
"""

import asyncio
import secrets
from array import array
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from lightrail.amqp import events
from lightrail.amqp.errors import EndedError
from lightrail.amqp.link import ATTACHED
from lightrail.amqp.link import Link as EngineLink
from lightrail.amqp.performatives import AmqpError, Received, Source, Target, TransactionalState
from lightrail.amqp.receiver import OUTCOMES
from lightrail.amqp.session import Session
from lightrail.client.errors import ClientError
from lightrail.client.outcomes import Outcome, outcome_of, outcome_of_size
from lightrail.client.resuming import (
    UNKNOWN_TOO_LATE,
    Resume,
    deliveries_max,
    goes_on_after,
    kept_s,
    now_s,
)
from lightrail.client.sender import Sender

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.wire import Wire

PREFIX_BYTES: Final = 8
"""Length of the random part of delivery-tags: links of former processes may have the same names."""
BEGINNING: Final = Received(section_number=0, section_offset=0)
"""State of a resumed delivery whose message is sent whole."""


class ResumingSender(Sender):
    """A sender that keeps messages until their outcomes arrive, over connections."""

    def __init__(
        self, connection: "Connection", address: str | None, *, window: int, name: str, resume: Resume
    ) -> None:
        super().__init__(connection, address, window=window, name=name, presettled=False)
        self._resume = resume
        self._prefix = secrets.token_bytes(PREFIX_BYTES)
        self._sent: dict[int, tuple[bytes, float]] = {}
        """Messages without an outcome, by number in the order of sending, and when they were first sent."""
        self._next = 0
        """Number of the first new message of the next attach."""
        self._kept_s = 0
        """Seconds for which the broker keeps the state of the link; 0 if it does not."""
        self._lived_at = 0.0
        """When the link certainly lived: the latest attach was sent that was answered, or the latest message
        with an outcome. Times are those of `now_s`."""
        self._attached_at = 0.0
        """When the latest attach was sent."""
        self._most = 1
        """Messages without an outcome whose tags fit into a frame."""
        self._repeats = False
        """Whether the broker's map was incomplete: the link is attached again when that part is settled."""
        self._awaited: set[int] = set()
        """Resumed messages whose outcomes are awaited before that."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def resumes(self) -> bool:
        """Whether the broker keeps the state of the link over a loss."""
        return self._kept_s > 0

    async def send_with(self, payload: bytes, state: TransactionalState) -> Outcome:
        """Raises ClientError: a transaction ends with its connection, and can't be resumed."""
        raise ClientError(
            f"{self.address}: expected a sender without `resume` in a transaction, which ends with its "
            "connection, found one with it: open another sender"
        )

    # --- from the connection -----------------------------------------------------------------------------

    def attach(self, wire: "Wire", session: Session) -> None:
        """Attaches with the tags of all messages without an outcome."""
        self._wire = wire
        target = Target(address=self.address)
        self._resume.ask(target)
        number = self._next
        tag = self._tag
        link = self._link = session.attach(
            self.name,
            True,
            source=Source(),
            target=target,
            snd_settle_mode=0,
            rcv_settle_mode=1,
            unsettled={tag(each): None for each in self._sent},
        )
        link.number_tags(self._prefix, number)
        link.context = self
        self._attached_at = now_s()
        wire.touch()

    def _tag(self, number: int) -> bytes:
        return self._prefix + (number & 0xFFFF_FFFF).to_bytes(4, "big")

    def lost(self) -> None:
        """Keeps messages without an outcome, if the broker keeps the link."""
        self._suspend()
        if not self._kept_s:
            super().lost()
            return
        self._wire = None
        self._wait_for_end()

    def end(self, error: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().end(error)

    def _unknown(self) -> None:
        super()._unknown()
        self._sent.clear()

    def _suspend(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._next = max(self._next, link.sent)  # type: ignore[attr-defined]
        self._attached = self._repeats = False
        self._awaited.clear()

    # --- too late ----------------------------------------------------------------------------------------

    def _wait_for_end(self) -> None:
        """Calls `_end_of_time` when the broker may have forgotten the oldest message."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sent:
            _, sent_at = next(iter(self._sent.values()))
            left_s = max(sent_at, self._lived_at) + self._kept_s - now_s()
            self._timer = self._connection.loop.call_later(max(0.0, left_s), self._end_of_time)

    def _end_of_time(self) -> None:
        self._timer = None
        if self._attached or self._closed is not None:
            return
        now = now_s()
        for number, (_, sent_at) in [*self._sent.items()]:
            if max(sent_at, self._lived_at) + self._kept_s > now:
                break
            self._conclude(number, UNKNOWN_TOO_LATE)
        self._wake()
        self._wait_for_end()

    def _conclude(self, number: int, outcome: Outcome) -> None:
        del self._sent[number]
        answer = self._answers.pop(number)
        if not answer.done():
            answer.set_result(outcome)

    # --- from the engine ---------------------------------------------------------------------------------

    def attached(self) -> None:
        link = self._link
        if link is None or link.attach is None or link.attach.target is None:
            # The broker's detach follows at once, with the reason (2.6.3).
            return
        self._most = deliveries_max(link)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        had_s, self._kept_s = self._kept_s, kept_s(link, link.attach.target)
        if self._sent and link.state == ATTACHED:
            # Otherwise the link has ended in this turn, and the next attach compares the maps.
            self._compare(link, had_s)
            self._wake()
        self._lived_at = self._attached_at
        if self._repeats:
            assert self._wire is not None
            self._wire.touch(self)
        else:
            super().attached()

    def _compare(self, link: EngineLink, had_s: int) -> None:
        """Resumes or concludes each message, by the maps of both sides."""
        assert link.attach is not None
        theirs = link.attach.unsettled
        if theirs is None or not self._kept_s:
            # The broker does not resume the link: it may have stored the messages or not.
            self._unknown()
            return
        is_incomplete = link.attach.incomplete_unsettled
        now = now_s()
        largest = link.peer_max_message_size
        found = False
        for number, (payload, sent_at) in [*self._sent.items()]:
            tag = self._tag(number)
            if tag in theirs:
                found = True
                state = theirs[tag]
                if isinstance(state, OUTCOMES):
                    self._conclude(number, outcome_of(state))
                    link.send_again(number, resume=True, settled=True, state=state)
                else:
                    self._awaited.add(number)
                    link.send_again(number, payload, resume=True, state=BEGINNING)
            elif is_incomplete:
                self._repeats = True
            elif now > max(sent_at, self._lived_at) + had_s:
                self._conclude(number, UNKNOWN_TOO_LATE)
            elif largest and len(payload) > largest:
                self._conclude(number, outcome_of_size(len(payload), largest))
            else:
                link.send_again(number, payload, resume=False)
        if self._repeats and not found:
            # Its part of the map has none of these messages, and another attach would have the same answer.
            self._unknown()

    def detached(self, error: AmqpError | None) -> None:
        repeats, wire, link = self._repeats, self._wire, self._link
        goes_on = goes_on_after(error) or not self._attached
        self._suspend()
        if repeats and error is None and wire is not None and link is not None:
            # After an end of the connection that is handled in this turn, the next one attaches it.
            with suppress(EndedError):
                self.attach(wire, link.session)
        elif not self._kept_s or not goes_on:
            super().detached(error)
        else:
            self._connection.link_lost(self, self.what, error)
            if self._closed is None:
                self._wait_for_end()

    def handle(self, event: events.Event) -> None:
        if isinstance(event, events.Outcome):
            if not event.settled and isinstance(event.state, Received):
                # A part of the message has arrived; the outcome follows.
                return
            sent, lived_at = self._sent, self._lived_at
            for number in range(event.first, event.last + 1):
                kept = sent.pop(number, None)
                if kept is not None:
                    lived_at = max(lived_at, kept[1])
            self._lived_at = lived_at
            if self._awaited:
                self._awaited.difference_update(range(event.first, event.last + 1))
        super().handle(event)
        if self._repeats and self._wire is not None:
            self._wire.touch(self)

    def flush(self) -> None:
        """Sends waiting messages, as many as there is credit for, and as fit into a map."""
        link = self._link
        if self._repeats:
            self._repeat()
            return
        while link is not None and self._attached and self._waiting:
            number = link.sent  # type: ignore[attr-defined]
            room = min(link.limit - number, self._most - len(self._sent))
            if room <= 0:
                break
            self._send_batch(link, number, room)

    def _repeat(self) -> None:
        """Attaches again when the deliveries in an incomplete map of the broker are settled (2.7.3)."""
        link, wire = self._link, self._wire
        if link is None or wire is None or link.waiting_again or self._awaited or link.awaits_answer:
            return
        link.awaits_answer = True
        link.detach(closed=False)
        wire.touch()

    def _send_batch(self, link: EngineLink, number: int, room: int) -> None:
        waiting = self._waiting
        payloads: list[bytes] = []
        largest = link.peer_max_message_size
        now = now_s()
        while waiting and len(payloads) < room:
            payload, answer, _ = waiting.popleft()
            if answer.cancelled():
                continue
            if largest and len(payload) > largest:
                answer.set_result(outcome_of_size(len(payload), largest))
                self._wake()
                continue
            at = number + len(payloads)
            self._answers[at] = answer
            self._sent[at] = payload, now
            payloads.append(payload)
        if payloads:
            ends = array("I", accumulate(map(len, payloads)))
            link.send(len(payloads), ends, b"".join(payloads), 0, False)
