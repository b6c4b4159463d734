"""Memory of a shard process: ten marks of messages under every policy, and what is resident."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol
from lightrail.frontend.intake import UNANSWERED_BATCH_BYTES
from lightrail.telemetry.directories import socket_directory
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.chaos.service import resident_bytes
from tests.chaos.wire_frontend import Way
from tests.support import wait
from tests.support.broker import Broker
from tests.support.namespace import give
from tests.support.shard.scene import Peer

MARK = 10_000_000
SLACK = 64 * 1024 * 1024
"""Beside twice the mark, and what the process takes with no message."""
UNANSWERED_SHARE = 0.4
"""Of the mark: what a frontend lets its clients have unanswered, counted as frontends do. Up to half of it
may wait for room; what comes beyond is refused."""
QUIET_S = 3.0
"""Without an answer for so long a sender is kept back."""
LONG_MS = 10**9

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "priorities": {"priorities": 10},
    "groups": {"groups": True},
    "sorted": {"order": "sorted", "order_key": "application-properties.key"},
    "last_value": {"order": "last_value", "order_key": "application-properties.key"},
    "delay": {"delay": True},
    "groups and delay": {"groups": True, "delay": True},
    "duplicates": {"duplicate_window": 3_600},
}


def message(number: int, size: int, *, delay: bool) -> bytes:
    """Its own key, one of a hundred groups, an id; `size` bytes of body."""
    data = b""
    if delay:
        data += b"\x00\x53\x72" + encode({Symbol("x-opt-delivery-delay"): LONG_MS})
    # properties: message-id and, as the eleventh field, group-id.
    fields = b"\xa1\x08%08d" % number + b"\x40" * 9 + b"\xa1\x02%02d" % (number % 100)
    data += b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, 11)) + fields
    data += b"\x00\x53\x74" + encode({"key": f"{number * 7919 % 10_000_000:08d}"})
    return data + b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + bytes(size)


def number_of(message: bytes) -> int:
    """By its id; annotations before it may have bytes that begin like one."""
    found = re.search(rb"\xa1\x08(\d{8})\x40", message)
    assert found is not None
    return int(found[1])


class Sender:
    """Sends to one queue of a running shard within its credit, and watches the shard's memory."""

    def __init__(self, way: Way, pid: int, name: str = "frontend-9") -> None:
        self.way = way
        self.pid = pid
        self.peer = Peer(way, name, boot=9)
        self.start = self.most = self.unanswered_max = 0
        self.accepted = self.number = 0
        self.peer.greet()
        wait.until(self.is_welcome, "the shard greets")

    def is_welcome(self) -> bool:
        self.way.turn()
        return self.peer.welcome is not None

    def begin(self, queue: str, mark: int) -> None:
        self.unanswered_max = int(mark * UNANSWERED_SHARE)
        self.start = self.most = resident_bytes(self.pid)
        self.peer.produce(1, queue)

    def send(
        self, messages: int, size: int, *, per_batch: int, durable: bool, delay: bool, all_fit: bool
    ) -> bool:
        """Sends all, or until it is kept back where not all must fit; returns whether all were answered."""
        number = sent = 0
        answered_at = time.monotonic()
        while self.accepted < number or sent < messages:
            room = self.unanswered_max // (per_batch * (size + 100) + UNANSWERED_BATCH_BYTES)
            if sent < messages and number - self.accepted < max(room, 1):
                number += 1
                batch = [message(sent + index, size, delay=delay) for index in range(per_batch)]
                sent += per_batch
                self.peer.send(1, number, batch, durable=durable)
            else:
                self.way.turn()
            came = sum(answer.count for answer in self.peer.take(Kind.ACCEPTED))
            assert not self.peer.refusals
            if came:
                self.accepted += came
                answered_at = time.monotonic()
                self.look()
            elif time.monotonic() - answered_at > (60 if all_fit else QUIET_S):
                assert not all_fit, f"{self.accepted} of {number} batches were answered"
                return False
        return True

    def send_more(self, messages: int, size: int, *, first: int, durable: bool) -> None:
        """Sends so many messages, five in a batch, and waits until all were answered."""
        for at in range(first, first + messages, 5):
            self.number += 1
            batch = [message(at + index, size, delay=False) for index in range(5)]
            self.peer.send(1, self.number, batch, durable=durable)
        wait.until(self.all_accepted, "the shard answers")
        self.look()

    def all_accepted(self) -> bool:
        self.way.turn()
        self.accepted += sum(answer.count for answer in self.peer.take(Kind.ACCEPTED))
        assert not self.peer.refusals
        return self.accepted == self.number

    def look(self) -> None:
        self.most = max(self.most, resident_bytes(self.pid))

    def check(self, mark: int, what: str) -> None:
        self.look()
        grown = self.most - self.start
        assert grown <= 2 * mark + SLACK, f"{what}: {grown / 1e6:.0f} MB more than at the start"


