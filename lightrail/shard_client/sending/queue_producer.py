"""Queue producer: sends batches to one queue for callers that wait until each is stored.

A batch is one frame, or several where its messages differ in durability, priority or expiry. Batches that are
refused only for a batch before them are sent again (window.py), so that a refused batch does not fail others;
the frames of one batch are stored up to the first that is refused.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import accumulate
from typing import NamedTuple

from lightrail.shard_client.links import Producer
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes, OrderedWindow
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import DUE, UNKNOWN_SEQUENCE, Kind, enqueue, frame

Part = tuple[Attributes, Sequence[bytes | memoryview]]
"""Messages of one frame: their common fields, and their bytes."""


class BatchAnswer(NamedTuple):
    """What became of a batch."""

    stored: int
    """Messages that are stored: its first ones."""
    new: int
    """Those that were not stored before, under the same number of a named producer."""
    sequence: int | None
    """Sequence of its first message, where the shard reports sequences."""
    refusal: Refusal | None
    """Why the others are not stored; NOT_STORED or MAYBE_STORED if no answer came in time."""
    is_ended: bool
    """Whether the refusal ended the producer."""


class _Sending:
    """A batch whose caller waits."""

    __slots__ = ("answer", "frames", "new", "refusal", "sequence", "stored", "unanswered")

    def __init__(self, answer: "asyncio.Future[BatchAnswer]", parts: Sequence[Part]) -> None:
        self.answer = answer
        self.frames = [_SentFrame(self, *part) for part in parts]
        self.unanswered = len(self.frames)
        self.stored = self.new = 0
        self.sequence: int | None = None
        self.refusal: Refusal | None = None

    def frame_answered(self) -> None:
        self.unanswered -= 1
        if not self.unanswered:
            self.end(self.refusal)

    def end(self, refusal: Refusal | None, *, is_ended: bool = False) -> None:
        if not self.answer.done():
            self.answer.set_result(BatchAnswer(self.stored, self.new, self.sequence, refusal, is_ended))


@dataclass(slots=True, eq=False, repr=False)
class _SentFrame:
    """An unanswered frame."""

    sending: _Sending
    attributes: Attributes
    payloads: Sequence[bytes | memoryview]
    number: int = 0
    """0: it was never sent."""
    part: bytes = b""


@dataclass(slots=True, eq=False, repr=False)
class QueueProducer(Producer):
    """A link that sends to one queue; it is opened with the first batch, or by `open`.

    Args:
        number: of the link, unique in the lifetime of this process.
        sequences: whether the shard reports the sequences of stored messages.
        is_whole: whether the shard stores the messages of a frame all or none.
        identity: key of a named producer at the shard, of which two links exclude each other; 0 for none.
        is_routed: whether a router chose the queue, whose status refuses nothing then.
        first: number of the first frame.
        left_ms: how long its user waits from now on, after which no shard opens it; None for no limit.
        on_ready: called when the shard has opened the producer.
        on_end: called when the shard has ended it.
    """

    _owner: Owner
    number: int
    _: KW_ONLY
    label: str = ""
    sequences: bool = False
    is_whole: bool = False
    identity: int = 0
    is_routed: bool = False
    first: InitVar[int] = 1
    left_ms: Callable[[], int] | None = None
    on_ready: Callable[[], None] | None = None
    on_end: Callable[[Refusal], None] | None = None
    _window: OrderedWindow[_SentFrame] = field(default_factory=OrderedWindow)
    _is_open: bool = False
    _is_closing: bool = False
    is_closed: bool = False
    """Whether it accepts no batch any more."""

    def __post_init__(self, first: int) -> None:
        self._window.next = first

    @property
    def queue(self) -> str:
        return self._owner.queue

    @property
    def is_idle(self) -> bool:
        """Whether every batch has its answer."""
        return not self._window

    def open(self) -> None:
        """Opens the link, and sends what was added before."""
        if not self._is_open:
            self._is_open = True
            self._owner.open_producer(self)

    async def send(self, parts: Sequence[Part], wait_ms: int) -> BatchAnswer:
        """Stores a batch, and waits for its answers, at most `wait_ms`.

        A batch whose caller is cancelled, or waits no longer, is not sent again if the shard is lost.
        """
        loop = asyncio.get_running_loop()
        sending = _Sending(loop.create_future(), parts)
        for each in sending.frames:
            if self._window.is_refusing:
                self._window.wait(each)
            else:
                self._post(each)
        self.open()
        timer = loop.call_later(wait_ms / 1000, self._late, sending)
        try:
            return await sending.answer
        finally:
            timer.cancel()
            if sending.unanswered:
                for each in sending.frames:
                    self._window.answer(each.number)
                self._send_waiting()

    def _post(self, each: _SentFrame) -> None:
        ends = array("I", accumulate(map(len, each.payloads)))
        window = self._window
        number = each.number = window.next
        each.part = enqueue(
            self.number,
            self._owner.epoch,
            number,
            ends.tobytes(),
            each.payloads,
            durable=each.attributes.durable,
            afresh=not window,
            priority=each.attributes.priority,
            expires_at_ms=each.attributes.expires_at_ms,
            message_format=each.attributes.message_format,
            size=ends[-1],
            whole=self.is_whole,
        )
        window.add(number, each)
        if self._is_open:
            self._owner.post(each.part)

    def _late(self, sending: _Sending) -> None:
        sent = [each.number for each in sending.frames if each.number]
        may_be_stored = self._owner.is_there or any(map(self._window.may_be_stored, sent))
        for number in sent:
            # The shard may be back before the caller runs.
            self._window.answer(number)
        sending.end(MAYBE_STORED if sent and may_be_stored else NOT_STORED)

    def close_when_answered(self) -> None:
        """Closes the link once every batch has its answer; send no more batches."""
        self._is_closing = True
        self._send_waiting()

    def close(self) -> None:
        """Closes the link; batches without an answer may or may not be stored."""
        if not self.is_closed:
            self.is_closed = True
            self._owner.close_producer(self.number)
            for each in self._window.clear():
                each.sending.end(MAYBE_STORED)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this producer, and sends unanswered frames again."""
        window = self._window
        body = ProducerOpen(
            self.queue,
            self.sequences,
            label=self.label,
            identity=self.identity,
            sent_below=window.sent_below,
            routed=self.is_routed,
        )
        number = window.next
        if self.identity:
            # Unanswered frames of a named producer have no gap, unless one of them was refused.
            number = 0 if any(each.sending.refusal for each in window) else window.first
        due = None if self.left_ms is None else self._owner.due(self.left_ms())
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                flags=DUE * (due is not None),
                link=self.number,
                epoch=self._owner.epoch,
                count=due or 0,
                number=number,
                body=body.encode(),
            )
        )
        for each in window:
            self._owner.post(each.part)
        window.mark_sent()

    def disconnected(self) -> None:
        """See Producer."""
        self._window.mark_sent()

    def ready(self) -> None:
        """The shard has opened the producer; its frames were sent with the opening."""
        if self.on_ready is not None:
            self.on_ready()

    def stored(self, number: int, sequence: int) -> None:
        """One frame is stored; without a known sequence it was stored before."""
        each = self._window.answer(number)
        if each is not None:
            sending = each.sending
            sending.stored += len(each.payloads)
            if sequence != UNKNOWN_SEQUENCE:
                sending.new += len(each.payloads)
            if each is sending.frames[0]:
                sending.sequence = sequence
            sending.frame_answered()
        self._send_waiting()

    def answered(self, number: int, count: int) -> None:
        """Frames are stored, at a shard that was not asked for sequences or does not report them."""
        for each in self._window.answer_run(number, count):
            each.sending.stored += len(each.payloads)
            each.sending.frame_answered()
        self._send_waiting()

    def refused(self, number: int, refusal: Refusal) -> None:
        """One frame is not stored, or only its first messages; the shard refuses those behind it, too."""
        each = self._window.answer(number)
        sending = None if each is None else each.sending
        if sending is None or sending.refusal is not None or sending.answer.done():
            # Its batch is refused already, or nobody waits for it.
            self._window.refused(None)
        elif self._window.refused(each):
            sending = None
        else:
            sending.refusal = refusal
            sending.stored += refusal.accepted
        if sending is not None:
            sending.frame_answered()
        self._send_waiting()

    def ended(self, refusal: Refusal) -> None:
        """The shard refuses this producer, or has closed it."""
        self.is_closed = True
        for each in self._window.clear():
            each.sending.end(refusal, is_ended=True)
        if self.on_end is not None:
            self.on_end(refusal)

    def _send_waiting(self) -> None:
        """Once all frames are answered, sends those that wait, the first of them marked afresh."""
        for each in self._window.take_waiting():
            if not each.sending.answer.done():
                self._post(each)
        if self._is_closing and not self._window:
            self.close()
