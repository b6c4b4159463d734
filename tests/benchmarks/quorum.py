"""RabbitMQ's quorum queues on three nodes beside a shard with three members, under the same load in turns."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.clusters import Side, bench_forgiving
from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.peers import SHORT, WAITING
from tests.benchmarks.replicas import MEMBERS, REPLICAS, scene_of
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.amqp.rabbitmq_cluster import NODES, RabbitCluster

ADDRESS: Final = "/amq/queue/bench"
"""Of a queue that was declared before; a slash more separates it from the host."""
LOST: Final = "--durable --rate 200 --duration 20s"
LOST_AFTER_S: Final = 5.0
PACED: Final = "--durable --rate 500 --duration 8s"


def loaded(url: str, flags: str, pids: tuple[int, ...]) -> dict[str, Any]:
    """A load that lost nothing, with the CPU of these processes."""
    value = bench(url, flags, pids)
    if not value["latency_us"]:
        raise LoadError("expected messages both sent and received while it was measured, found none")
    return value


def load_row(rabbit: RabbitCluster, name: str, kind: str, flags: str, ratio: float) -> Row:
    """A load through the node that leads, and through a frontend beside three members."""

    def measure(workplace: Workplace) -> Figures:
        theirs = loaded(f"{rabbit.leader('bench').url}/{ADDRESS}", flags, rabbit.pids)
        workplace.say(f"RabbitMQ {theirs['received_per_s']:,.0f} messages/s")
        with scene_of(Path(workplace.scratch) / "own", REPLICAS) as own:
            pids = (own.frontend.pid, *(node.pid for node in own.members))
            ours = loaded(f"{own.frontend.amqp}/bench", flags, pids)
        figures: Figures = {"ratio": ours["received_per_s"] / theirs["received_per_s"]}
        for broker, value in (("lightrail", ours), ("rabbitmq", theirs)):
            figures |= {
                f"{broker}_per_s": value["received_per_s"],
                f"{broker}_cpu_us": value["server_cpu_us"],
                f"{broker}_accepted_p50_ms": value["accepted_after_us"]["p50"] / 1e3,
                f"{broker}_accepted_p99_ms": value["accepted_after_us"]["p99"] / 1e3,
                f"{broker}_received_p50_ms": value["latency_us"]["p50"] / 1e3,
            }
        return figures

    title = f"rate to that of quorum queues of RabbitMQ {rabbit.version()} on {NODES} nodes, {kind}"
    commands = (
        f"rabbitmq    ({NODES} nodes, x-queue-type: quorum)",
        f"lightrail bench --url amqp://…/{ADDRESS} {flags} --pids …",
        MEMBERS,
        f"lightrail bench {flags} --pids …",
    )
    return Row(name, title, commands, (Limit("ratio", ratio, "times", at_least=True),), measure)


def interrupted(url: str, lose: Callable[[], None]) -> dict[str, Any]:
    """A paced load in whose midst something is lost; what the receiver had not settled may come again."""
    load = Side(partial(bench_forgiving, url, LOST))
    time.sleep(LOST_AFTER_S)
    lose()
    value: dict[str, Any] = load.end()
    if value["lost"] or value["not_accepted"]:
        raise LoadError(f"lost {value['lost']}, not accepted {value['not_accepted']}")
    return value


def failover_row(rabbit: RabbitCluster) -> Row:
    """The longest wait of a sender for an acceptance when the owner, or the leader, is killed."""

    def measure(workplace: Workplace) -> Figures:
        leader, other = rabbit.leader("bench"), rabbit.follower("bench")
        theirs = interrupted(f"{other.url}/{ADDRESS}", leader.kill)
        rabbit.until_led_by_another("bench", leader)
        leader.start()
        workplace.say(f"RabbitMQ {theirs['accepted_after_us']['max'] / 1e6:.2f} s")
        with scene_of(Path(workplace.scratch) / "own", REPLICAS) as own:
            ours = interrupted(f"{own.frontend.amqp}/bench", own.owner().kill)
        return {
            "ratio": ours["accepted_after_us"]["max"] / theirs["accepted_after_us"]["max"],
            "lightrail_s": ours["accepted_after_us"]["max"] / 1e6,
            "rabbitmq_s": theirs["accepted_after_us"]["max"] / 1e6,
            "lightrail_received_s": ours["latency_us"]["max"] / 1e6,
            "rabbitmq_received_s": theirs["latency_us"]["max"] / 1e6,
            "lightrail_again": ours["duplicates"],
            "rabbitmq_again": theirs["duplicates"],
        }

    return Row(
        "rabbitmq-quorum-failover",
        "kill -9 of the owner, and of the leader of a quorum queue of RabbitMQ "
        f"{rabbit.version()}: the longest wait of a sender for an acceptance, to RabbitMQ's",
        (
            f"rabbitmq    ({NODES} nodes, x-queue-type: quorum; the load at a node that does not lead)",
            f"lightrail bench --url amqp://…/{ADDRESS} {LOST}",
            "kill -9 …",
            MEMBERS,
            f"lightrail bench {LOST}",
            "kill -9 …",
        ),
        (Limit("ratio", 1.0, "times"),),
        measure,
    )


def rows_of_quorum(rabbit: RabbitCluster) -> tuple[Row, ...]:
    """Comparisons with a running cluster, which has the queue `bench`."""
    return (
        load_row(
            rabbit,
            "rabbitmq-quorum",
            "100 bytes, durable, 2,000 messages under way",
            f"--durable {SHORT}",
            1.0,
        ),
        load_row(
            rabbit,
            "rabbitmq-quorum-waiting",
            "40 senders that wait for each acceptance, durable",
            WAITING,
            1.0,
        ),
        load_row(rabbit, "rabbitmq-quorum-paced", "500 messages/s, durable", PACED, 0.99),
        failover_row(rabbit),
    )
