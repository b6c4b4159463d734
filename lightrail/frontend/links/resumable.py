"""A link that sends to a queue and that its client may resume (transport 2.6.13).

In receiver-settle-mode second the shard has the delivery-tags of stored messages that may be unsettled. This
link has the tags of unanswered batches, those that the client has not settled, by their ids, and those of
which the shard has not confirmed yet that they are settled.

In mode first the broker has settled every message that it has stored, and keeps no tags: the client may use
each of them again when it has the outcome (2.6.12), so a stored tag could stand for a message that the broker
never got. A message whose outcome was lost is not in the map, and is sent again.
"""

from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from lightrail.amqp.events import ACCEPTED, Resumed, SenderSettled, Transfers
from lightrail.amqp.link import SETTLE_SECOND
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.batched import BATCHED, one_by_one, reject
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.links.transfers import ProducerLink, SentBatch
from lightrail.model import conditions, limits
from lightrail.model.links import Durability
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.columns import encode_tags
from lightrail.wire.frames import CLOSED, HEADER, Kind, frame


@dataclass(slots=True, eq=False, repr=False)
class ResumableLink(ProducerLink):
    """One incoming link (the client sends) bound to a queue, with its terminus at the queue's shard.

    Args:
        seconds: how long the terminus is kept after the end of the link.
        durability: how much of it the client wants in the store (model/links.py).
        terms: of the attach, to which the answer of the shard is added.
    """

    _: KW_ONLY
    seconds: int
    durability: int
    terms: Terms
    _announced: dict[bytes, Any] | None = field(init=False)
    """Every unsettled tag of the client, none if its attach has no map; None if the map is incomplete."""
    _attach_number: int = 0
    """Of the client's attach at the shard; 0 until the shard has opened the link."""
    _tags: dict[int, bytes] = field(default_factory=dict)
    """TAGS frames of unanswered batches, by their number."""
    _unsettled: dict[int, bytes] = field(default_factory=dict)
    """In mode second: delivery-tags that the client has not settled, by delivery-id."""
    _forgotten: dict[int, list[bytes]] = field(default_factory=dict)
    """Settled tags by the number of the next batch, whose answer confirms that the shard removed them."""

    def __post_init__(self) -> None:
        ProducerLink.__post_init__(self)
        if self._keeps_tags:
            self._link.keep_tags()
        most = Durability.UNSETTLED_STATE if self._keeps_tags else Durability.CONFIGURATION
        self.durability = min(self.durability, most) if self.seconds else 0
        attach = self._link.attach
        assert attach is not None
        self._announced = None if attach.incomplete_unsettled else attach.unsettled or {}

    # --- the attach ------------------------------------------------------------------------------------

    def _opening(self) -> ProducerOpen:
        opening = ProducerLink._opening(self)
        opening.suspended_ms = self.seconds * 1_000
        opening.durability = self.durability
        opening.user = self._connection.client.user_at(self.queue)
        if self._attached:
            opening.attach = self._attach_number
        return opening

    @property
    def _keeps_tags(self) -> bool:
        return self._link.rcv_settle_mode == SETTLE_SECOND

    def unsettled(self, tags: list[bytes], is_kept: bool, durability: int, attach_number: int) -> None:
        """See Producer: the client has settled tags that are not in its map.

        It may use them again as soon as its attach is answered, so the shard removes them first: the link is
        opened anew behind FORGET, and the answer to that opening follows when the removal is on disk.
        """
        if self._attached or self._closed:
            return
        self._attach_number = attach_number
        terms, announced, attach = self.terms, self._announced, self._link.attach
        assert attach is not None
        known = dict.fromkeys(tags if self._keeps_tags else ())
        if announced is not None:
            known = {tag: None for tag in known if tag in announced}
        if len(known) < len(tags):
            self._post_forget(self._window.next, [tag for tag in tags if tag not in known])
            self._owner.close_producer(self.number)
            self.number = self._connection.frontend.next_link()
            self._owner.open_producer(self)
            return
        if is_kept and (known or attach.unsettled is not None):
            terms.unsettled = dict.fromkeys(known, ACCEPTED)
        if is_kept and self.seconds:
            terms.suspended_s = self.seconds
            terms.durability = durability
            terms.rcv_settle_mode = self._link.rcv_settle_mode
        self._announced = None

    def _forget(self, tags: list[bytes]) -> None:
        """The client has settled these deliveries, and may use their tags again."""
        self._forgotten.setdefault(self._window.next, []).extend(tags)
        self._post_forget(self._window.next, tags)

    def _post_forget(self, next_number: int, tags: list[bytes], flags: int = 0) -> None:
        body = encode_tags(tags)
        self._owner.post(
            frame(Kind.FORGET, flags=flags, link=self.number, number=next_number, count=len(tags), body=body)
        )

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Sends the tags of a batch to the shard, and then the batch."""
        if self._link.incomplete_unsettled:
            self._connection.links.detach(
                self._link,
                conditions.NOT_ALLOWED,
                "expected resumed deliveries only, as the broker's unsettled map was incomplete, found new",
            )
            return
        if event.message_format == BATCHED:
            # One tag stands for one stored message.
            text = "expected one message in a transfer of a link that may be resumed, found a batch"
            error = ConditionError(conditions.NOT_IMPLEMENTED, text)
            for id, _ in one_by_one(event):
                reject(self._connection, self._link, event, id, error)
            self._top_up()
            return
        if not event.settled and self._keeps_tags:
            tags = event.tags
            assert tags is not None
            number = self._window.next
            part = frame(Kind.TAGS, link=self.number, number=number, count=len(tags), body=encode_tags(tags))
            self._tags[number] = part
            self._owner.post(part)
            self._unsettled.update(enumerate(tags, event.first_delivery_id))
        self._send(event, now_ms)

    def resumed(self, event: Resumed) -> None:
        """The client resends a stored message: answers with its outcome, and does not store it."""
        if event.settled:
            self._forget([event.tag])
        else:
            self._unsettled[event.delivery_id] = event.tag
            self._link.settle(event.delivery_id, event.delivery_id, event.state)
        self._top_up()
        self._connection.touch()

    def sender_settled(self, event: SenderSettled) -> None:
        """The client received the outcome, and will not resume these deliveries."""
        ids = range(event.first_delivery_id, event.last_delivery_id + 1)
        tags = [tag for id in ids if (tag := self._unsettled.pop(id, None)) is not None]
        if tags:
            self._forget(tags)
            self._top_up()
            self._connection.touch()

    def closed_for_good(self) -> None:
        """See Bound."""
        self._post_forget(self._window.next, [], CLOSED)

    def _top_up(self, least: int | None = None) -> None:
        """Grants no credit while there are more unsettled messages than the shard keeps."""
        if len(self._unsettled) <= limits.UNSETTLED_TAGS_MAX - limits.LINK_CREDIT_MAX:
            ProducerLink._top_up(self, least)

    # --- from the shard --------------------------------------------------------------------------------

    def _repeat_all(self) -> None:
        # In their order: each FORGET concerns the tags of the batches ahead of it.
        forgotten = deque(self._forgotten.items())
        for batch in self._window:
            number = _number_of(batch)
            while forgotten and forgotten[0][0] <= number:
                self._post_forget(*forgotten.popleft())
            self._repeat(batch)
        for each in forgotten:
            self._post_forget(*each)

    def _repeat(self, batch: SentBatch) -> None:
        tags = self._tags.get(_number_of(batch))
        if tags is not None:
            self._owner.post(tags)
        ProducerLink._repeat(self, batch)

    def answered(self, number: int, count: int) -> None:
        """See Producer."""
        ProducerLink.answered(self, number, count)
        for each in range(number, number + count):
            self._answered(each)

    def refused(self, number: int, refusal: Refusal) -> None:
        """See Producer."""
        ProducerLink.refused(self, number, refusal)
        self._answered(number)

    def _answered(self, number: int) -> None:
        """The shard has answered a batch, and has applied every FORGET ahead of it.

        A FORGET behind an unanswered batch may concern the tags of that batch, which is sent again if the
        shard is lost.
        """
        self._tags.pop(number, None)
        number = min(number, self._window.first or number)
        while (next_number := next(iter(self._forgotten), number + 1)) <= number:
            del self._forgotten[next_number]

    def timed_out(self) -> None:
        """See Producer: unanswered messages wait for the shard, since they may be stored."""
        if not self._closed:
            self._wait()


def _number_of(batch: SentBatch) -> int:
    return int(HEADER.unpack_from(batch.part)[6])
