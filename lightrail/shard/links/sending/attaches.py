"""Attaches: the number of the latest attach of each client's link on which the client sends.

A frontend whose shard was lost opens its links again, and repeats their unanswered batches. The client may
have attached the link elsewhere meanwhile, sent these messages again, and used their delivery-tags for
others; that attach may have ended, or its frontend may be greeted later. A repeated batch that is stored then
would be in the broker's map of unsettled deliveries, under the tag of a message that the broker never got. So
only the latest attach is opened again. Its number is kept like that of a producer's last batch: it is on disk
before the attach is answered, and moves with the queue.
"""

import logging
from hashlib import blake2b
from typing import Final

from lightrail.journal.record import Numbers
from lightrail.shard.journal.store import Store, StoreBusyError, StoreFullError
from lightrail.shard.links.sending.known import KnownNumbers
from lightrail.shard.queues.shard_queue import Queue
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import ProducerOpen
from lightrail.wire.frames import IDENTITY

log = logging.getLogger("lightrail.shard.links.sending.attaches")

RECORD_BYTES: Final = 128
"""More than the record of one number."""


class Attaches:
    """The attaches of all queues of a shard.

    Args:
        known: has the numbers, by an id that no producer has.
    """

    __slots__ = ("_counts", "_known", "_store")

    def __init__(self, known: KnownNumbers, store: Store, counts: ShardCounts) -> None:
        self._known = known
        self._store = store
        self._counts = counts

    def open(self, queue: Queue, opening: ProducerOpen, now_ms: int) -> int | None:
        """The number of the attach for which a link is opened, or opened again; 0 if no attach is numbered.

        Returns:
            None if the client has attached the link again since, or the number is no longer known.

        Raises:
            StoreBusyError: nothing has changed.
        """
        if opening.suspended_ms is None or not opening.client_link:
            return 0
        text = f"{queue.name}\0{opening.client_link}".encode(errors="surrogatepass")
        key = int.from_bytes(blake2b(text, digest_size=8, person=b"attach").digest()) | IDENTITY
        latest = self._known.known_number(key)
        if opening.steals:
            # Numbers that were dropped, the longest unused first, were below the time.
            return self._begin(queue, key, max(latest + 1, now_ms), now_ms)
        # Frontends of a former version do not send it.
        return opening.attach if opening.attach in (0, latest) else None

    def _begin(self, queue: Queue, key: int, number: int, now_ms: int) -> int:
        """On a full disk the number is in memory only, since the rest of the space is for settlements."""
        record = Numbers(queue.id, queue.view.next_sequence, [(key, number, 0)])
        try:
            self._store.reserve(RECORD_BYTES, now_ms)
            self._store.append(record, now_ms)
        except StoreBusyError:
            raise
        except StoreFullError as error:
            self._counts.store_failures += 1
            log.error("an attach of a link at queue %s could not be written: %s", queue.name, error)
        self._known.note_number(key, number)
        return number
