"""The ledger of a chaos test: what became of every message, by number, at its sender and at the receivers.

The law, checked by `Ledger.verdict`:

- every accepted message has arrived;
- no rejected message has, and nothing that was never sent;
- numbers of one sending link arrive in their order, except again: what was seen before may come once
  more, and then those behind it. With several frontends, what one held when it failed may come back to a
  receiver of another after later messages; then the order holds for what was sent and came without a fault;
- a message comes twice only where something failed between its two arrivals, and is then marked as delivered
  before; what was sent and came without a fault in between is not;
- a message that transactions move has been moved by one of them.
"""

import struct
import threading
from dataclasses import dataclass, field

TRAILER = struct.Struct(">IIQ")
"""Sender, incarnation of its link, number: the last bytes of every message."""
MOVE = struct.Struct(">Q")
"""Number of the transaction that has moved a message, before the trailer."""
PREFIX = b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75"
"""A header that says durable, and the descriptor of a data section."""
UNSENT, SENT, ACCEPTED, REJECTED, RELEASED = range(5)

_IS_ACCEPTED = bytes(code == ACCEPTED for code in range(256))
_IS_REJECTED = bytes(code == REJECTED for code in range(256))
_IS_UNSENT = bytes(code == UNSENT for code in range(256))
_IS_SEEN = bytes(code != 0 for code in range(256))
_COMPLAINTS_MAX = 20


class Calm:
    """Counts faults: odd while one is under way or its consequences are, even while all should be well."""

    def __init__(self) -> None:
        self.epoch = 2
        """From 2 on, so that 0 can stand for: never seen."""

    def disturb(self) -> None:
        if self.epoch % 2 == 0:
            self.epoch += 1

    def settle(self) -> None:
        if self.epoch % 2 == 1:
            self.epoch += 1


@dataclass
class Page:
    """The messages of one sender: a byte of state and a byte of first arrival for each number."""

    count_max: int
    state: bytearray = field(init=False)
    arrived: bytearray = field(init=False)
    """Epoch of the first arrival, 0 for none."""
    born: bytearray = field(init=False)
    """Epoch in which it was sent."""
    sent: int = 0
    again: int = 0
    """Arrivals beyond the first."""
    accepted: int = 0
    rejected: int = 0

    def __post_init__(self) -> None:
        self.state = bytearray(self.count_max)
        self.arrived = bytearray(self.count_max)
        self.born = bytearray(self.count_max)

    def mark(self, first: int, stop: int, code: int) -> None:
        self.state[first:stop] = bytes((code,)) * (stop - first)
        if code == ACCEPTED:
            self.accepted += stop - first
        elif code == REJECTED:
            self.rejected += stop - first

    def _numbers(self, where: bytes, seen: bool) -> int:
        """How many numbers have a state (by table) and were seen, or not."""
        state = int.from_bytes(self.state.translate(where), "little")
        arrived = int.from_bytes(self.arrived.translate(_IS_SEEN), "little")
        if not seen:
            ones = int.from_bytes(b"\x01" * self.count_max, "little")
            arrived ^= ones
        return (state & arrived).bit_count()

    @property
    def lost(self) -> int:
        """Accepted and not arrived (yet)."""
        return self._numbers(_IS_ACCEPTED, False)

    @property
    def lied(self) -> int:
        """Rejected and arrived all the same."""
        return self._numbers(_IS_REJECTED, True)

    @property
    def invented(self) -> int:
        """Arrived though never sent."""
        return self._numbers(_IS_UNSENT, True)

    @property
    def in_doubt(self) -> int:
        """Sent, and no answer came before the connection went."""
        return self.state.count(SENT)

    def first_lost(self) -> list[int]:
        found = (n for n in range(self.sent) if self.state[n] == ACCEPTED and not self.arrived[n])
        return [number for number, _ in zip(found, range(10), strict=False)]


