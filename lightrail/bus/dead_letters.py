"""Dead letters of a broker: reading them, sending them again, and deleting them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightrail.bus.formats import TYPE
from lightrail.client import Connection, Delivery, ManagementError, Message, SendError
from lightrail.client.management import QUEUE
from lightrail.transport import Envelope
from lightrail.transport.amqp import AmqpBroker
from lightrail.transport.amqp_messages import envelope_of

ENDING: Final = "/$dlq"
PAGE: Final = 100
REQUESTS: Final = 10
"""Requests without an answer at a time; the broker allows 20 per link."""
NOT_FOUND: Final = 404
QUIET_S: Final = 0.5
"""Time without a delivery after which no more messages are expected."""
OWN: Final = "x-opt-dead-letter-"
"""Prefix of annotations that are removed when a message is sent again."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter.

    Attributes:
        id: of the message; empty if it has none.
        type: wire name of its type.
        reason, description: why it is a dead letter.
        headers: of the message.
        notes: annotations, such as x-opt-exception-trace.
        text: the body.
    """

    id: str
    type: str
    reason: str
    description: str
    headers: Mapping[str, Any]
    notes: Mapping[str, Any]
    text: str


class DeadLetters:
    """Dead letters of the broker at a URL; used in `async with`."""

    def __init__(self, url: str) -> None:
        self._broker = AmqpBroker(url)

    async def __aenter__(self) -> "DeadLetters":
        await self._broker.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._broker.close()

    @property
    def _connection(self) -> Connection:
        return self._broker.connection

    async def queues(self) -> list[tuple[str, int]]:
        """Queues that have dead letters, with their number, by name."""
        found: list[tuple[str, int]] = []
        room = asyncio.Semaphore(REQUESTS)
        async with self._connection.management() as management:

            async def read_figures(name: str) -> None:
                async with room:
                    try:
                        figures = (await management.read(f"{name}{ENDING}", QUEUE))["figures"] or {}
                    except ManagementError as error:
                        if error.status == NOT_FOUND:
                            return
                        raise
                count = sum(int(figures.get(state, 0)) for state in ("ready", "delayed", "in_flight"))
                if count:
                    found.append((name, count))

            names = [str(each["name"]) async for each in management.query(QUEUE, "name")]
            await asyncio.gather(*(read_figures(name) for name in names if not name.endswith(ENDING)))
        return sorted(found)

    async def of(self, queue: str) -> list[DeadLetter]:
        """The dead letters of a queue, the oldest first."""
        found: list[DeadLetter] = []
        async with self._connection.management() as management:
            start = 0
            while True:
                try:
                    page = await management.dead_letters(queue, start=start, count=PAGE)
                except ManagementError as error:
                    if error.status == NOT_FOUND:
                        return found
                    raise
                if not page:
                    return found
                found += [_letter(message) for _, _, message in page]
                start = page[-1][0] + 1

    async def retry(self, queue: str, ids: Sequence[str] | None) -> int:
        """Sends dead letters to their queue again; returns how many.

        Args:
            ids: beginnings of the ids; None: all.
        """
        async with self._connection.sender(queue) as sender:

            async def again(delivery: Delivery) -> None:
                notes = delivery.message.annotations
                kept = {key: value for key, value in notes.items() if not str(key).startswith(OWN)}
                # Sent before it is accepted: a crash in between leads to two messages, never to none.
                await sender.send(delivery.message.replace(annotations=kept))

            return await self._each(queue, ids, again)

    async def discard(self, queue: str, ids: Sequence[str] | None) -> int:
        """Deletes dead letters; returns how many. `ids` as of `retry`."""

        async def accept(delivery: Delivery) -> None:
            await delivery.accept()

        return await self._each(queue, ids, accept)

    async def _each(self, queue: str, ids: Sequence[str] | None, handle: Callable[[Delivery], Any]) -> int:
        """Calls a function with each dead letter that the queue has now; returns how many it handled."""
        left = len(await self.of(queue))
        count = 0

        def choose(message: Message) -> Callable[[Delivery], Any] | None:
            if ids is None or _id(message).startswith(tuple(ids)):
                return handle
            return None

        async with self._connection.receiver(f"{queue}{ENDING}") as receiver:
            while left > 0:
                try:
                    if not await receiver.select(choose, timeout=QUIET_S):
                        break
                except SendError as error:
                    raise SendError(
                        f"{count} were sent again, then one was refused: {error}", error.outcome
                    ) from error
                count += 1
                left -= 1
            # The outcomes have to reach the broker before the link ends.
            await asyncio.sleep(0)
        return count


def _id(message: Message) -> str:
    return "" if message.id is None else str(message.id)


def _letter(message: Message) -> DeadLetter:
    try:
        envelope = envelope_of(message)
    except ValueError as error:
        envelope = Envelope(body=repr(message.body).encode(), annotations={"x-opt-unreadable": str(error)})
    notes = {str(key): value for key, value in envelope.annotations.items()}
    reason = notes.get(f"{OWN}condition") or notes.get(f"{OWN}reason") or ""
    return DeadLetter(
        id=_id(message),
        type=str(envelope.headers.get(TYPE) or envelope.subject or "").partition(" ")[0],
        reason=str(reason),
        description=str(notes.get(f"{OWN}description", "")),
        headers=envelope.headers,
        notes=notes,
        text=envelope.body.decode("utf-8", "replace"),
    )
