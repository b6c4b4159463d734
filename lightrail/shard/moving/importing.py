"""The destination's side of a move: a copy of a queue that nobody is served from, until it is complete and opened.

Docs: docs/adr/0010-moving-queues.md. The protocol (when to ask what, the transaction) is not here.

    importing = Importing(...); importing.begin(now_ms)
    take(answer to `export` from importing.next) until its "next" is None     (copy, and again after the seal)
    take(answer to `export` rewritten from 0) until its "next" is None        (after the seal)
    finish(state); sync everything that was appended; the transaction
    open(name, epoch, now_ms) or drop(now_ms)

After a crash the journal's copies are `queues.copies` (by name; `queue.epoch` is the one they were made for):
`Importing.recovered(queue, ...)` gives one that can be opened or dropped, and nothing else.
"""

from typing import Any

from lightrail.namespace.records import Name
from lightrail.shard.journal.store import Store
from lightrail.shard.links import Links
from lightrail.shard.memory import Memory
from lightrail.shard.performer import Performer
from lightrail.shard.queues import Queue, Queues


class ImportFailed(Exception):
    """The copy can't be completed: drop it, and begin anew or give up. Nothing is lost, the source has all."""


class Importing:
    """One copy, from `begin` to `open` or `drop`.

    Every method but `drop` may raise StoreError (no room, or the store failed): drop the copy then.
    """

    next: int
    """The sequence to ask `export` from."""
    queue: Queue
    """The copy, in `queues.copies`; the queue itself, in `queues`, once it is open."""

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        store: Store,
        memory: Memory,
        links: Links,
        name: str,
        epoch: int,
    ) -> None:
        """`epoch` is the one that the queue will have here."""
        raise NotImplementedError

    @classmethod
    def recovered(
        cls, queue: Queue, queues: Queues, performer: Performer, store: Store, memory: Memory, links: Links
    ) -> "Importing":
        """A copy that came back from the journal: complete if the placement says that it was committed."""
        raise NotImplementedError

    def begin(self, now_ms: int) -> None:
        """Makes the copy and declares it in the journal, with `"copy": true`.

        Raises:
            ImportFailed: there is a queue or a copy of that name here, or there are too many queues.
        """
        raise NotImplementedError

    def take(self, header: dict[str, Any], blob: bytes, now_ms: int) -> int | None:
        """Takes in a piece; one that came before does no harm. Returns its "next".

        Raises:
            ImportFailed: the bytes are not those that were sent, or the source began anew.
        """
        raise NotImplementedError

    def finish(self, header: dict[str, Any], blob: bytes, now_ms: int) -> None:
        """The final state: what is gone is dropped; each message must be there. All of it is in the journal.

        What was appended has to be on disk before the transaction.

        Raises:
            ImportFailed: as above, or a message is missing.
        """
        raise NotImplementedError

    def open(self, found: Name, epoch: int, now_ms: int) -> dict[tuple[int, int], int]:
        """The queue is this shard's: it has its policy, its consumers with what they hold, and is in `queues`.

        Consumers have no credit. What sits in `performer.touched` has to be dispatched, as ever. A failure
        of the store is only said: the copy is complete, and is opened again after a restart.

        Returns:
            Their numbers in the machine by (boot of the frontend, link). Nobody is in `performer.consumers`
            for them yet. Whom nobody takes over is let go by `machine.apply(Settle(.., RELEASED))` and Detach.
        """
        raise NotImplementedError

    def drop(self, now_ms: int) -> None:
        """The copy goes, and its places are released; a failure of the store is said, and tried no more."""
        raise NotImplementedError
