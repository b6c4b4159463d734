"""Receiving links: those of all queues of a shard; applies their events (effects/receiving_link.py)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightrail.journal.record import DeliveryRun
from lightrail.model import conditions, limits
from lightrail.model.clock import Timetable
from lightrail.model.links import Ending
from lightrail.shard.effects.peers import Consumer, Peer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import (
    Key,
    LinkEvent,
    Origin,
    ReceivingLink,
    ReceivingState,
    outcome_in,
)
from lightrail.shard.links.client_links import ClientLinks
from lightrail.shard.links.receiving.consumer_options import asked
from lightrail.shard.links.receiving.durable_receivers import DurableReceivers
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.effects import SessionRenewed
from lightrail.shard.queues.memory import UserShares
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import ENDING, FOR_GOOD, HEADER, Kind, Part

if TYPE_CHECKING:
    from lightrail.shard.links.closings import LastConsumers


@dataclass(slots=True, eq=False, repr=False)
class ReceivingLinks:
    """The receiving links by their numbers, and what they wait for."""

    _performer: Performer
    _client_links: ClientLinks
    _durable: DurableReceivers
    _last_consumers: "LastConsumers"
    _next_number: int = 1
    _by_key: dict[Key, ReceivingLink] = field(default_factory=dict)
    """Those for which a frontend's frames may come that has not opened them here, or has closed them."""
    _due: Timetable[ReceivingLink] = field(default_factory=Timetable)
    """When each of these is released."""
    _suspended: dict[str, dict[ReceivingLink, None]] = field(default_factory=dict)
    """By user, the longest suspended first."""
    _suspended_links: UserShares = field(default_factory=UserShares)
    _suspended_deliveries: UserShares = field(default_factory=UserShares)
    """Their unsettled deliveries, as counted when they were suspended."""
    _expected: dict[Key, list[Part]] = field(default_factory=dict)
    """Frames of links whose queue is nearly copied, until it is served here."""
    _links: dict[int, ReceivingLink] = field(init=False)

    def __post_init__(self) -> None:
        self._links = self._performer.links
        self._performer.on_refused = self._refused
        self._performer.on_lost_session = self._lost_session

    def __len__(self) -> int:
        """Links that a frontend may take over."""
        return len(self._by_key)

    def next_number(self) -> int:
        """A number for a consumer, never used before."""
        number = self._next_number
        self._next_number += 1
        return number

    def of(self, queue: Queue) -> list[ReceivingLink]:
        """The receiving links of a queue, in the order of their attaches."""
        return [found for id in queue.view.consumer_ids if (found := self._links.get(id)) is not None]

    # --- ATTACH ----------------------------------------------------------------------------------------

    def open(
        self,
        peer: Peer,
        link: int,
        queue: Queue,
        opened: ConsumerOpen,
        options: commands.ConsumerOptions,
        now_ms: int,
    ) -> Consumer | None:
        """A link that a frontend opens as a new one; None if the queue refuses it."""
        id = self.next_number()
        consumer = Consumer(peer, link, queue, id, opened.label, now_ms, opened)
        consumer.unknown_below = opened.first if opened.resume else 0
        found = ReceivingLink(queue, id, Origin((peer.boot, link), opened), consumer)
        peer.consumers[link] = consumer
        self._links[id] = found
        self._performer.apply(queue, commands.Attach(id, options), now_ms)
        if found.state is ReceivingState.ENDED:
            return None
        self._client_links.add(queue, opened.client_link, found)
        return consumer

    def awaited(
        self, peer: Peer, link: int, queue: Queue, opening: ConsumerOpen, now_ms: int
    ) -> ReceivingLink | None:
        """The link that a frontend opens again with `resume`, if it goes on where it was.

        Another one of this link is released.
        """
        found = self._by_key.get((peer.boot, link))
        if found is None:
            return None
        attached = found.queue.view.consumer(found.id)
        if opening.resume and found.queue is queue and attached and attached.next == opening.first:
            return found
        self.release(found, now_ms)
        return None

    def resumed(self, queue: Queue, opening: ConsumerOpen, now_ms: int) -> ReceivingLink | None:
        """The link that a client resumes.

        One that can't go on, as the client does not know its deliveries or asks for others by its source, is
        released.
        """
        found = self._client_links.get(queue, opening.client_link)
        if not isinstance(found, ReceivingLink) or not found.is_waiting:
            return None
        former = found.opened
        resumes = opening.suspended_ms is not None and former.suspended_ms is not None
        if not (
            resumes and opening.recovers and queue.view.consumer(found.id) and asked(opening) == asked(former)
        ):
            self.release(found, now_ms, is_given_up=not opening.recovers)
            return None
        opening.terminus = former.terminus
        return found

    def attach(
        self, found: ReceivingLink, peer: Peer, link: int, opened: ConsumerOpen, now_ms: int
    ) -> Consumer:
        """Hands a link that is AWAITED or SUSPENDED to the frontend that opens it."""
        self._stop_waiting(found)
        found.apply(LinkEvent.ATTACH)
        found.key, found.opened, found.has_ended = (peer.boot, link), opened, False
        found.ending = Ending.BY_BROKER
        consumer = found.consumer = Consumer(peer, link, found.queue, found.id, opened.label, now_ms, opened)
        peer.consumers[link] = consumer
        self._performer.apply(found.queue, commands.Resume(found.id), now_ms)
        return consumer

    def renew_session(self, consumer: Consumer, now_ms: int) -> int | None:
        """Renews the lock of a consumer's session, and notifies its frontend; see SessionRenewed."""
        found = self._performer.apply(consumer.queue, commands.RenewSession(consumer.id), now_ms)
        (answer,) = [effect for effect in found if isinstance(effect, SessionRenewed)]
        attached = consumer.queue.view.consumer(consumer.id)
        if answer.locked_ms is not None and attached is not None and attached.options.session is not None:
            consumer.accept_session(attached.options.session, answer.locked_ms)
        return answer.locked_ms

    # --- SUSPEND ---------------------------------------------------------------------------------------

    def close(
        self,
        consumer: Consumer,
        now_ms: int,
        ending: Ending = Ending.BY_BROKER,
        *,
        lost: bool = False,
        for_good: bool = False,
    ) -> None:
        """A frontend's link has ended: it is suspended for its client, or its deliveries return.

        Args:
            lost: whether its frontend may open it again.
            for_good: whether its client may not resume it.
        """
        consumer.peer.consumers.pop(consumer.link, None)
        found = self._links.get(consumer.id)
        if found is None or found.consumer is not consumer:
            return
        found.ending = ending
        is_resumable = found.opened.client_link and not for_good
        if not (is_resumable and self._suspend(found, now_ms)):
            self._detach(found, now_ms, lost=lost)

    def _suspend(self, found: ReceivingLink, now_ms: int) -> bool:
        """Begins the time of a client's link; False where it can't be resumed, or has nothing unsettled."""
        attached, suspended_ms = found.queue.view.consumer(found.id), found.opened.suspended_ms
        if attached is None or not suspended_ms:
            return False
        line = attached.in_flight
        count = sum(run.count for run in line.runs[line.head :])
        if not 0 < count <= limits.SUSPENDED_DELIVERIES_MAX:
            return False
        found.apply(LinkEvent.SUSPEND)
        found.consumer, found.has_ended, found.suspended = None, True, count
        self._wait(found, now_ms + suspended_ms)
        user = found.opened.user
        self._suspended.setdefault(user, {})[found] = None
        self._suspended_links.add(user, 1)
        self._suspended_deliveries.add(user, count)
        self._performer.apply(found.queue, commands.Suspend(found.id), now_ms)
        while not (
            self._suspended_links.has_room(user, limits.SUSPENDED_CONSUMERS_MAX)
            and self._suspended_deliveries.has_room(user, limits.SUSPENDED_DELIVERIES_SUM_MAX)
        ):
            longest = next(iter(self._suspended[user]))
            self.release(longest, now_ms)
            if longest is found:
                break
        return True

    def _wait(self, found: ReceivingLink, until_ms: int) -> None:
        """The link waits for a frontend, and for frames of the one that had it."""
        self._by_key[found.key] = found
        self._due.set(found, until_ms)
        self._client_links.add(found.queue, found.opened.client_link, found)

    def _stop_waiting(self, found: ReceivingLink) -> None:
        if self._by_key.get(found.key) is found:
            del self._by_key[found.key]
        self._due.drop(found)
        if found.state is ReceivingState.SUSPENDED:
            user = found.opened.user
            self._suspended_links.add(user, -1)
            self._suspended_deliveries.add(user, -found.suspended)
            of_user = self._suspended[user]
            del of_user[found]
            if not of_user:
                del self._suspended[user]

    def stray(self, peer: Peer, part: Part, now_ms: int) -> bool:
        """A SETTLE or CONSUMER_CLOSE for a link that has no consumer here; False where none waits for it."""
        key = (peer.boot, HEADER.unpack_from(part)[4])
        if key in self._by_key:
            self._apply(key, part, now_ms)
            return True
        frames = self._expected.get(key)
        if frames is not None and len(frames) < limits.MOVE_HELD_FRAMES_MAX:
            frames.append(part)
        return frames is not None

    def _apply(self, key: Key, part: Part, now_ms: int) -> None:
        found = self._by_key.get(key)
        if found is None:
            return
        kind, flags, _, _, _, count, number = HEADER.unpack_from(part)
        if kind == Kind.CONSUMER_CLOSE:
            found.ending = Ending(flags & ENDING)
            if found.state is ReceivingState.AWAITED and (
                flags & FOR_GOOD or not self._suspend(found, now_ms)
            ):
                self._detach(found, now_ms, lost=False)
        else:
            settled = commands.Settle(found.id, number, number + count, outcome_in(part, flags))
            self._performer.apply(found.queue, settled, now_ms)

    def tick(self, now_ms: int) -> None:
        """Releases links that no frontend opened in time; those that moved here may be suspended then."""
        for each in self._due.take_due(now_ms):
            if not each.is_waiting:
                # Another one that is due had no room beside it, and has released it.
                continue
            if not each.queue.is_serving:
                self._due.set(each, now_ms)
            elif each.state is ReceivingState.SUSPENDED or not self._suspend(each, now_ms):
                self.release(each, now_ms)

    # --- FREEZE, SERVE ---------------------------------------------------------------------------------

    def send_away(self, queue: Queue) -> None:
        """The queue is frozen: its frontends look for its owner, and its machine keeps the consumers."""
        for found in self.of(queue):
            consumer = found.consumer
            if found.state is ReceivingState.ATTACHED and consumer is not None:
                consumer.peer.consumers.pop(consumer.link, None)
                consumer.peer.send_away(consumer.link, queue.name, queue.epoch, consumer=True)
            elif found.is_waiting:
                self._stop_waiting(found)
            else:
                continue
            found.apply(LinkEvent.FREEZE)

    def add(
        self, queue: Queue, origins: Mapping[int, Origin], recorded: Mapping[int, Sequence[DeliveryRun]]
    ) -> None:
        """Adds links to a queue that is not served yet, by the numbers of their consumers.

        Args:
            recorded: deliveries of the durable ones that the records have, by the same numbers.
        """
        for id, origin in origins.items():
            link = self._links[id] = ReceivingLink(queue, id, origin)
            if id in recorded:
                self._durable.restored(link, recorded[id])

    def serve(self, queue: Queue, now_ms: int) -> None:
        """The queue is served here from now on, and its frontends open their links."""
        for found in self.of(queue):
            found.apply(LinkEvent.SERVE)
            found.consumer = None
            self._wait(found, now_ms + limits.PEER_SILENCE_MS)
            for part in self._expected.pop(found.key, ()):
                self._apply(found.key, part, now_ms)

    def expect(self, keys: Iterable[Key]) -> None:
        """Keeps frames of these links until their queue, which is nearly copied, is served."""
        for key in keys:
            self._expected.setdefault(key, [])

    def unexpect(self, keys: Iterable[Key]) -> None:
        """Forgets these links, as their queue is not served."""
        for key in keys:
            self._expected.pop(key, None)

    def restore(self, queue: Queue, now_ms: int) -> None:
        """Suspends links of `add` that the store has, and the queue's machine; their time begins anew.

        Those of a frozen queue wait when the queue is served again, or move with it.
        """
        for found in self.of(queue):
            self._performer.apply(queue, commands.Suspend(found.id), now_ms)
            if not queue.is_away:
                found.apply(LinkEvent.SERVE)
                if not self._suspend(found, now_ms):
                    self._detach(found, now_ms, lost=False)

    # --- END -------------------------------------------------------------------------------------------

    def release(self, found: ReceivingLink, now_ms: int, *, is_given_up: bool = False) -> None:
        """Returns the deliveries of a link that no frontend took over.

        Deliveries that it locked under a key stay locked.

        Args:
            is_given_up: whether the client has no state of them: then an end in order remains one. Otherwise
                it may have worked on them since, to settle them when it resumes the link.
        """
        if found.ending is Ending.BY_CLIENT and not is_given_up:
            found.ending = Ending.BY_BROKER
        self._detach(found, now_ms, lost=True)

    def release_all(self, queue: Queue, now_ms: int) -> None:
        """Releases the links of a queue, all of which wait for a frontend."""
        for found in self.of(queue):
            self.release(found, now_ms)

    def _detach(self, found: ReceivingLink, now_ms: int, *, lost: bool) -> None:
        self._end(found)
        self._performer.detach(found.queue, found.id, found.ending, now_ms)
        self._durable.changed(found)
        self._last_consumers.left(found.queue, now_ms, lost=lost)

    def _refused(self, id: int, refusal: Refusal) -> None:
        """The machine has refused the consumer of a new link."""
        found = self._links.get(id)
        if found is not None:
            self._end(found, refusal)

    def _lost_session(self, queue: Queue, id: int, now_ms: int) -> None:
        """The lock of a session has ended, and with it the consumer; its deliveries have returned."""
        self._performer.touch(queue)
        found = self._links.get(id)
        if found is not None:
            why = "the lock of the session has ended: accept it again"
            # The frontend of another one does not know it yet, and may open the link again in a moment.
            lost = found.state is not ReceivingState.ATTACHED
            self._end(found, Refusal(conditions.SESSION_LOCK_LOST, why))
            self._durable.changed(found)
            self._last_consumers.left(queue, now_ms, lost=lost)

    def end_all(self, queue: Queue, refusal: Refusal | None) -> None:
        """Ends the links of a queue that is at another shard or deleted; their deliveries leave with it."""
        for found in self.of(queue):
            self._end(found, refusal)

    def _end(self, found: ReceivingLink, refusal: Refusal | None = None) -> None:
        """Forgets a link; its frontend, if it has one, gets the refusal."""
        consumer = found.consumer if found.state is ReceivingState.ATTACHED else None
        self._stop_waiting(found)
        found.apply(LinkEvent.END)
        found.consumer = None
        del self._links[found.id]
        if consumer is not None:
            consumer.peer.consumers.pop(consumer.link, None)
            if refusal is not None:
                consumer.peer.end_link(consumer.link, refusal)
        self._client_links.drop(found.queue, found.opened.client_link, found)
