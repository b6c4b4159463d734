"""A scene of the chaos tests: a service, pairs of senders and receivers at full speed, the law at the end."""

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.ledger import Calm, Ledger
from tests.chaos.service import Service
from tests.chaos.traffic import Receiver, Sender, Worker
from tests.support import wait

RECOVERY_S = 60.0
"""Deadline for the broker to be back; what it really takes is in `recoveries`."""
WARM = 5_000
"""Messages that each sender gets accepted before anything is broken."""


def hold(seconds: float) -> None:
    """Lets real time pass where it is the subject: how long a process stands still."""
    threading.Event().wait(seconds)


class Scene:
    """Queues with a sender and a receiver each, on a service that is being broken.

    Args:
        pairs: queues; each has its own sender and receiver.
        count_max: messages of each sender.
        strict: see Ledger.
    """

    def __init__(
        self,
        data: Path,
        *flags: str,
        pairs: int = 2,
        size: int = 100,
        count_max: int = 4_000_000,
        rate: float | None = None,
        strict: bool = True,
    ) -> None:
        self.service = Service(data, *flags)
        self.calm = Calm()
        self.ledgers = [Ledger(self.calm, strict=strict) for _ in range(pairs)]
        where = self.service.where
        self.senders = [
            Sender(where, f"q{i}", self.ledgers[i], number=i, size=size, count_max=count_max, rate=rate)
            for i in range(pairs)
        ]
        self.receivers = [Receiver(where, f"q{i}", self.ledgers[i], number=i) for i in range(pairs)]
        self.recoveries: list[float] = []
        """Seconds from the end of each fault to messages that go through everywhere again."""
        self._stack = ExitStack()

    @property
    def workers(self) -> list[Worker]:
        return [*self.senders, *self.receivers]

    def __enter__(self) -> Self:
        self._stack.enter_context(self.service)
        for worker in self.workers:
            self._stack.enter_context(worker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is not None:
            error.add_note(self.report())
        return self._stack.__exit__(kind, error, trace)

    def warm(self) -> None:
        """Waits until every pair is at work."""
        for sender in self.senders:
            sender.until_accepted(WARM)
        for receiver in self.receivers:
            receiver.until_received(WARM)

    def recovered(self, since: float | None = None) -> None:
        """Waits until every pair is at work again; `since` is when the fault ended (monotonic)."""
        since = time.monotonic() if since is None else since
        for sender in self.senders:
            sender.until_accepted(WARM, RECOVERY_S)
        for receiver in self.receivers:
            receiver.until_received(WARM, RECOVERY_S)
        self.recoveries.append(time.monotonic() - since)
        self.calm.settle()

    def finish(self) -> None:
        """Ends the senders, lets everything arrive, and applies the law."""
        for sender in self.senders:
            sender.finish()
        for ledger in self.ledgers:
            wait.until_with(ledger, lambda ledger: not ledger.lost or ledger.complaints, "everything arrives")
        wait.until(
            lambda: all(time.monotonic() - one.latest_arrival > 0.3 for one in self.receivers),
            "nothing more arrives",
        )
        for receiver in self.receivers:
            receiver.finish()
        print(self.report())
        for ledger in self.ledgers:
            ledger.verdict()
        said = self.service.said()
        assert "Traceback" not in said, f"a traceback on the broker's stderr:\n{said[-4000:]}"

    def report(self) -> str:
        lines = [f"recovered after {', '.join(f'{one:.2f} s' for one in self.recoveries) or '-'}"]
        for ledger, sender, receiver in zip(self.ledgers, self.senders, self.receivers, strict=True):
            lines.append(f"{sender.queue}: {ledger.summary()}; slowest answer {sender.slowest_answer:.2f} s")
            for worker in (sender, receiver):
                lines.append(f"  {worker.name}: {worker.connections} connections, {dict(worker.losses)}")
            if sender.rejections:
                lines.append(f"  rejected: {dict(sender.rejections)}")
            lines += [f"  {complaint}" for complaint in ledger.complaints]
        return "\n".join(lines)