def receive(sender: Sender, queue: str, count: int) -> list[int]:
    """Everything, settled as it comes; which messages they were."""
    peer = sender.peer
    peer.consume(2, queue)
    found: list[int] = []
    peer.credit(2, 200)
    came_at = time.monotonic()
    while len(found) < count:
        assert time.monotonic() < came_at + 60, f"{len(found)} of {count} messages came, then none for 60 s"
        sender.way.turn()
        came = peer.delivered.pop(2, [])
        if came:
            came_at = time.monotonic()
            found += [number_of(each.message) for each in came]
            peer.settle(2, came[0].number, len(came))
            peer.credit(2, came[-1].number + 201)
        sender.look()
    return found


def ten_marks(
    tmp_path: Path, policy: str, mark: int, *, size: int, per_batch: int, durable: bool, all_fit: bool
) -> None:
    """Ten marks of messages, or as many as the shard takes; where it took all they are received."""
    data = tmp_path / "data"
    count = 10 * mark // (size + 100) // per_batch * per_batch
    delay = "delay" in POLICIES[policy]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Broker(data, "--memory-mark", str(mark)) as broker:
        give(data, "q", role="queue", **POLICIES[policy])
        way = Way(context, f"ipc://{socket_directory(str(data))}/shard-0.sock")
        try:
            sender = Sender(way, broker.pid("shard"))
            sender.begin("q", mark)
            whole = sender.send(
                count, size, per_batch=per_batch, durable=durable, delay=delay, all_fit=all_fit
            )
            sender.check(mark, f"{policy}, {sender.accepted} batches")
            assert whole or sender.accepted * per_batch * 250 > mark // 4, "kept back too early"
            if whole and not delay:
                found = receive(sender, "q", count)
                sender.check(mark, f"{policy}, received")
                assert len(set(found)) == count
                if policy in ("plain", "duplicates"):
                    assert found == sorted(found)
                if policy == "groups":
                    groups = [[n for n in found if n % 100 == group] for group in range(100)]
                    assert all(group == sorted(group) for group in groups)
                if policy == "sorted":
                    keys = [n * 7919 % 10_000_000 for n in found]
                    assert keys == sorted(keys)
        finally:
            way.close()
            context.term()


@pytest.mark.parametrize("policy", POLICIES)
def test_ten_marks_of_messages_do_not_stay_in_memory(tmp_path: Path, policy: str) -> None:
    ten_marks(tmp_path, policy, MARK, size=20_000, per_batch=5, durable=True, all_fit=True)


@pytest.mark.parametrize("policy", ["groups", "delay"])
def test_transient_ones_neither(tmp_path: Path, policy: str) -> None:
    ten_marks(tmp_path, policy, MARK, size=20_000, per_batch=5, durable=False, all_fit=True)


@pytest.mark.parametrize("policy", ["delay", "plain"])
def test_what_is_kept_of_tiny_messages_is_bounded_as_well(tmp_path: Path, policy: str) -> None:
    ten_marks(tmp_path, policy, 2_000_000, size=10, per_batch=1, durable=True, all_fit=policy == "plain")


def test_after_a_restart_they_are_on_disk_and_come_in_order(tmp_path: Path) -> None:
    data = tmp_path / "data"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    count = 5_000
    with Broker(data, "--memory-mark", str(MARK)) as broker:
        give(data, "q", role="queue", groups=True)
        way = Way(context, f"ipc://{socket_directory(str(data))}/shard-0.sock")
        sender = Sender(way, broker.pid("shard"))
        sender.begin("q", MARK)
        assert sender.send(count, 20_000, per_batch=5, durable=True, delay=False, all_fit=True)
        way.close()
    with Broker(data, "--memory-mark", str(MARK)) as broker:
        way = Way(context, f"ipc://{socket_directory(str(data))}/shard-0.sock")
        again = Sender(way, broker.pid("shard"))
        # As it was before there was a message: what recovery took counts.
        again.start = sender.start
        found = receive(again, "q", count)
        again.check(MARK, "after a restart")
        assert all(
            group == sorted(group) and len(group) == count // 100
            for group in ([n for n in found if n % 100 == each] for each in range(100))
        )
        way.close()
    context.term()


