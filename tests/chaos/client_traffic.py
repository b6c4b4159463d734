"""Traffic of the project's own client, whose connections outlive the faults: resumed links, transactions."""

import asyncio
import time
from contextlib import suppress
from functools import partial

from lightrail.client import (
    ClientError,
    Connection,
    Delivery,
    LostError,
    Outcome,
    OutcomeKind,
    ReconnectPolicy,
    connect,
)
from tests.chaos.ledger import ACCEPTED, MOVE, REJECTED, RELEASED, SENT, TRAILER, Ledger
from tests.chaos.traffic import RECONNECT_S, Address, Traffic

BODY_BYTES = 64
AT_ONCE = 10
"""Messages of one transaction, at most."""
WINDOW = 100
RESUME_S = 120
"""Longer than any fault, with the recovery from it."""
LOOK_S = 0.2
"""How long a receiver waits before it looks whether it has to end."""
SOON = ReconnectPolicy(first=0.02, longest=0.2, connect=2.0)
STATES = {OutcomeKind.ACCEPTED: ACCEPTED, OutcomeKind.REJECTED: REJECTED, OutcomeKind.UNKNOWN: SENT}


class ClientTraffic(Traffic):
    """One connection that connects again by itself."""

    def visit(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        try:
            async with connect(
                f"amqp://{self.address()}", reconnect=SOON, heartbeat=2.0, on_event=self._count
            ) as connection:
                self.connections += 1
                await self.work(connection)
        except ClientError as error:
            self.losses[f"{type(error).__name__}: {error}"[:100]] += 1
            await asyncio.sleep(RECONNECT_S)

    def _count(self, event: object) -> None:
        self.losses[str(getattr(event, "kind", event))] += 1

    async def work(self, connection: Connection) -> None:
        """Works until it is stopped; raises ClientError where the connection can't go on."""
        raise NotImplementedError


class ResumingSender(ClientTraffic):
    """Sends numbered messages over a link that is resumed: no outcome may be unknown, and none comes twice.

    Args:
        rate: messages per second, at most.
    """

    def __init__(
        self,
        address: Address,
        queue: str,
        ledger: Ledger,
        *,
        number: int,
        count_max: int,
        rate: float,
    ) -> None:
        super().__init__(f"client-sender-{number}", address)
        self.queue = queue
        self.number = number
        self.ledger = ledger
        self.rate = rate
        self.page = ledger.page(number, count_max)
        self._incarnation = 0

    async def work(self, connection: Connection) -> None:
        self._incarnation += 1
        page = self.page
        async with connection.sender(self.queue, window=WINDOW, resume=RESUME_S) as sender:
            pending: set[asyncio.Future[Outcome]] = set()
            while not self.stopping.is_set() and page.sent < page.count_max:
                some = min(WINDOW - len(pending), max(1, int(self.rate * LOOK_S / 10)))
                for number in range(page.sent, page.sent + some):
                    page.mark(number, number + 1, SENT)
                    page.born[number] = self.ledger.calm.epoch
                    page.sent = number + 1
                    body = bytes(BODY_BYTES) + TRAILER.pack(self.number, self._incarnation, number)
                    outcome = sender.send_nowait(body, durable=True)
                    outcome.add_done_callback(partial(self._ended, number))
                    pending.add(outcome)
                pending = {each for each in pending if not each.done()}
                if len(pending) >= WINDOW:
                    await asyncio.wait(pending, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(LOOK_S / 10)
            if pending:
                await asyncio.wait(pending)

    def _ended(self, number: int, done: "asyncio.Future[Outcome]") -> None:
        if done.cancelled() or done.exception() is not None:
            self.ledger.complain(f"message {number} of {self.name} has no outcome: {done}")
            return
        outcome = done.result()
        self.page.mark(number, number + 1, STATES.get(outcome.kind, RELEASED))
        if outcome.kind is OutcomeKind.UNKNOWN:
            self.ledger.complain(f"message {number} of {self.name}: {outcome}")


class ResumingReceiver(ClientTraffic):
    """Accepts what arrives over a link that is resumed: nothing comes twice, over no fault."""

    def __init__(self, address: Address, queue: str, ledger: Ledger, *, number: int) -> None:
        super().__init__(f"client-receiver-{number}", address)
        self.queue = queue
        self.ledger = ledger
        self.received = 0

    async def work(self, connection: Connection) -> None:
        order: dict[tuple[int, int], int] = {}
        async with connection.receiver(self.queue, credit=WINDOW, resume=RESUME_S) as receiver:
            while not self.stopping.is_set():
                for delivery in await receiver.receive(WINDOW, timeout=LOOK_S):
                    self.ledger.arrive([delivery.body], marked=is_marked(delivery), order=order)
                    self.received += 1
                    self.latest_arrival = time.monotonic()
                    await delivery.accept()


class Mover(ClientTraffic):
    """Moves messages from one queue to another, some in each transaction: both of it happens, or neither."""

    def __init__(self, address: Address, source: str, target: str, *, number: int) -> None:
        super().__init__(f"mover-{number}", address)
        self.source = source
        self.target = target
        self.received = 0
        """Messages of transactions that were confirmed."""
        self.unconfirmed = 0
        """Transactions that were not."""
        self._begun = 0

    async def work(self, connection: Connection) -> None:
        async with (
            connection.sender(self.target) as sender,
            connection.receiver(self.source, credit=2 * AT_ONCE) as receiver,
        ):
            while not self.stopping.is_set():
                found = await receiver.receive(AT_ONCE, timeout=LOOK_S)
                if not found:
                    continue
                try:
                    self._begun += 1
                    move = MOVE.pack(self._begun)
                    async with connection.transaction() as transaction:
                        for delivery in found:
                            body = delivery.body[: -TRAILER.size] + move + delivery.body[-TRAILER.size :]
                            await transaction.send(sender, body, durable=True)
                            await transaction.accept(delivery)
                except ClientError as error:
                    self.losses[f"{type(error).__name__}: {error}"[:100]] += 1
                    self.unconfirmed += 1
                    # The failed one settles none of these; without an outcome they wait for this link to end.
                    for delivery in found:
                        if not delivery.settled:
                            with suppress(LostError):
                                await delivery.release()
                else:
                    self.received += len(found)
                    self.latest_arrival = time.monotonic()


def is_marked(delivery: Delivery) -> bool:
    """Whether the message's header says that it was delivered before."""
    return delivery.message.delivery_count > 0
