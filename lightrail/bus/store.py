"""Stores: an application's database with the outbox, inbox and sagas of a bus.

One commit writes all three, so that a message has its effects once: the message is settled at the broker
after the commit, and a message that is delivered again is found in the inbox.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lightrail.bus.errors import BusError
from lightrail.bus.sending import Sending
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
