"""Senders and receivers of the chaos tests: threads that connect again and account for every message."""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from types import TracebackType
from typing import Self

from lightrail.amqp import events
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Accepted, Rejected
from lightrail.amqp.sections import decode_header
from tests.chaos.ledger import ACCEPTED, REJECTED, RELEASED, SENT, Ledger, messages
from tests.support import wait
from tests.support.amqp.socket_client import Client, LostError

SEND_MAX = 250
"""Messages that are handed to the engine at a time."""
RECONNECT_S = 0.05
CREDIT = 1_000

Address = Callable[[], str]


class Traffic(threading.Thread):
    """A client that works until it is stopped, over as many connections as that takes."""

    def __init__(self, name: str, address: Address) -> None:
        super().__init__(name=name, daemon=True)
        self.address = address
        self.stopping = threading.Event()
        self.connections = 0
        self.losses: Counter[str] = Counter()
        """Why connections ended, as a client sees it."""
        self.failure: BaseException | None = None
        self.latest_arrival = time.monotonic()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.visit()
        except BaseException as error:
            self.failure = error

    def visit(self) -> None:
        """One connection from its beginning to its end, however it ends."""
        raise NotImplementedError

    def finish(self, deadline_s: float = wait.DEADLINE_S) -> None:
        self.stopping.set()
        self.join(deadline_s)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.join(wait.DEADLINE_S)
        if error is None and self.failure is not None:
            raise self.failure


class Worker(Traffic):
    """A client on AMQP."""

    def __init__(self, name: str, address: Address) -> None:
        super().__init__(name, address)
        self.conditions: Counter[str] = Counter()
        """Conditions that the broker gave when it ended a connection or refused a link."""

    def visit(self) -> None:
        try:
            with Client(self.address()) as client:
                self.connections += 1
                self.work(client)
        except (LostError, OSError) as error:
            self.losses[str(error)] += 1
            if isinstance(error, LostError) and error.condition is not None:
                self.conditions[error.condition] += 1
            self.stopping.wait(RECONNECT_S)

    def work(self, client: Client) -> None:
        """One connection's life; returns when the work is done, raises LostError when the connection is."""
        raise NotImplementedError


