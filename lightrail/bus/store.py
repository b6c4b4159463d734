"""Stores: an application's database with the outbox, inbox and sagas of a bus.

One commit writes all three, so that a message has its effects once: the message is settled at the broker
after the commit, and a message that is delivered again is found in the inbox.
"""

import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lightrail.bus.errors import BusError
from lightrail.bus.messages import Sending
from lightrail.transport import Envelope

INBOX_S: Final = 7 * 86_400.0
"""How long handled messages are remembered."""
PRUNE_EVERY: Final = 1_000
"""Commits between two deletions of old entries of the inbox, of which the first is at the first commit."""
PRUNED_MAX: Final = 10_000
"""Most entries of one deletion, which is part of a handler's transaction."""


def first_version() -> int:
    """The version of a saga that begins; the following ones count up from it.

    It is random: with a constant, a saga that ended and one that began under its key meanwhile would have the
    same versions, and a step on the former could overwrite the latter.
    """
    return secrets.randbits(62) + 1


class StoreError(BusError):
    """The database can't be used."""


class AlreadyHandledError(BusError):
    """The inbox has the message, so its effects are in the database."""


class ConflictError(BusError):
    """Another process has changed the saga meanwhile."""


@dataclass(frozen=True, slots=True)
class SagaState:
    """A saga as it is stored.

    Attributes:
        state: JSON.
        version: another one after each change, and not that of any saga before.
    """

    state: str
    version: int


@dataclass(frozen=True, slots=True)
class SagaChange:
    """A change of a saga.

    Attributes:
        saga: name of the kind.
        key: correlation.
        version: the one that was read; 0 for a new saga.
        state: JSON; None ends the saga.
    """

    saga: str
    key: str
    version: int
    state: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """The contents of one commit.

    Attributes:
        handler, message: for the inbox; None if no message was received.
        sendings: for the outbox.
        change: of a saga.
    """

    handler: str | None
    message: str | None
    sendings: Sequence[Sending]
    change: SagaChange | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message of the outbox.

    Attributes:
        sequence: position in the order of the commits.
        address: of its queue or router.
        type: wire name; None for a message without a type.
    """

    sequence: int
    address: str
    type: str | None
    envelope: Envelope


class Store(Protocol):
    """A database."""

    async def open(self) -> None:
        """Creates missing tables. Raises StoreError."""
        ...

    async def close(self) -> None:
        """Closes the database."""
        ...

    async def commit(self, step: Step) -> None:
        """Writes all of a step or nothing.

        Raises:
            AlreadyHandledError: the inbox has the message.
            ConflictError: the saga has another version.
            StoreError: the database can't be used.
        """
        ...

    async def is_handled(self, handler: str, message: str) -> bool:
        """Whether the inbox has a message of a handler."""
        ...

    async def saga(self, saga: str, key: str) -> SagaState | None:
        """A saga, or None where there is none."""
        ...

    async def forwards(self) -> bool:
        """Whether this process forwards the outbox; False while another one does."""
        ...

    async def next(self, count: int) -> list[Waiting]:
        """The oldest messages of the outbox."""
        ...

    async def remove(self, sequences: Sequence[int]) -> None:
        """Deletes messages that were forwarded."""
        ...

    async def refuse(self, sequence: int, reason: str) -> None:
        """Sets aside a message that its address refuses."""
        ...


class MemoryStore:
    """A store in memory: for tests, and for services that may lose their sagas with the process."""

    def __init__(self) -> None:
        self.sagas: dict[tuple[str, str], SagaState] = {}
        """By name and key."""
        self._inbox: dict[tuple[str | None, str | None], float] = {}
        """Handled messages with the time, the oldest first."""
        self._outbox: dict[int, Waiting] = {}
        self._sequences = itertools.count(1)
        self.refused: dict[int, tuple[Waiting, str]] = {}
        """By sequence: messages that were set aside, with the reason."""

    async def open(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Keeps everything stored."""

    async def commit(self, step: Step) -> None:
        """Writes all of a step or nothing."""
        if (step.handler, step.message) in self._inbox:
            raise AlreadyHandledError(f"{step.message} was handled by {step.handler} before")
        change = step.change
        if change is not None:
            found = self.sagas.get((change.saga, change.key))
            if (found.version if found else 0) != change.version:
                raise ConflictError(f"{change.saga} {change.key} was changed meanwhile")
            if change.state is None:
                self.sagas.pop((change.saga, change.key), None)
            else:
                version = change.version + 1 if change.version else first_version()
                self.sagas[change.saga, change.key] = SagaState(change.state, version)
        if step.handler is not None and step.message is not None:
            now = time.monotonic()
            self._inbox[step.handler, step.message] = now
            while self._inbox[oldest := next(iter(self._inbox))] < now - INBOX_S:
                del self._inbox[oldest]
        for sending in step.sendings:
            sequence = next(self._sequences)
            name = None if sending.type is None else sending.type.wire_name
            self._outbox[sequence] = Waiting(sequence, sending.address, name, sending.envelope)

    async def is_handled(self, handler: str, message: str) -> bool:
        """Whether the inbox has a message of a handler."""
        return (handler, message) in self._inbox

    async def saga(self, saga: str, key: str) -> SagaState | None:
        """A saga, or None where there is none."""
        return self.sagas.get((saga, key))

    async def forwards(self) -> bool:
        """True, because no other process shares this memory."""
        return True

    async def next(self, count: int) -> list[Waiting]:
        """The oldest messages of the outbox."""
        return list(itertools.islice(self._outbox.values(), count))

    async def remove(self, sequences: Sequence[int]) -> None:
        """Deletes messages that were forwarded."""
        for sequence in sequences:
            self._outbox.pop(sequence, None)

    async def refuse(self, sequence: int, reason: str) -> None:
        """Sets a message aside that its address refuses."""
        self.refused[sequence] = (self._outbox.pop(sequence), reason)
