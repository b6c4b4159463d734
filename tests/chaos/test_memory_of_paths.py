"""Memory of a shard process for each thing that one client can make without being a message that waits.

Every test failed while the thing counted for less than it costs, or stopped strangers when it counted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from lightrail.model import conditions
from lightrail.telemetry.directories import socket_directory
from lightrail.wire.frames import Kind
from tests.chaos.test_memory import Holder, Sender, message
from tests.chaos.test_steady_load import GIVEN_BACK
from tests.chaos.wire_frontend import Way
from tests.support import wait
from tests.support.broker import Broker
from tests.support.namespace import give

MARK = 16_000_000
SLACK = 8 * 1024 * 1024
"""Beside twice the mark, and what the process takes with no message: gaps between blocks that are in use."""


@contextmanager
def shard(tmp_path: Path) -> Iterator[tuple[Path, Way, Sender]]:
    """A running shard with a sender to "q" that has sent nothing; its growth is checked at the end."""
    data = tmp_path / "data"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with Broker(data, "--memory-mark", str(MARK), environ=GIVEN_BACK) as broker:
        for name in ("q", "stranger"):
            give(data, name, role="queue")
        way = Way(context, f"ipc://{socket_directory(str(data))}/shard-0.sock")
        try:
            sender = Sender(way, broker.pid("shard"))
            sender.begin("q", MARK)
            yield data, way, sender
            sender.look()
            grown = sender.most - sender.start
            assert grown <= 2 * MARK + SLACK, f"{grown / 1e6:.0f} MB more than at the start"
        finally:
            way.close()
            context.term()


def until(way: Way, condition: Callable[[], object], what: str) -> None:
    """Hears what the shard sends until a condition is true."""

    def turned() -> object:
        way.turn()
        return condition()

    wait.until(turned, what)


def stranger_is_answered(sender: Sender) -> None:
    """Another link's message to another queue is accepted."""
    sender.peer.produce(9, "stranger")
    sender.peer.take()
    sender.peer.send(9, 1, [message(1, 10, delay=False)])
    until(sender.way, lambda: sender.peer.accepted(9) == [1], "a stranger is answered")


def test_small_messages_that_are_not_settled(tmp_path: Path) -> None:
    """Each came alone: the objects around it are ten times as large."""
    with shard(tmp_path) as (_, way, sender):
        holder = Holder(way, "q", links=4)
        count = 100_000
        for sent in range(count):
            sender.number += 1
            sender.peer.send(1, sender.number, [message(sent, 10, delay=False)], durable=False)
            if sender.number % 1_000 == 0:
                wait.until(sender.all_accepted, "the shard answers")
                sender.look()
                # The shard forgets a frontend that is silent for long.
                holder.peer.ping()
                holder.hear()
        assert len(holder.held) > count // 10
        stranger_is_answered(sender)

        def has_some() -> bool:
            holder.peer.ping()
            holder.hear()
            return bool(holder.held)

        # Those that did not arrive come when others are settled.
        settled: set[int] = set()
        while len(settled) < count:
            wait.until(has_some, "more messages come")
            for link in holder.links:
                numbers = [delivery for of, delivery in holder.held.values() if of == link]
                if numbers:
                    holder.peer.settle(link, min(numbers), max(numbers) - min(numbers) + 1)
            settled |= holder.held.keys()
            holder.held.clear()
            sender.peer.ping()
            sender.look()


def test_one_message_of_each_batch_that_is_not_settled(tmp_path: Path) -> None:
    """The others of its batch are settled: it alone would keep all of them in memory."""
    with shard(tmp_path) as (_, way, sender):
        peer = sender.peer
        peer.consume(2, "q")
        for number in range(1, 301):
            peer.consume(1_000 + number, "q", 1)
            peer.send(1, number, [message(index, 2_000, delay=False) for index in range(100)], durable=False)
            peer.credit(2, 99 * number)
            until(way, lambda: len(peer.delivered.get(2, [])) == 99, "the others come")
            peer.settle(2, peer.delivered.pop(2)[0].number, 99)
            sender.look()
        assert len([link for link in peer.delivered if link > 1_000]) == 300


def test_message_ids_that_only_time_forgets(tmp_path: Path) -> None:
    with shard(tmp_path) as (data, way, sender):
        for index in range(3):
            give(data, f"window-{index}", role="queue", duplicate_window=86_400)
            sender.peer.produce(10 + index, f"window-{index}")
            sender.peer.consume(20 + index, f"window-{index}", 1_000_000)
            for batch in range(1, 101):
                messages = [message(500 * batch + each, 10, delay=False) for each in range(500)]
                sender.peer.take()
                sender.peer.send(10 + index, batch, messages, durable=False)
                until(way, lambda: sender.peer.take(Kind.ACCEPTED), "it is answered")
                sender.peer.settle(20 + index, 500 * (batch - 1), 500)
                sender.peer.delivered.clear()
            sender.look()
        stranger_is_answered(sender)


def test_selectors(tmp_path: Path) -> None:
    """As many as fit are attached; the next is refused, and a receiver without one is not."""
    with shard(tmp_path) as (_, way, sender):
        link = 100
        while not sender.peer.refusals:
            link += 1
            assert link < 500
            text = " OR ".join(f"a{index} = {link}" for index in range(300))
            sender.peer.take()
            sender.peer.consume(link, "q", filter={"sql": text})
            until(
                way, lambda: sender.peer.take(Kind.CONSUMER_READY) or sender.peer.refusals, "it is answered"
            )
            sender.look()
        assert sender.peer.refusals[0][2].condition == conditions.RESOURCE_LIMIT_EXCEEDED
        stranger_is_answered(sender)