class Sender(Worker):
    """Sends numbered messages as fast as credit lets it, or at `rate` per second; never the same one twice.

    What had no answer when a connection went stays in doubt: it may have been stored or not.

    Args:
        room: how many more messages may be accepted now; None for any number.
    """

    def __init__(
        self,
        address: Address,
        queue: str,
        ledger: Ledger,
        *,
        number: int = 1,
        count_max: int = 1_000_000,
        size: int = 100,
        rate: float | None = None,
        room: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(f"sender-{number}", address)
        self.queue = queue
        self.number = number
        self.calm = ledger.calm
        self.page = ledger.page(number, count_max)
        self.size = size
        self.rate = rate
        self.room = room
        self.rejections: Counter[str] = Counter()
        self.latest_answer = 0.0
        """When an outcome came last (monotonic)."""
        self.slowest_answer = 0.0
        """Longest time from sending to its outcome, in seconds."""
        self._incarnation = 0
        self._base = 0
        self._pending: list[tuple[int, float]] = []

    @property
    def done(self) -> bool:
        return self.page.sent >= self.page.count_max

    def work(self, client: Client) -> None:
        self._incarnation += 1
        self._base = self.page.sent
        self._pending.clear()
        session = client.session()
        link = client.attach(session, f"s{self.number}-{self._incarnation}", self.queue, sender=True)
        limit = link.limit
        answered = 0
        started = time.monotonic()
        while True:
            if not self.stopping.is_set() and not self.done:
                limit = max(limit, link.limit)
                self._send(link, limit, started, answered)
            elif answered == self.page.sent - self._base:
                return
            for event in client.step(self._pause(link, limit)):
                if isinstance(event, events.Outcome):
                    answered += self._outcome(event)
                elif isinstance(event, events.Credit):
                    limit = event.limit
                elif isinstance(event, events.Detached | events.Ended):
                    error = event.error
                    condition = None if error is None else str(error.condition)
                    raise LostError(f"link ended: {condition}", condition)

    def _pause(self, link: Link, limit: int) -> float:
        if self.rate is not None:
            return min(0.02, 1 / self.rate)
        busy = self.page.sent - self._base < limit and not self.stopping.is_set() and not self.done
        return 0.0 if busy else 0.02

    def _send(self, link: Link, limit: int, started: float, answered: int) -> None:
        page = self.page
        some = min(SEND_MAX, limit - (page.sent - self._base), page.count_max - page.sent)
        now = time.monotonic()
        if self.rate is not None:
            some = min(some, int((now - started) * self.rate) - (page.sent - self._base))
        if self.room is not None:
            # What has no answer yet takes room, too.
            some = min(some, self.room() - (page.sent - self._base - answered))
        if some <= 0:
            return
        first = page.sent
        batch = messages(self.number, self._incarnation, first, first + some, self.size)
        page.mark(first, first + some, SENT)
        page.born[first : first + some] = bytes((self.calm.epoch,)) * some
        page.sent = first + some
        self._pending.append((first + some, now))
        ends = array("I", accumulate(map(len, batch)))
        link.send(some, ends, b"".join(batch))

    def _outcome(self, event: events.Outcome) -> int:
        first, stop = self._base + event.first, self._base + event.last + 1
        state = event.state
        now = self.latest_answer = time.monotonic()
        if isinstance(state, Accepted):
            self.page.mark(first, stop, ACCEPTED)
        elif isinstance(state, Rejected):
            self.page.mark(first, stop, REJECTED)
            self.rejections[str(state.error.condition) if state.error else "none"] += stop - first
        else:
            self.page.mark(first, stop, RELEASED)
        while self._pending and self._pending[0][0] <= stop:
            self.slowest_answer = max(self.slowest_answer, now - self._pending.pop(0)[1])
        return stop - first

    def until_accepted(self, more: int = 1, deadline_s: float = wait.DEADLINE_S) -> None:
        """Waits until `more` messages beyond those of now are accepted."""
        goal = self.page.accepted + more
        wait.until(
            lambda: self.page.accepted >= goal or self.failure is not None,
            f"{self.name} gets {more} messages accepted (losses: {dict(self.losses)})",
            deadline_s,
        )


class Receiver(Worker):
    """Takes whatever is in the queue and accepts it at once."""

    def __init__(
        self, address: Address, queue: str, ledger: Ledger, *, number: int = 1, credit: int = CREDIT
    ) -> None:
        super().__init__(f"receiver-{number}", address)
        self.queue = queue
        self.ledger = ledger
        self.number = number
        self.credit = credit
        self.received = 0
        self._incarnation = 0

    def work(self, client: Client) -> None:
        self._incarnation += 1
        session = client.session()
        link = client.attach(session, f"r{self.number}-{self._incarnation}", self.queue, sender=False)
        link.grant(self.credit)
        order: dict[tuple[int, int], int] = {}
        head = b""
        marked = False
        while not self.stopping.is_set():
            for event in client.step(0.02):
                if isinstance(event, events.Transfers):
                    if event.head != head:
                        head = event.head
                        marked = decode_header(head).delivery_count > 0 if head else False
                    self.ledger.arrive(event.payloads, marked=marked, order=order)
                    self.received += len(event.payloads)
                    self.latest_arrival = time.monotonic()
                    link.settle(event.first_delivery_id, event.first_delivery_id + len(event.payloads) - 1)
                    if link.credit <= self.credit // 2:
                        link.grant(self.credit)
                elif isinstance(event, events.Detached | events.Ended):
                    error = event.error
                    condition = None if error is None else str(error.condition)
                    raise LostError(f"link ended: {condition}", condition)
        link.detach()
        client.amqp.close()
        client.step(0.2)

    def until_received(self, more: int = 1, deadline_s: float = wait.DEADLINE_S) -> None:
        """Waits until `more` messages beyond those of now have come."""
        goal = self.received + more
        wait.until(
            lambda: self.received >= goal or self.failure is not None,
            f"{self.name} gets {more} messages (losses: {dict(self.losses)})",
            deadline_s,
        )


def until_at_work(workers: Iterable[Traffic], late: Callable[[], list[str]], deadline_s: float) -> None:
    """Waits until nobody is late, or a worker has failed; an error has the names of those that are late."""
    try:
        wait.until(
            lambda: not late() or any(worker.failure is not None for worker in workers),
            "everybody sends and receives",
            deadline_s,
        )
    except AssertionError as error:
        error.add_note(f"these do not: {', '.join(late())}")
        raise
