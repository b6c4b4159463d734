"""Rows that load a broker and look at CPU time per message, and at latency."""

from tests.benchmarks.load import bench
from tests.benchmarks.row import Figures, Limit, Row, Workplace

SERVE = "lightrail serve --frontends 1 --shards 1"
KEPT = (
    "server_cpu_us",
    "received_per_s",
    "sender_cpu_us",
    "receiver_cpu_us",
    "latency_us",
    "server_processes",
)
PLAIN = "--duration 5s --backlog 20000"
"""The senders wait while so many messages are under way: what is measured goes in and out alike."""
MANY = "--senders 50 --receivers 50"


def cpu_row(name: str, title: str, flags: str, limit_us: float) -> Row:
    """CPU per message of all broker processes together under one load."""

    def measure(place: Workplace) -> Figures:
        with place.broker() as broker:
            value = bench(f"amqp://{broker.amqp}/bench", flags, (broker.process.pid,))
        return {key: value[key] for key in KEPT}

    commands = (SERVE, f"lightrail bench {flags} --pids …")
    return Row(name, title, commands, (Limit("server_cpu_us", limit_us, "µs"),), measure)


def latency_row() -> Row:
    """End to end, from the moment a message should have been sent."""
    flags = "--rate 500 --durable --duration 10s"

    def measure(place: Workplace) -> Figures:
        with place.broker() as broker:
            value = bench(f"amqp://{broker.amqp}/bench", flags)
        times = value["latency_us"]
        return {"p50_ms": times["p50"] / 1e3, "p99_ms": times["p99"] / 1e3, "latency_us": times}

    return Row(
        "latency",
        "500 messages/s, durable, end to end: p50, p99",
        (SERVE, f"lightrail bench {flags}"),
        (Limit("p50_ms", 0.35, "ms"), Limit("p99_ms", 2.0, "ms")),
        measure,
    )


def fan_row(name: str, title: str, queues: int) -> Row:
    """CPU per message of 50 pairs as a ratio to that of one pair, both on the same broker."""
    flags = f"{MANY} --queues {queues} {PLAIN}"

    def measure(place: Workplace) -> Figures:
        with place.broker() as broker:
            pids = (broker.process.pid,)
            one = bench(f"amqp://{broker.amqp}/pair", PLAIN, pids)
            many = bench(f"amqp://{broker.amqp}/bench", flags, pids)
        return {
            "ratio": many["server_cpu_us"] / one["server_cpu_us"],
            "one_pair_cpu_us": one["server_cpu_us"],
            "received_per_s": many["received_per_s"],
            "server_cpu_us": many["server_cpu_us"],
            "server_processes": many["server_processes"],
        }

    commands = (SERVE, f"lightrail bench {PLAIN} --pids …", f"lightrail bench {flags} --pids …")
    return Row(name, title, commands, (Limit("ratio", 1.5, "times"),), measure)


ROWS = (
    cpu_row("transient", "transient, 100 bytes: CPU per message", PLAIN, 3.0),
    cpu_row(
        "durable", "durable, 100 bytes, synced before accepted: CPU per message", f"--durable {PLAIN}", 3.5
    ),
    cpu_row("kib", "transient, 1 KiB: CPU per message", "--size 1024 --duration 5s --backlog 5000", 6.0),
    latency_row(),
    fan_row("one-queue", "50 senders and 50 receivers on one queue: CPU per message to that of one pair", 1),
    fan_row("50-queues", "50 senders and 50 receivers on 50 queues: CPU per message to that of one pair", 50),
)
