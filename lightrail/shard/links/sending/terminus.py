"""Terminus: the delivery-tags of stored messages of one client's link that the client may not have settled.

A client may settle a delivery before its outcome, and may use its tag for a later delivery at once. So each
tag has the number of the batch that stored it, and the batches that are not answered yet are known here, too:
a settled tag is removed from all batches before the next one, stored or not, and from none behind.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from lightrail.journal.record import Terminus as TerminusRecord
from lightrail.journal.record import TerminusEvent
from lightrail.model import limits
from lightrail.model.links import Durability
from lightrail.shard.effects.peers import Producer
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.shard.queues.shard_queue import Queue

LAST: Final = 1 << 62
"""A number above every number of a batch."""

Arriving = dict[int, list[bytes | None]]
"""By number of a batch without an answer: its tags; None in place of those that the client has settled."""


@dataclass(slots=True, eq=False, repr=False)
class Terminus:
    """One link of a client at one queue."""

    queue: "Queue"
    client_link: str
    suspended_ms: int
    """Milliseconds that it is kept without a link."""
    durability: int = 0
    """What of it is in the store (model/links.py)."""
    user: str = ""
    """Towards whose share it counts."""
    tags: dict[bytes, int] = field(default_factory=dict)
    """Delivery-tags in the order of storing, each with the number of its batch. 0: the batch was one of a
    former link, or was stored before the queue moved here or the shard was restarted."""
    closed: bool = False
    """Whether its client has closed the link."""
    lost: bool = False
    """Whether its tags were dropped."""
    bare: bool = False
    """Whether it was restored without tags that it may have had."""
    _producer: int = 0
    _arriving: Arriving = field(default_factory=dict)

    def begin(self, producer: int) -> Arriving:
        """A link of this producer id is opened. Returns its batches without an answer: those that it had, if
        it was opened before, since some of them may wait for a commit."""
        if producer != self._producer:
            self._producer = producer
            self._arriving = {}
            self.tags = dict.fromkeys(self.tags, 0)
        return self._arriving

    def number_of(self, producer: int, number: int) -> int:
        """The number that tags of a batch of this producer have here."""
        return number if producer == self._producer else 0

    def before(self, tags: Iterable[bytes], number: int, last_number: int) -> list[bytes]:
        """Those of these tags that the terminus has from a batch before `number`.

        Args:
            last_number: of the link's batches that are stored. Tags whose batch is not known are from before
                `number` if no batch from `number` on is stored.
        """
        known = self.tags
        return [
            tag
            for tag in dict.fromkeys(tags)
            if (found := known.get(tag)) is not None and (found or last_number) < number
        ]

    def arriving_before(self, tags: Iterable[bytes], number: int) -> list[bytes]:
        """Those of these tags that a batch before `number` has, which is not answered."""
        wanted = frozenset(tags)
        arriving = [found for each, found in self._arriving.items() if each < number]
        return [tag for found in arriving for tag in found if tag in wanted]

    def settle(self, stored: Iterable[bytes], arriving: Iterable[bytes] = (), number: int = 0) -> None:
        """Removes tags of `before` and of `arriving_before`."""
        for tag in stored:
            del self.tags[tag]
        wanted = frozenset(arriving)
        for each, found in self._arriving.items():
            if each < number:
                found[:] = (None if tag in wanted else tag for tag in found)

    def store(self, tags: Iterable[bytes], number: int) -> None:
        """Adds tags of stored messages, without the oldest beyond UNSETTLED_TAGS_MAX.

        A tag that a later batch has stored meanwhile is that batch's.
        """
        known = self.tags
        for tag in tags:
            if known.get(tag, 0) <= number:
                known.pop(tag, None)
                known[tag] = number
        while len(known) > limits.UNSETTLED_TAGS_MAX:
            del known[next(iter(known))]

    def record(self, event: TerminusEvent, tags: Sequence[bytes] = ()) -> TerminusRecord:
        """The record of an event."""
        link = bytes.fromhex(self.client_link)
        user = self.user if event is TerminusEvent.BEGUN else ""
        return TerminusRecord(self.queue.id, link, event, self.durability, self.suspended_ms, tags, user=user)


StoreTags = Callable[[Terminus, list[bytes], int], None]
"""Adds the tags of stored messages of a batch, which has this number, to a terminus."""


class ResumableProducer(Producer):
    """A link to one queue that its client may resume."""

    __slots__ = ("_arriving", "_store", "attach", "terminus")

    attach: int
    terminus: Terminus | None

    def begin(self, store: StoreTags, terminus: Terminus | None, attach: int) -> None:
        """Sets the terminus; called once. Without a terminus no tags are kept.

        Args:
            store: called with the tags of each batch that is stored, and its number.
            attach: its number (sending_links.py).
        """
        self._store = store
        self.terminus = terminus
        self.attach = attach
        self._arriving: Arriving = {} if terminus is None else terminus.begin(self.id)

    def expect(self, number: int, tags: list[bytes]) -> None:
        """Notes the tags of the next batch."""
        if self.terminus is not None:
            self._arriving[number] = [*tags]

    def accept(self, number: int) -> None:
        """See Producer."""
        super().accept(number)
        self._stored(number, LAST)

    def refuse(self, number: int, refusal: Refusal) -> None:
        """See Numbered."""
        super().refuse(number, refusal)
        self._stored(number, refusal.accepted)

    def left(self) -> None:
        """Ends the link; of a partially stored batch the tags of the first messages are kept."""
        if self.part:
            self._stored(self.last_number, self.part)

    def _stored(self, number: int, count: int) -> None:
        tags = self._arriving.pop(number, ())
        if tags and self.terminus is not None:
            stored = [tag for tag in tags[:count] if tag is not None]
            self._store(self.terminus, stored, self.terminus.number_of(self.id, number))


class DurableProducer(ResumableProducer):
    """A link whose client requests that its unsettled deliveries are stored durably."""

    __slots__ = ()

    keeps_tags: ClassVar = True

    def records_of_tags(self, number: int, first: int, last: int) -> list[TerminusRecord]:
        """See Producer."""
        terminus, arriving = self.terminus, self._arriving.get(number, [])
        tags = [tag for tag in arriving[first:last] if tag is not None]
        if not tags or terminus is None or terminus.durability < Durability.UNSETTLED_STATE:
            return []
        return [terminus.record(TerminusEvent.STORED, tags)]
