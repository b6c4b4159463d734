"""Loads of the fault matrix, all at work on one broker: each has senders, receivers, and a ledger per queue.

``queue``
    a sender and a receiver of a plain queue.
``policy``
    the same of a queue that looks into its messages and locks them by a timer.
``router``
    a sender to a router, and a receiver at each of the two queues that it feeds, on different shards.
``http``
    messages posted one by one, locked at the head and completed.
``transaction``
    a sender to one queue, a client that moves its messages to another one in transactions, and a receiver
    there.
``resumed``
    a sender and a receiver whose links are resumed: each message arrives once, over every fault.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.chaos.client_traffic import Mover, ResumingReceiver, ResumingSender
from tests.chaos.http_traffic import HttpReceiver, HttpSender
from tests.chaos.ledger import Calm, Ledger, shared
from tests.chaos.service import Service
from tests.chaos.traffic import Receiver, Sender, Traffic
from tests.support import wait
from tests.support.http_client import Http
from tests.support.namespace import give, subscribe

LOADS: Final = ("queue", "policy", "router", "http", "transaction", "resumed")
LOCK_S: Final = 5.0
"""After it a lock whose holder is dead brings its message back."""
COUNT_MAX: Final = 3_000_000
AHEAD: Final = 1_000
"""Messages that wait for transactions, at most."""
RECOVERY_S: Final = 60.0
"""Deadline for everybody to be at work again."""
RATES: Final = {
    "queue": 3_000.0,
    "policy": 400.0,
    "router": 1_000.0,
    "http": 40.0,
    "transaction": 100.0,
    "resumed": 200.0,
}
"""Messages per second; over HTTP a receiver needs two requests for each."""
WARM: Final = {"queue": 600, "policy": 80, "router": 200, "http": 15, "transaction": 40, "resumed": 80}
"""Messages that each party sends or receives before a fault, and after it."""


@dataclass(frozen=True)
class Load:
    """One kind of traffic."""

    name: str
    senders: Sequence[Sender | HttpSender | ResumingSender]
    receivers: Sequence[Receiver | HttpReceiver | ResumingReceiver | Mover]
    ledgers: Sequence[Ledger]
    """One per queue from which messages are received for good."""
    once: bool = False
    """Whether each message arrives once, and not at least once."""

    @property
    def workers(self) -> list[Traffic]:
        return [*self.senders, *self.receivers]

    def progress(self) -> list[int]:
        return [each.page.accepted for each in self.senders] + [each.received for each in self.receivers]

    def report(self) -> list[str]:
        lines = [f"{self.name}: {ledger.summary()}" for ledger in self.ledgers]
        for each in self.workers:
            lines.append(f"  {each.name}: {each.connections} connections, {dict(each.losses)}")
            if isinstance(each, Mover):
                lines.append(f"    moved {each.received}, transactions not confirmed {each.unconfirmed}")
        lines += [f"  {complaint}" for ledger in self.ledgers for complaint in ledger.complaints]
        return lines


class Loads:
    """A broker of two shards and two frontends with every load at work.

    Args:
        data: its directory.
    """

    def __init__(self, data: Path, *flags: str) -> None:
        self.service = Service(data, "--frontends", "2", "--shards", "2", *flags)
        self.calm = Calm()
        self.recoveries: list[float] = []
        """Seconds from the end of each fault until everybody was at work again."""
        self.all = [
            self._pair("queue", 0),
            self._pair("policy", 1),
            self._routed(2),
            self._http(3),
            self._transactions(4),
            self._resumed(5),
        ]
        self._stack = ExitStack()

    def _ledger(self, *, moved: bool = False) -> Ledger:
        # Two frontends: what one of them held may come back behind later messages.
        return Ledger(self.calm, strict=False, moved=moved, exact=True)

    def _pair(self, name: str, number: int) -> Load:
        ledger, where = self._ledger(), self.service.where
        sender = Sender(where, name, ledger, number=number, count_max=COUNT_MAX, rate=RATES[name])
        return Load(name, [sender], [Receiver(where, name, ledger, number=number)], [ledger])

    def _routed(self, number: int) -> Load:
        ledger, where = self._ledger(), self.service.where
        sender = Sender(where, "router", ledger, number=number, count_max=COUNT_MAX, rate=RATES["router"])
        ledgers = [shared(ledger, sender.page, number) for _ in range(2)]
        receivers = [
            Receiver(where, f"routed-{copy}", each, number=10 + copy) for copy, each in enumerate(ledgers)
        ]
        return Load("router", [sender], receivers, ledgers)

    def _http(self, number: int) -> Load:
        ledger = self._ledger()
        where: Callable[[], str] = lambda: self.service.gateway  # noqa: E731 - known once it has started
        sender = HttpSender(where, "http", ledger, number=number, count_max=COUNT_MAX, rate=RATES["http"])
        return Load("http", [sender], [HttpReceiver(where, "http", ledger, number=number)], [ledger])

    def _transactions(self, number: int) -> Load:
        ledger, where, rate = self._ledger(moved=True), self.service.where, RATES["transaction"]
        mover = Mover(where, "transaction", "moved", number=number)
        receiver = Receiver(where, "moved", ledger, number=number)
        sender = Sender(
            where,
            "transaction",
            ledger,
            number=number,
            count_max=COUNT_MAX,
            rate=rate,
            # A shard may be away for longer than it is there; what came again was not moved again.
            room=lambda: AHEAD - (ledger.accepted - (ledger.arrivals - ledger.again)),
        )
        return Load("transaction", [sender], [mover, receiver], [ledger])

    def _resumed(self, number: int) -> Load:
        ledger, where, rate = self._ledger(), self.service.where, RATES["resumed"]
        sender = ResumingSender(where, "resumed", ledger, number=number, count_max=COUNT_MAX, rate=rate)
        receiver = ResumingReceiver(where, "resumed", ledger, number=number)
        return Load("resumed", [sender], [receiver], [ledger], once=True)

    # --- life ------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[Traffic]:
        return [worker for load in self.all for worker in load.workers]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.service)
            data = self.service.data
            give(data, "queue", role="queue")
            give(data, "policy", role="queue", priorities=10, lock_duration=LOCK_S, max_delivery_count=100)
            give(data, "http", role="queue", lock_duration=LOCK_S, max_delivery_count=100)
            give(data, "router", role="router")
            # Over many rounds a message is in many transactions that are not confirmed.
            give(data, "transaction", role="queue", max_delivery_count=100)
            for name in ("moved", "resumed"):
                give(data, name, role="queue")
            for copy in range(2):
                give(data, f"routed-{copy}", role="queue")
                subscribe(data, "router", f"routed-{copy}")
            for worker in self.workers:
                stack.enter_context(worker)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None:
            error.add_note(self.report())
            error.add_note(self._figures())
        return self._stack.__exit__(kind, error, trace)

    def _figures(self) -> str:
        """What the broker answers about its queues, connections and transactions."""
        lines = []
        try:
            with Http(self.service.gateway) as ask:
                for path in ("/!queues", "/!connections", "/!transactions"):
                    lines.append(f"{path}: {ask('GET', path).body.decode()}")
        except (OSError, HTTPException) as error:
            lines.append(f"the gateway does not answer: {error}")
        return "\n".join(lines)

    def warm(self) -> None:
        """Waits until every party of every load has made progress from here on."""
        goals = [[count + WARM[load.name] for count in load.progress()] for load in self.all]

        def late() -> list[str]:
            return [
                worker.name
                for load, goal in zip(self.all, goals, strict=True)
                for worker, count, least in zip(load.workers, load.progress(), goal, strict=True)
                if count < least
            ]

        def at_work() -> bool:
            return not late() or any(worker.failure is not None for worker in self.workers)

        try:
            wait.until(at_work, "everybody sends and receives", RECOVERY_S)
        except AssertionError as error:
            error.add_note(f"these do not: {', '.join(late())}")
            raise

    def recovered(self) -> None:
        """The fault is over: waits until everybody is at work; from then on nothing may come twice."""
        began = time.monotonic()
        self.warm()
        self.recoveries.append(time.monotonic() - began)
        self.calm.settle()

    # --- the laws --------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Ends the senders, lets everything arrive, and applies the laws to each load."""
        for load in self.all:
            for sender in load.senders:
                sender.finish()
        print("when the senders had ended", self.report(), sep="\n")
        for load in self.all:
            for ledger in load.ledgers:
                wait.until_with(
                    ledger,
                    lambda ledger: not ledger.lost or ledger.complaints,
                    f"everything of {load.name} arrives",
                    RECOVERY_S,
                )
        receivers = [receiver for load in self.all for receiver in load.receivers]
        wait.until(
            lambda: all(time.monotonic() - one.latest_arrival > 0.3 for one in receivers),
            "nothing more arrives",
        )
        for receiver in receivers:
            receiver.finish()
        print(self.report())
        for load in self.all:
            for ledger in load.ledgers:
                ledger.verdict()
                assert not ledger.unmarked, "\n".join(
                    ["not marked:", ledger.summary(), *ledger.unmarked_ones]
                )
                assert not (load.once and ledger.again), f"received again: {ledger.summary()}"
        said = self.service.said()
        assert "Traceback" not in said, f"a traceback on the broker's stderr:\n{said[-4000:]}"

    def report(self) -> str:
        lines = [f"recovered after {', '.join(f'{one:.2f} s' for one in self.recoveries) or '-'}"]
        for load in self.all:
            lines += load.report()
        return "\n".join(lines)