class Ledger:
    """All senders of one test; threads may write to their own pages and to arrivals at the same time.

    Args:
        strict: order also holds across faults: one receiver, one frontend.
        moved: transactions have moved the messages, and have noted their numbers in them.
        exact: in calm only what arrived may be marked as delivered before, as no receiver ends then.
    """

    def __init__(
        self, calm: Calm | None = None, *, strict: bool = True, moved: bool = False, exact: bool = False
    ) -> None:
        self.calm = calm or Calm()
        self.strict = strict
        self.exact = exact
        self.pages: dict[int, Page] = {}
        self.complaints: list[str] = []
        self.arrivals = 0
        self.redelivered = 0
        """Arrivals whose header says that they were delivered before."""
        self.unmarked = 0
        """Arrivals beyond the first of a message whose header does not say so."""
        self.unmarked_ones: list[str] = []
        """The first of them."""
        self._moves: dict[tuple[int, int], int] | None = {} if moved else None
        self._lock = threading.Lock()
        self._highest: dict[tuple[int, int], int] = {}

    def page(self, sender: int, count_max: int) -> Page:
        page = self.pages[sender] = Page(count_max)
        return page

    def complain(self, what: str) -> None:
        if len(self.complaints) < _COMPLAINTS_MAX:
            self.complaints.append(what)

    def arrive(self, payloads: list[bytes], *, marked: bool, order: dict[tuple[int, int], int]) -> None:
        """Messages of one receiving link, in the order they came.

        Args:
            marked: their header says that they were delivered before.
            order: of this link: the newest number of each sending link.
        """
        unpack = TRAILER.unpack_from
        with self._lock:
            epoch = self.calm.epoch
            self.arrivals += len(payloads)
            if marked:
                self.redelivered += len(payloads)
            for payload in payloads:
                sender, incarnation, number = unpack(payload, len(payload) - 16)
                page = self.pages.get(sender)
                if page is None or number >= page.count_max:
                    self.complain(f"a message that nobody sent: {payload[-16:].hex()}")
                    continue
                key = (sender, incarnation)
                before = page.arrived[number]
                if before:
                    page.again += 1
                    if not marked:
                        self.unmarked += 1
                        if self.unmarked <= _COMPLAINTS_MAX:
                            self.unmarked_ones.append(
                                f"{number} of link {key}, sent in {page.born[number]}, "
                                f"first in {before}, again in {epoch} behind {order.get(key, -1)}"
                            )
                    if before == epoch and epoch % 2 == 0:
                        self.complain(f"{number} of sender {sender} came twice in calm {epoch}")
                else:
                    page.arrived[number] = epoch
                    if self.exact and marked and page.born[number] == epoch and epoch % 2 == 0:
                        self.complain(f"{number} of link {key} is marked, and was never delivered before")
                    newest = order.get(key, -1)
                    late = self.strict or (page.born[number] == epoch and epoch % 2 == 0)
                    if number < newest and late and not marked:
                        self.complain(f"{number} of link {key} came for the first time after {newest}")
                order[key] = number
                if self._moves is not None:
                    (move,) = MOVE.unpack_from(payload, len(payload) - 16 - MOVE.size)
                    if self._moves.setdefault((sender, number), move) != move:
                        self.complain(f"{number} of sender {sender} was moved by more than one transaction")

    # --- the verdict -----------------------------------------------------------------------------------

    @property
    def accepted(self) -> int:
        return sum(page.accepted for page in self.pages.values())

    @property
    def lost(self) -> int:
        return sum(page.lost for page in self.pages.values())

    @property
    def again(self) -> int:
        return sum(page.again for page in self.pages.values())

    @property
    def in_doubt(self) -> int:
        return sum(page.in_doubt for page in self.pages.values())

    def summary(self) -> str:
        pages = self.pages.values()
        return (
            f"sent {sum(page.sent for page in pages)}, accepted {self.accepted}, "
            f"rejected {sum(page.rejected for page in pages)}, in doubt {self.in_doubt}, "
            f"arrived {self.arrivals}, again {self.again} ({self.unmarked} unmarked), "
            f"marked {self.redelivered}, lost {self.lost}"
        )

    def verdict(self) -> None:
        """Raises AssertionError where the law was broken."""
        for sender, page in self.pages.items():
            assert not page.lost, (
                f"sender {sender}: {page.lost} accepted messages are lost, the first {page.first_lost()}; "
                f"{self.summary()}"
            )
            assert not page.lied, f"sender {sender}: {page.lied} rejected messages arrived; {self.summary()}"
            assert not page.invented, f"sender {sender}: {page.invented} arrived that were never sent"
        assert not self.complaints, "\n".join(self.complaints)


def shared(ledger: Ledger, page: Page, sender: int) -> Ledger:
    """A ledger of the same sender with arrivals of its own."""
    made = Ledger(ledger.calm, strict=ledger.strict, exact=ledger.exact)
    own = made.page(sender, 0)
    own.count_max, own.arrived = page.count_max, bytearray(page.count_max)
    own.state, own.born = page.state, page.born
    return made


def messages(sender: int, incarnation: int, first: int, stop: int, size: int) -> list[bytes]:
    """Durable messages first..stop-1 of a sending link, of `size` bytes each."""
    body = max(16, size - len(PREFIX) - 5)
    length = bytes((0xA0, body)) if body < 256 else b"\xb0" + body.to_bytes(4, "big")
    front = PREFIX + length + b"x" * (body - 16)
    pack = TRAILER.pack
    return [front + pack(sender, incarnation, number) for number in range(first, stop)]
