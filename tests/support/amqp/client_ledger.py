"""What a client of the tests sent, what became of each message, what arrived; and the laws of that."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from lightrail.client import Connection, LostError, OutcomeKind, Receiver, Sender, SendError


@dataclass(eq=False)
class Ledger:
    """Of one queue, one sender and one receiver.

    Attributes:
        accepted: numbers of messages whose outcome was accepted, in order.
        unknown: of those whose outcome was unknown.
        received: all that arrived, in order, those that came again included.
        settled: those that the receiver accepted without an error.
    """

    name: str
    sent: int = 0
    accepted: list[int] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    received: list[int] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    stopping: bool = False

    async def send(self, connection: Connection, pause: float = 0.0) -> None:
        """Numbers in order, one after the other, until it is `stopping`."""
        async with connection.sender(self.name) as sender:
            while not self.stopping:
                await self.send_one(sender)
                if pause:
                    await asyncio.sleep(pause)

    async def send_one(self, sender: Sender) -> None:
        number = self.sent
        self.sent += 1
        try:
            await sender.send(number)
            self.accepted.append(number)
        except SendError as error:
            if error.outcome.kind is not OutcomeKind.UNKNOWN:
                raise
            self.unknown.add(number)

    async def receive(self, connection: Connection, credit: int = 20) -> None:
        """Accepts what comes, until it is cancelled."""
        async with connection.receiver(self.name, credit=credit) as receiver:
            await self.receive_from(receiver)

    async def receive_from(self, receiver: Receiver) -> None:
        async for delivery in receiver:
            self.received.append(delivery.body)
            with suppress(LostError):
                await delivery.accept()
                self.settled.add(delivery.body)

    @property
    def is_complete(self) -> bool:
        """Whether everything that was accepted has arrived."""
        return set(self.accepted) <= set(self.received)

    def check(self) -> None:
        """What was accepted arrived, what arrived was sent and not refused, first deliveries are in order.

        A message comes again only when the receiver's connection was lost: before it was settled, or with the
        settlement still on its way. `losses` of the connection bound that from above in `check_twice`.
        """
        received = Counter(self.received)
        missing = [number for number in self.accepted if number not in received]
        assert not missing, f"{self.name}: accepted and never received: {missing[:10]}"
        strange = received.keys() - set(self.accepted) - self.unknown
        assert not strange, f"{self.name}: received and neither accepted nor unknown: {sorted(strange)[:10]}"
        first = list(dict.fromkeys(self.received))
        assert first == sorted(first), f"{self.name}: first deliveries are not in order"
        assert not set(self.accepted) & self.unknown
        assert self.sent - 1 <= len(self.accepted) + len(self.unknown) <= self.sent

    def check_twice(self, losses: int, credit: int) -> None:
        """Each loss brings back at most what was unsettled then: of this receiver no more than its window."""
        again = len(self.received) - len(set(self.received))
        # The settlements of one window and the deliveries of the next may be on their way at once.
        assert again <= losses * 2 * credit, f"{self.name}: {again} came again over {losses} losses"
