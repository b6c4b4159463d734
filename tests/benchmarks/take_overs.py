"""Rows about the owner of a shard with replicas that is lost: how long a sender and a receiver wait."""

import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from lightrail.amqp import events
from tests.benchmarks.load import bench
from tests.benchmarks.replicas import MEMBERS, REPLICAS, until_in_sync
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.chaos.ledger import Calm, Ledger
from tests.chaos.traffic import Receiver, Sender
from tests.cluster.replicated import Members
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

RATE: Final = 200.0
"""Messages per second of the sender that goes on: a pause is measured to 5 ms."""
WARM: Final = 50
"""Messages that are accepted and received after each round before the next one begins."""
QUEUES: Final = 10_000
QUEUES_AT_ONCE: Final = 1_000
CONNECTIONS: Final = 10
STORED: Final = 1_000_000
FEW: Final = 1_000
ROUNDS: Final = 20
UNDER_WAY_S: Final = 0.1
"""After which what was on its way when the owner was lost has arrived."""
WAIT_MAX_S: Final = 120.0

Break = Callable[[Members, Node], None]


class TimedLedger(Ledger):
    """A ledger that has the time of each arrival, monotonic seconds."""

    def __init__(self) -> None:
        super().__init__(Calm(), strict=False)
        self.arrived_s: list[float] = []

    def arrive(self, payloads: list[bytes], *, marked: bool, order: dict[tuple[int, int], int]) -> None:
        super().arrive(payloads, marked=marked, order=order)
        self.arrived_s.append(time.monotonic())


class TimedSender(Sender):
    """A sender that has the time of each outcome, monotonic seconds."""

    accepted_s: list[float]

    def _outcome(self, event: events.Outcome) -> int:
        answered = super()._outcome(event)
        self.accepted_s.append(self.latest_answer)
        return answered


def pause(times: list[float], began: float) -> float:
    """Seconds from `began` to the end of the longest time in which nothing happened.

    What was on its way at `began` still arrives: the pause does not end with it.
    """
    behind = times[bisect_left(times, began) :]
    gaps = [(later - earlier, later) for earlier, later in zip([began, *behind], behind, strict=False)]
    return max(gaps)[1] - began


def kill(members: Members, owner: Node) -> None:
    members.kill(owner)


def stop(members: Members, owner: Node) -> None:
    """A machine that is switched off, as others see it: it refuses no connection, and answers nothing."""
    owner.stop()


def end(members: Members, owner: Node) -> None:
    members.terminate(owner)


def measure(workplace: Workplace, break_owner: Break, *, rounds: int, queues: int, stored: int) -> Figures:
    """The owner is lost again and again; members are back and in sync before the next round."""
    cluster = Cluster(Path(workplace.scratch))
    members = Members(cluster)
    frontend = cluster.frontend()
    ledger = TimedLedger()
    sender = TimedSender(lambda: frontend.served, "going-on", ledger, rate=RATE)
    sender.accepted_s = []
    receiver = Receiver(lambda: frontend.served, "going-on", ledger)
    accepted: list[float] = []
    received: list[float] = []
    with cluster, closing(members):
        members.start()
        cluster.start(frontend)
        until_in_sync(members, REPLICAS)
        for part in range(0, queues, QUEUES_AT_ONCE):
            count = min(queues - part, QUEUES_AT_ONCE)
            links = f"--senders {count} --queues {count} --connections {min(count, CONNECTIONS)}"
            messages = f"--count {stored * count // queues} --size 100"
            bench(f"{frontend.amqp}/stored-{part}", f"--durable --send-only {messages} {links}")
        workplace.say(f"{stored:,} messages in {queues:,} queues")
        with sender, receiver:
            sender.until_accepted(WARM, WAIT_MAX_S)
            receiver.until_received(WARM, WAIT_MAX_S)
            for number in range(rounds):
                until_in_sync(members, REPLICAS)
                owner = members.owner()
                ledger.calm.disturb()
                began = time.monotonic()
                break_owner(members, owner)
                time.sleep(UNDER_WAY_S)
                sender.until_accepted(WARM, WAIT_MAX_S)
                receiver.until_received(WARM, WAIT_MAX_S)
                accepted.append(pause(sender.accepted_s, began))
                received.append(pause(ledger.arrived_s, began))
                workplace.say(
                    f"round {number + 1}: accepted after {accepted[-1]:.2f} s, "
                    f"received after {received[-1]:.2f} s"
                )
                members.kill(owner)
                members.revive(owner)
                until_in_sync(members, REPLICAS)
                ledger.calm.settle()
            sender.finish(WAIT_MAX_S)
            wait.until(lambda: not ledger.lost, "all accepted messages arrive", WAIT_MAX_S)
            receiver.finish(WAIT_MAX_S)
        ledger.verdict()
    accepted.sort()
    received.sort()
    last = min(rounds - 1, int(0.99 * rounds))
    return {
        "accepted_p99_s": accepted[last],
        "accepted_p50_s": accepted[rounds // 2],
        "received_p99_s": received[last],
        "received_p50_s": received[rounds // 2],
        "accepted_p99_ms": 1e3 * accepted[last],
        "accepted_s": accepted,
        "received_s": received,
    }


def row(
    name: str,
    title: str,
    command: str,
    break_owner: Break,
    limits: tuple[Limit, ...],
    *,
    rounds: int = ROUNDS,
    queues: int = 1,
    stored: int = FEW,
) -> Row:
    def run(workplace: Workplace) -> Figures:
        return measure(workplace, break_owner, rounds=rounds, queues=queues, stored=stored)

    commands = (
        MEMBERS,
        f"lightrail bench --durable --send-only --count {stored} --queues {queues} --senders {queues}",
        command,
    )
    return Row(name, f"{title}, p99 of {rounds}", commands, limits, run)


KILLED: Final = (Limit("accepted_p99_s", 1.5, "s"), Limit("received_p99_s", 3.5, "s"))
SWITCHED_OFF: Final = (Limit("accepted_p99_s", 4.0, "s"), Limit("received_p99_s", 6.0, "s"))
WAIT: Final = "until a sender's next message is accepted, and one is received"
ROWS = (
    row(
        "take-over",
        f"kill -9 of the owner of {QUEUES:,} queues with {STORED:,} messages: {WAIT}",
        "kill -9 …    (the owner, and it is started again)",
        kill,
        KILLED,
        queues=QUEUES,
        stored=STORED,
    ),
    row(
        "take-over-few",
        f"kill -9 of the owner of {FEW:,} messages: {WAIT}",
        "kill -9 …    (the owner, and it is started again)",
        kill,
        KILLED,
    ),
    row(
        "take-over-switched-off",
        f"the machine of the owner of {FEW:,} messages is switched off: {WAIT}",
        "kill -STOP …    (the owner, and it is killed and started again)",
        stop,
        SWITCHED_OFF,
    ),
    row(
        "owner-ends",
        f"the owner of {FEW:,} messages ends in order: {WAIT}",
        "kill -TERM …    (the owner, and it is started again)",
        end,
        (Limit("accepted_p99_ms", 250.0, "ms"), Limit("received_p99_s", 2.25, "s")),
    ),
)
