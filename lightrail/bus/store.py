"""Stores: an application's database with the outbox, inbox and sagas of a bus.

One commit writes all three, so that a message has its effects once: the message is settled at the broker
after the commit, and a message that is delivered again is found in the inbox.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightrail.bus.errors import BusError
from lightrail.bus.sending import Sending
from lightrail.transport import Envelope


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
        version: number of its changes.
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
