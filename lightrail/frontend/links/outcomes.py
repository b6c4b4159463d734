"""Outcomes of deliveries, as states of AMQP (messaging 3.4) and as SETTLE frames of the wire.

A client's outcome goes to the shard (`encode_outcome`), a listener's to its senders (`decode_outcome`). A
client that waits for the broker to settle (receiver-settle-mode second) has `Unconfirmed` outcomes until the
shard has stored them. Messages that are `TooLarge` for one receiver stay in their queue for other receivers.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.decoder import decode
from lightrail.amqp.encoder import encode
from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.performatives import Accepted, AmqpError, Modified, Rejected, Released
from lightrail.amqp.values import Symbol
from lightrail.model import conditions
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.wire.bodies import ConsumerOpen, SettleDetail
from lightrail.wire.frames import OutcomeCode

if TYPE_CHECKING:
    from lightrail.amqp.link import Link


@dataclass(slots=True)
class Deferral:
    """An outcome by which a client defers messages (queue/timed/aside.py)."""

    state: Modified
    """The state when the broker settles: undeliverable-here."""
    annotations: dict[Symbol, Any] | None = None
    """Annotations that the messages get; None for none."""


OUTCOMES: Final = (Accepted, Rejected, Released, Modified, Deferral)
"""Terminal states (messaging 3.4): other states do not settle a delivery."""
FAILED: Final = Modified(delivery_failed=True)
"""The outcome of messages that a shard may have stored before it stopped."""
ELSEWHERE: Final = Modified(undeliverable_here=True)
"""The outcome of messages that the client does not accept, for other receivers."""


def rejected(condition: str, description: str) -> Rejected:
    """The outcome of messages that are refused for a reason."""
    return Rejected(error=AmqpError(condition=Symbol(condition), description=description))


LOST: Final = rejected(
    conditions.MESSAGE_LOCK_LOST,
    "expected a locked message, found that its lock has ended, or that it was settled by its lock token",
)
"""The answer to an outcome of a message that is not locked for the link any more."""
UNANSWERED: Final = rejected(
    conditions.MESSAGE_LOCK_LOST,
    "expected the queue's shard to store the outcome, found that nobody can tell whether it did; if it did "
    "not, the message is delivered again when its lock has ended",
)
"""The answer to an outcome that a shard may have stored before it stopped."""


def encode_outcome(state: object, options: ConsumerOpen) -> tuple[OutcomeCode, bytes]:
    """The code and body of a SETTLE frame.

    Args:
        state: of the client's settlement; without an outcome, the default of `options` is sent.
    """
    if isinstance(state, Accepted):
        return OutcomeCode.ACCEPTED, b""
    if isinstance(state, Released):
        return OutcomeCode.RELEASED, b""
    if isinstance(state, Rejected):
        error = state.error
        detail = SettleDetail()
        if error is not None:
            detail.condition = str(error.condition)[:256]
            detail.description = (error.description or "")[:1024]
            notes = {key: value for key, value in (error.info or {}).items() if _is_annotation(key)}
            if notes:
                detail.annotations = encode(notes).hex()
        return OutcomeCode.REJECTED, detail.encode()
    if isinstance(state, Deferral):
        annotations = encode(state.annotations).hex() if state.annotations else ""
        return OutcomeCode.MODIFIED, SettleDetail(annotations=annotations, deferred=True).encode()
    if isinstance(state, Modified):
        annotations = encode(state.message_annotations).hex() if state.message_annotations else ""
        return OutcomeCode.MODIFIED, SettleDetail(
            delivery_failed=bool(state.delivery_failed),
            undeliverable_here=bool(state.undeliverable_here),
            annotations=annotations,
        ).encode()
    # Settled without an outcome: the source's default-outcome, or modified(delivery-failed) (3.5.3).
    return OutcomeCode(options.default_outcome), SettleDetail.default_of(options).encode()


def decode_outcome(code: int, detail: SettleDetail) -> Any:
    """The delivery state for a sender whose listener has settled (messaging 3.4)."""
    if code == OutcomeCode.ACCEPTED:
        return ACCEPTED
    if code == OutcomeCode.RELEASED:
        return RELEASED
    if code == OutcomeCode.REJECTED:
        if not detail.condition:
            return Rejected()
        return rejected(detail.condition, detail.description)
    return Modified(
        delivery_failed=detail.delivery_failed,
        undeliverable_here=detail.undeliverable_here,
        message_annotations=_annotations(detail.annotations) if detail.annotations else None,
    )


def _annotations(encoded: str) -> Any:
    data = bytes.fromhex(encoded)
    return decode(data, 0, len(data))[0]


def _is_annotation(key: object) -> bool:
    """Whether an entry of an error's info is kept on the dead letter: x-opt-, except the broker's names."""
    return isinstance(key, str) and key.startswith("x-opt-") and not key.startswith("x-opt-dead-letter-")


def confirmed(state: Any, *, plainly: bool) -> Any:
    """The state of a settlement that confirms a client's state."""
    if plainly and isinstance(state, Rejected):
        return Rejected()
    return state.state if isinstance(state, Deferral) else state