class Holder:
    """A frontend with links to one queue that settle only what the test says."""

    def __init__(self, way: Way, queue: str, links: int) -> None:
        self.way = way
        self.peer = Peer(way, "frontend-8", boot=8)
        self.peer.greet()
        wait.until(self.is_welcome, "the shard greets")
        self.links = range(1, links + 1)
        self.held: dict[int, tuple[int, int]] = {}
        """Link and delivery number of each message that it holds."""
        for link in self.links:
            self.peer.consume(link, queue, 1_000_000)

    def is_welcome(self) -> bool:
        self.way.turn()
        return self.peer.welcome is not None

    def hear(self) -> None:
        self.way.turn()
        for link in self.links:
            for each in self.peer.delivered.pop(link, []):
                number = number_of(each.message)
                assert number not in self.held, f"message {number} came twice"
                self.held[number] = link, each.number

    def wait_for(self, count: int) -> None:
        """Until it holds so many."""

        def are_there() -> bool:
            self.peer.ping()
            self.hear()
            return len(self.held) >= count

        wait.until(are_there, f"{count} messages come")

    def settle(self, number: int, code: OutcomeCode) -> None:
        link, delivery = self.held.pop(number)
        self.peer.settle(link, delivery, 1, code, SettleDetail())


def hold_twenty_marks(tmp_path: Path, policy: str, *, durable: bool) -> None:
    """Twenty marks are delivered and not settled; then each third of them gets another outcome."""
    data = tmp_path / "data"
    count = 20 * MARK // 40_000
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Broker(data, "--memory-mark", str(MARK)) as broker:
        give(data, "q", role="queue", **POLICIES[policy])
        way = Way(context, f"ipc://{socket_directory(str(data))}/shard-0.sock")
        try:
            sender = Sender(way, broker.pid("shard"))
            holder = Holder(way, "q", links=8)
            sender.begin("q", MARK)
            # A sender has credit for less than half a mark, as above.
            for first in range(0, count, 100):
                sender.send_more(100, 40_000, first=first, durable=durable)
                holder.wait_for(first + 100)
            sender.check(MARK, f"{policy}, {count} messages held")
            # A third leaves, a third comes again, a third is dead-lettered: each once.
            codes = (OutcomeCode.ACCEPTED, OutcomeCode.RELEASED, OutcomeCode.REJECTED)
            for first in range(0, count, 100):
                for number in range(first, first + 100):
                    holder.settle(number, codes[number % 3])
                holder.wait_for(count - first - 100 + len(range(1, first + 100, 3)))
                # The shard forgets a frontend that is silent for long.
                sender.peer.ping()
                sender.look()
            assert sorted(holder.held) == list(range(1, count, 3))
            sender.check(MARK, f"{policy}, settled")
            found = receive(sender, "q/$dlq", len(range(2, count, 3)))
            assert sorted(found) == list(range(2, count, 3))
            sender.check(MARK, f"{policy}, dead letters received")
        finally:
            way.close()
            context.term()


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_what_receivers_hold_does_not_stay_in_memory(tmp_path: Path, durable: bool) -> None:
    hold_twenty_marks(tmp_path, "plain", durable=durable)


@pytest.mark.parametrize("policy", ["groups", "sorted", "last_value", "priorities"])
def test_nor_where_queues_look_into_messages(tmp_path: Path, policy: str) -> None:
    hold_twenty_marks(tmp_path, policy, durable=True)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(("size", "per_batch"), [(200_000, 1), (4_000, 100), (200, 100), (10, 1)])
@pytest.mark.parametrize("policy", POLICIES)
def test_ten_larger_marks(tmp_path: Path, policy: str, size: int, per_batch: int, durable: bool) -> None:
    # What is kept of small messages does not fit for all policies.
    fit = size >= 20_000
    ten_marks(tmp_path, policy, 64_000_000, size=size, per_batch=per_batch, durable=durable, all_fit=fit)
