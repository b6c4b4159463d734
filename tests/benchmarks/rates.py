"""Rows that load a broker and look at CPU time per message, and at latency."""

from tests.benchmarks.floors import Floor, missing
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
    "server_switches",
)
PLAIN = "--duration 5s --backlog 20000"
"""The senders wait while so many messages are under way: what is measured goes in and out alike."""
MANY = "--senders 50 --receivers 50"
REQUESTS = "--requests --senders 20 --receivers 4 --durable --duration 5s"


def cpu_row(name: str, title: str, flags: str, limit_us: float) -> Row:
    """CPU per message of all broker processes together under one load."""

    def measure(workplace: Workplace) -> Figures:
        with workplace.broker() as broker:
            value = bench(f"amqp://{broker.amqp}/bench", flags, (broker.process.pid,))
        return {key: value[key] for key in KEPT}

    commands = (SERVE, f"lightrail bench {flags} --pids …")
    return Row(name, title, commands, (Limit("server_cpu_us", limit_us, "µs"),), measure)


def lone_row(
    name: str,
    title: str,
    flags: str,
    floor: Floor,
    times: float,
    *limits: Limit,
    wait: str = "latency_us",
) -> Row:
    """Messages that come alone: the broker's CPU as a ratio to the floor's.

    Args:
        wait: the figure of the load generator that has the times.
    """

    def measure(workplace: Workplace) -> Figures:
        under = floor.measure(workplace.scratch)
        with workplace.broker() as broker:
            value = bench(f"amqp://{broker.amqp}/bench", flags, (broker.process.pid,))
        kept: Figures = {key: value[key] for key in KEPT}
        kept |= {"p50_ms": value[wait]["p50"] / 1e3, "p99_ms": value[wait]["p99"] / 1e3}
        return floor.beside(kept, under)

    commands = (floor.command, SERVE, f"lightrail bench {flags} --pids …")
    return Row(name, title, commands, (Limit("times_floor", times, "times"), *limits), measure, missing)


def request_row() -> Row:
    """Round trips: requesters that each wait for a reply, and responders that send it."""

    def measure(workplace: Workplace) -> Figures:
        with workplace.broker() as broker:
            value = bench(f"amqp://{broker.amqp}/bench", REQUESTS, (broker.process.pid,))
        times = value["latency_us"]
        kept: Figures = {key: value[key] for key in KEPT}
        return kept | {"p50_ms": times["p50"] / 1e3, "p99_ms": times["p99"] / 1e3}

    return Row(
        "request-reply",
        "20 requesters that wait for each reply and 4 responders, durable: p50 and p99 of the round trip, "
        "CPU per round trip",
        (SERVE, f"lightrail bench {REQUESTS} --pids …"),
        (Limit("p50_ms", 8.0, "ms"), Limit("p99_ms", 20.0, "ms"), Limit("server_cpu_us", 450.0, "µs")),
        measure,
    )


def slow_row() -> Row:
    """Two pairs at full speed beside 98 slow ones, as a ratio to the two alone, on the same broker."""
    alone = f"--senders 2 --receivers 2 --queues 2 {PLAIN}"
    mixed = f"--senders 100 --receivers 100 --slow 98 --queues 2 {PLAIN}"

    def measure(workplace: Workplace) -> Figures:
        with workplace.broker() as broker:
            pids = (broker.process.pid,)
            fast = bench(f"amqp://{broker.amqp}/alone", alone, pids)
            most = bench(f"amqp://{broker.amqp}/bench", mixed, pids)
        return {
            "ratio": most["server_cpu_us"] / fast["server_cpu_us"],
            "p50_ratio": most["latency_us"]["p50"] / fast["latency_us"]["p50"],
            "server_cpu_us": most["server_cpu_us"],
            "alone_cpu_us": fast["server_cpu_us"],
            "received_per_s": most["received_per_s"],
            "alone_per_s": fast["received_per_s"],
            "p50_ms": most["latency_us"]["p50"] / 1e3,
            "alone_p50_ms": fast["latency_us"]["p50"] / 1e3,
            "slow_per_s": most["slow_received_per_s"],
            "slow_p50_ms": most["slow_latency_us"]["p50"] / 1e3,
            "server_processes": most["server_processes"],
        }

    commands = (SERVE, f"lightrail bench {alone} --pids …", f"lightrail bench {mixed} --pids …")
    return Row(
        "mostly-slow",
        "200 connections, 196 of them slow: CPU per message, p50 of the others, to those without the slow",
        commands,
        (Limit("ratio", 2.0, "times"), Limit("p50_ratio", 2.0, "times")),
        measure,
    )