UNCONFIRMED: Final = (
    "expected the queue's shard to store your outcomes before they are settled here, found that it was "
    "restarted or had no room; attach again: deliveries without a stored outcome are delivered again"
)
"""Error for a client whose outcomes can't be confirmed."""

Range = tuple[int, int, Any]
"""First and last delivery number, and the state that the client sent for all of them."""


@dataclass(slots=True, eq=False, repr=False)
class Unconfirmed:
    """The outcomes of one link, by delivery number."""

    _states: dict[int, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, number: int) -> bool:
        return number in self._states

    def add(self, first: int, last: int, state: Any) -> list[Range]:
        """Adds outcomes that the client waits for. Returns the new ones: the first state counts."""
        new = self._others(first, last, state)
        for number in range(first, last + 1):
            self._states.setdefault(number, state)
        return new

    def drop(self, first: int, last: int, state: Any) -> list[Range]:
        """Removes outcomes that the client settles. Returns those that were not sent to the shard yet."""
        others = self._others(first, last, state)
        for number in range(first, last + 1):
            self._states.pop(number, None)
        return others

    def take(self, first: int, count: int) -> list[Range]:
        """Removes outcomes that the shard has stored. Returns those that the client waits for."""
        states = self._states
        there = [number for number in range(first, first + count) if number in states]
        return list(_ranges([(number, states.pop(number)) for number in there]))

    def all(self) -> list[Range]:
        """All outcomes that the shard has not answered."""
        return list(_ranges(sorted(self._states.items(), key=lambda each: each[0])))

    def clear(self) -> None:
        self._states.clear()

    def _others(self, first: int, last: int, state: Any) -> list[Range]:
        others = [number for number in range(first, last + 1) if number not in self._states]
        return list(_ranges([(number, state) for number in others]))


def _ranges(outcomes: Iterable[tuple[int, Any]]) -> Iterator[Range]:
    """Ranges of consecutive numbers with one state, of (number, state) in rising order."""
    first = last = -1
    newest: Any = None
    for number, state in outcomes:
        if first >= 0 and number == last + 1 and state is newest:
            last = number
            continue
        if first >= 0:
            yield first, last, newest
        first = last = number
        newest = state
    if first >= 0:
        yield first, last, newest


log = logging.getLogger("lightrail.frontend.links")

GROWTH_BYTES_MAX: Final[int] = 1_024
"""Bytes that a frontend adds to a message, as its header and annotations, of a link that removes first."""


class TooLarge:
    """The messages of one link that the engine passes over."""

    __slots__ = ("_counts", "_link", "_options", "_warned")

    def __init__(self, link: "Link", options: ConsumerOpen, counts: FrontendCounts) -> None:
        link.passed_over = []
        self._link = link
        self._options = options
        self._counts = counts
        self._warned = False
        """Whether the log has a line about the first one."""

    def take(self) -> Sequence[int]:
        """The numbers of deliveries that were passed over since the last call; counts them."""
        large = self._link.passed_over
        if not large:
            return ()
        if not self._warned:
            self._warned = True
            log.warning(
                "a message of %d bytes was not sent to %s, a receiver of %s: it accepts up to %d bytes "
                "(max-message-size); the message stays in the queue for other receivers",
                large[0][1],
                self._options.label,
                self._options.queue,
                self._link.peer_max_message_size,
            )
        self._counts.messages_too_large += len(large)
        numbers = [number for number, _ in large]
        large.clear()
        return numbers
