"""A store in memory, for tests, and for services that may lose their sagas with the process."""

import itertools
import time
from collections.abc import Sequence

from lightrail.bus.store import (
    INBOX_S,
    AlreadyHandledError,
    ConflictError,
    SagaState,
    Step,
    Waiting,
    first_version,
)


class MemoryStore:
    """A store that lives as long as the process."""

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