def large_row() -> Row:
    """Messages of 1 MiB, which come and leave in many frames each."""
    flags = "--size 1048576 --durable --duration 5s --backlog 32"

    def measure(workplace: Workplace) -> Figures:
        with workplace.broker() as broker:
            value = bench(f"amqp://{broker.amqp}/bench", flags, (broker.process.pid,))
        kept: Figures = {key: value[key] for key in KEPT}
        return kept | {"server_cpu_ms": value["server_cpu_us"] / 1e3}

    return Row(
        "mib",
        "durable, 1 MiB: messages per second, CPU per message",
        (SERVE, f"lightrail bench {flags} --pids …"),
        (Limit("received_per_s", 300.0, "/s", at_least=True), Limit("server_cpu_ms", 2.5, "ms")),
        measure,
    )


def full_row(name: str, title: str, flags: str, cpu_us: float) -> Row:
    """One sender and one receiver as fast as they can; nothing but the broker holds the sender back."""
    flags = f"{flags} --duration 5s"

    def measure(workplace: Workplace) -> Figures:
        with workplace.broker() as broker:
            value = bench(f"amqp://{broker.amqp}/bench", flags, (broker.process.pid,))
        kept: Figures = {key: value[key] for key in KEPT}
        return kept | {"p50_ms": value["latency_us"]["p50"] / 1e3}

    limits = (Limit("p50_ms", 20.0, "ms"), Limit("server_cpu_us", cpu_us, "µs"))
    return Row(name, title, (SERVE, f"lightrail bench {flags} --pids …"), limits, measure)


def fan_row(name: str, title: str, queues: int) -> Row:
    """CPU per message of 50 pairs as a ratio to that of one pair, both on the same broker."""
    flags = f"{MANY} --queues {queues} {PLAIN}"

    def measure(workplace: Workplace) -> Figures:
        with workplace.broker() as broker:
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
    cpu_row("transient", "transient, 100 bytes: CPU per message", PLAIN, 1.6),
    cpu_row(
        "durable", "durable, 100 bytes, synced before accepted: CPU per message", f"--durable {PLAIN}", 2.0
    ),
    cpu_row("kib", "transient, 1 KiB: CPU per message", "--size 1024 --duration 5s --backlog 5000", 4.5),
    cpu_row(
        "kib-durable",
        "durable, 1 KiB: CPU per message",
        "--size 1024 --durable --duration 5s --backlog 5000",
        5.5,
    ),
    large_row(),
    cpu_row(
        "application",
        "messages of applications, durable: CPU per message",
        f"--durable --application {PLAIN}",
        5.0,
    ),
    cpu_row(
        "application-list32",
        "the same, encoded as list32",
        f"--durable --application --list32 {PLAIN}",
        5.0,
    ),
    cpu_row(
        "application-50",
        "messages of applications, durable, 50 senders and 50 receivers on 50 queues: CPU per message",
        f"--durable --application {MANY} --queues 50 {PLAIN}",
        8.0,
    ),
    cpu_row(
        "application-priorities",
        "messages of applications with ten priorities in turn, durable: CPU per message",
        f"--durable --application --priorities 10 {PLAIN}",
        7.5,
    ),
    cpu_row(
        "application-header",
        "the same with a ttl, and annotations as JMS clients write them: CPU per message",
        f"--durable --application --priorities 10 --ttl 1h --jms {PLAIN}",
        7.5,
    ),
    lone_row(
        "credit-1",
        "10 receivers with credit 1, durable: CPU per message to the floor's",
        "--durable --receivers 10 --credit 1 --duration 5s --backlog 1000",
        Floor(10, 50_000),
        5.5,
    ),
    lone_row(
        "waiting",
        "40 senders that wait for each acceptance, durable: CPU per message to the floor's",
        "--senders 40 --unsettled 1 --durable --duration 5s",
        Floor(40, 20_000, durable=True),
        4.8,
        wait="accepted_after_us",
    ),
    request_row(),
    full_row(
        "full-speed",
        "one pair at full speed, transient, 100 bytes: p50 from sender to receiver; CPU per message",
        "--size 100",
        3.0,
    ),
    full_row(
        "full-speed-application",
        "one pair at full speed, messages of applications, durable: p50 and CPU, as above",
        "--durable --application",
        7.5,
    ),
    lone_row(
        "paced",
        "5,000 messages/s, transient, end to end: CPU per message to the floor's, p50",
        "--rate 5000 --duration 10s",
        Floor(1, 20_000, 5_000),
        5.2,
        Limit("p50_ms", 0.25, "ms"),
    ),
    lone_row(
        "latency",
        "500 messages/s, durable, end to end: CPU and context switches per message to the floor's, p50",
        "--rate 500 --durable --duration 10s",
        Floor(1, 2_500, 500, durable=True),
        4.5,
        Limit("times_switches", 1.3, "times"),
        Limit("p50_ms", 0.35, "ms"),
    ),
    fan_row("one-queue", "50 senders and 50 receivers on one queue: CPU per message to that of one pair", 1),
    fan_row("50-queues", "50 senders and 50 receivers on 50 queues: CPU per message to that of one pair", 50),
    slow_row(),
)
