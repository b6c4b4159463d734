"""Rows about routers: a message copied to ten queues, and a filter that finds one of a hundred of them."""

from pathlib import Path
from typing import Any, Final

from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.broker import Broker
from tests.support.http_client import Http

COPIES: Final = 10
COPY_FLAGS: Final = "--target router --send-only --durable --count 300000"
DRAIN_FLAGS: Final = "--drain-only --count 300000"
STORED: Final = 40_000
STORED_FLAGS: Final = f"--target router --send-only --durable --size 1024 --count {STORED}"
SEGMENT: Final = 1 << 20
"""A small one: what is set aside for the next messages counts too."""
SUBSCRIPTIONS: Final = 100
FILTER_FLAGS: Final = (
    f"--target router --send-only --property colour={SUBSCRIPTIONS} --duration 5s --unsettled 20000"
)


def router(broker: Broker, targets: dict[str, dict[str, Any]]) -> None:
    """A router ``router`` and the queues that subscribe to it, each with the fields of its subscription."""
    with Http(broker.http) as http:
        made = [http("POST", "/router", {"role": "router"}).status]
        for name, fields in targets.items():
            made.append(http("POST", f"/{name}", {"role": "queue"}).status)
            made.append(http("POST", "/router/!subscriptions", {"target": name, **fields}).status)
    if set(made) != {201}:
        raise LoadError(f"expected 201 to all that makes a router, found {sorted(set(made))}")


def disk_bytes(data: Path) -> int:
    """What a shard's files take."""
    return sum(path.stat().st_blocks * 512 for path in data.glob("shard-*/*"))


def copies(workplace: Workplace) -> Figures:
    """CPU per copy: the routing of a message divided by its copies, and the delivery of a copy."""
    with workplace.broker() as broker:
        router(broker, {f"queue-{number}": {} for number in range(COPIES)})
        pids = (broker.process.pid,)
        into = bench(f"amqp://{broker.amqp}/router", COPY_FLAGS, pids)
        out = [
            bench(f"amqp://{broker.amqp}/queue-{number}", DRAIN_FLAGS, pids)["server_cpu_us"]
            for number in range(COPIES)
        ]
    return {
        "copy_cpu_us": into["server_cpu_us"] / COPIES + sum(out) / COPIES,
        "routed_cpu_us": into["server_cpu_us"] / COPIES,
        "delivered_cpu_us": sum(out) / COPIES,
        "routed_per_s": into["sent_per_s"] * COPIES,
        "server_processes": into["server_processes"],
    }


def stored_once(workplace: Workplace) -> Figures:
    """Growth of the journal per message that is in ten queues, to its body."""
    with workplace.broker("--segment-bytes", f"{SEGMENT}") as broker:
        router(broker, {f"queue-{number}": {} for number in range(COPIES)})
        before = disk_bytes(broker.data)
        value = bench(f"amqp://{broker.amqp}/router", STORED_FLAGS, (broker.process.pid,))
        after = disk_bytes(broker.data)
    return {
        "factor": (after - before) / STORED / 1024,
        "bytes_per_message": (after - before) / STORED,
        "server_cpu_us": value["server_cpu_us"],
        "sent_per_s": value["sent_per_s"],
    }


def filtered(workplace: Workplace) -> Figures:
    """Messages that one core's worth of frontend and shard finds the subscription of."""
    with workplace.broker() as broker:
        router(
            broker,
            {
                f"queue-{number}": {
                    "filter": {"properties": {"application-properties.colour": f"{number:02}"}}
                }
                for number in range(SUBSCRIPTIONS)
            },
        )
        value = bench(f"amqp://{broker.amqp}/router", FILTER_FLAGS, (broker.process.pid,))
    return {"per_core_s": 1e6 / value["server_cpu_us"]} | {
        key: value[key] for key in ("server_cpu_us", "sent_per_s", "sender_cpu_us", "server_processes")
    }


_SUBSCRIBE = 'curl -d \'{{"target": "queue-…"{}}}\' …/router/!subscriptions'

ROWS = (
    Row(
        "router-copies",
        f"a router to {COPIES} queues, durable, into and out of the queues: CPU per copy",
        (
            SERVE,
            _SUBSCRIBE.format("") + f"    ({COPIES} queues)",
            f"lightrail bench {COPY_FLAGS} --pids …",
            f"lightrail bench {DRAIN_FLAGS} --pids …    (from each queue)",
        ),
        (Limit("copy_cpu_us", 2.0, "µs"),),
        copies,
    ),
    Row(
        "router-stored",
        f"durable messages of 1 KiB in {COPIES} queues: bytes on disk to those of one body",
        (f"{SERVE} --segment-bytes {SEGMENT}", f"lightrail bench {STORED_FLAGS}"),
        (Limit("factor", 1.25, "times"),),
        stored_once,
    ),
    Row(
        "router-filter",
        f"a filter on one application property, {SUBSCRIPTIONS} subscriptions: messages per second and core",
        (
            SERVE,
            _SUBSCRIBE.format(', "filter": {"properties": {"application-properties.colour": "…"}}')
            + f"    ({SUBSCRIPTIONS} queues)",
            f"lightrail bench {FILTER_FLAGS} --pids …",
        ),
        (Limit("per_core_s", 20_000, "messages/s", at_least=True),),
        filtered,
    ),
)
