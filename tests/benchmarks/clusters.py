"""Rows about a cluster on etcd: a queue moves under load, many are spread, a shard dies, etcd is away."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from lightrail.bench.kernel import between, tree
from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.machine import ROOT
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node
from tests.support.http_client import Http

STORED: Final = 1_000_000
RATE: Final = 10_000
TAKEN: Final = 500
"""Messages per second that a receiver takes meanwhile."""
MOVES: Final = 10
QUEUES: Final = 1_000
ETCD_AWAY_S: Final = 60.0
MOVE_MAX_S: Final = 120.0


class Side:
    """Work in a thread; `end` gives its result, or raises what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error

    def end(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


def cluster_of(
    workplace: Workplace, shards: int, frontends: int
) -> tuple[Cluster, list[Node], list[Node], Node]:
    """Nodes that are not started yet."""
    cluster = Cluster(Path(workplace.scratch))
    found = [cluster.shard() for _ in range(shards)]
    doors = [cluster.frontend() for _ in range(frontends)]
    return cluster, found, doors, cluster.gateway()


def admin(gateway: Node, *words: str) -> str:
    """What ``lightrail-admin`` prints."""
    command = [sys.executable, "-m", "lightrail.cli.admin", "--url", gateway.http, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    if done.returncode:
        raise LoadError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-300:]}")
    return done.stdout


def shard_of(http: Http, queue: str) -> int:
    rows = http("GET", f"/!queues?prefix={queue}&limit=1").json()["queues"]
    return int(rows[0]["shard"])


def move(http: Http, queue: str, to: int) -> dict[str, Any]:
    """Moves a queue and waits for its end."""
    begun = http("POST", "/!moves", json.dumps({"moves": [{"queue": queue, "to": to}]}).encode())
    if not begun.json()["begun"]:
        raise LoadError(f"the move of {queue} did not begin: {begun.json()}")
    found: list[dict[str, Any]] = []

    def ended() -> bool:
        state = http("GET", "/!moves").json()
        found[:] = [each for each in state["ended"] if each["queue"] == queue and each["to"] == to]
        return not state["moves"] and bool(found)

    wait.until(ended, f"{queue} is on shard {to}", MOVE_MAX_S)
    if found[-1].get("result") != "done":
        raise LoadError(f"the move of {queue} ended so: {found[-1]}")
    return found[-1]


# --- the pause of a move -----------------------------------------------------------------------------------


def measure_pause(workplace: Workplace) -> Figures:
    """One queue goes back and forth under load; the pause is the longest wait of a sender for an answer.

    A receiver takes some of the messages meanwhile, the others stay; at the end their number must be right.
    """
    cluster, _, doors, gateway = cluster_of(workplace, 2, 1)
    with cluster:
        cluster.start()
        url = f"{doors[0].amqp}/moving"
        sent = bench(url, f"--durable --send-only --count {STORED} --size 100")["accepted"]
        workplace.say(f"{STORED:,} messages are stored")
        taker = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.taker", doors[0].amqp, "moving", str(TAKEN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        pauses: list[float] = []
        inside: list[float] = []
        took: list[float] = []
        flags = f"--durable --rate {RATE} --duration 8s --size 100 --send-only"
        calm = bench(url, flags)
        sent += calm["accepted"]
        with Http(gateway.served) as http:
            for number in range(MOVES):
                load = Side(lambda: bench(url, flags))
                time.sleep(3.0)
                began = time.monotonic()
                ended = move(http, "moving", 1 - shard_of(http, "moving"))
                took.append(time.monotonic() - began)
                value = load.end()
                sent += value["accepted"]
                pauses.append(value["accepted_after_us"]["max"] / 1e3)
                inside.append(float(ended["pause_ms"]))
                workplace.say(
                    f"move {number + 1}: {pauses[-1]:.0f} ms, {inside[-1]:.0f} of them without an owner"
                )
            said, _ = taker.communicate(b"end", timeout=60)
            taken = json.loads(said)
            (row,) = http("GET", "/!queues?prefix=moving&limit=1").json()["queues"]
            left = int(row["ready"]) + int(row["in_flight"])
        if left + taken["received"] != sent:
            raise LoadError(f"{sent} were sent and {taken['received']} taken, but {left} are left")
    pauses.sort()
    return {
        "pause_p99_ms": pauses[min(len(pauses) - 1, int(0.99 * len(pauses)))],
        "pause_median_ms": pauses[len(pauses) // 2],
        "receiver_pause_max_ms": taken["longest_ms"],
        "without_owner_max_ms": max(inside),
        "without_a_move_max_ms": calm["accepted_after_us"]["max"] / 1e3,
        "move_s": sorted(took)[len(took) // 2],
        "pauses_ms": pauses,
    }


# --- many queues -------------------------------------------------------------------------------------------


def measure_rebalance(workplace: Workplace) -> Figures:
    """A thousand queues with a message each on two shards, then two more shards."""
    cluster, _, _, gateway = cluster_of(workplace, 2, 1)
    with cluster:
        cluster.start()
        with Http(gateway.served) as http:
            for number in range(QUEUES):
                sent = http("POST", f"/many/{number}", b"a message", {"Content-Type": "text/plain"})
                if sent.status != 201:
                    raise LoadError(
                        f"expected 201 for queue {number}, found {sent.status}: {sent.body[:200]!a}"
                    )
            workplace.say(f"{QUEUES:,} queues with a message each")
            more = [cluster.shard(), cluster.shard()]
            cluster.start(*more)
            wait.until(
                lambda: sum(each["serving"] for each in http("GET", "/!shards").json()["shards"]) == 4,
                "the gateway knows four shards",
                30.0,
            )
            began = time.monotonic()
            done = json.loads(admin(gateway, "rebalance", "--json"))
            took = time.monotonic() - began
            failed = [each for each in done["ended"] if each.get("error")]
            if failed or done["left_out"]:
                raise LoadError(f"of {len(done['begun'])} moves {len(failed)} failed: {failed[:2]}")
            loads = [each["load_before"] for each in http("GET", "/!plan?sample=0").json()["shards"]]
            again = json.loads(admin(gateway, "rebalance", "--dry-run", "--json"))["moves"]
            admin(gateway, "rebalance", "--verify")
            totals = http("GET", "/!queues?prefix=many&limit=1000").json()["queues"]
            if sum(int(each["ready"]) for each in totals) != QUEUES:
                wrong = [each["name"] for each in totals if each["ready"] != 1]
                raise LoadError(f"{len(totals)} queues; not one message have {wrong[:5]}")
    return {
        "rebalance_s": took,
        "largest_to_mean": max(loads) / (sum(loads) / len(loads)),
        "second_run_moves": len(again),
        "moves": len(done["begun"]),
    }


# --- failures ----------------------------------------------------------------------------------------------


def measure_return(workplace: Workplace) -> Figures:
    """kill -9 of a shard under load, and started again at once."""
    cluster, shards, doors, _ = cluster_of(workplace, 1, 1)
    with cluster:
        cluster.start()
        url = f"{doors[0].amqp}/there"
        bench(url, "--durable --send-only --count 100000 --size 100")
        load = Side(lambda: bench_forgiving(url, "--durable --rate 2000 --duration 20s --size 100"))
        time.sleep(4.0)
        shards[0].kill()
        began = time.monotonic()
        shards[0].start()
        bench(f"{doors[0].amqp}/there-too", "--durable --count 1 --size 100")
        served_s = time.monotonic() - began
        value = load.end()
    if value["lost"] or value["not_accepted"]:
        raise LoadError(f"lost {value['lost']}, not accepted {value['not_accepted']}")
    return {"serves_after_s": served_s, "senders_waited_max_s": value["accepted_after_us"]["max"] / 1e6}


def bench_forgiving(url: str, flags: str) -> dict[str, Any]:
    """A run in which what receivers held may come again: the shard that knew of it died."""
    command = [sys.executable, "-m", "lightrail.bench", "--url", url, "--json", "--quiet", *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    if done.returncode not in (0, 1):
        raise LoadError(done.stderr.strip()[-500:])
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def threads_of(pids: tuple[int, ...]) -> int:
    """Of all these processes."""
    return sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)


def measure_etcd(workplace: Workplace) -> Figures:
    """etcd is killed for a minute under load; what was asked for meanwhile is done when it is back."""
    cluster, shards, doors, gateway = cluster_of(workplace, 2, 1)
    with cluster:
        cluster.start()
        pids = tuple(node.pid for node in (*shards, *doors, gateway))
        url = f"{doors[0].amqp}/placed"
        flags = "--durable --rate 2000 --size 100"
        before = bench(url, f"{flags} --duration 20s", pids)
        there = threads_of(pids)
        cluster.etcd.servers[0].kill()
        load = Side(lambda: bench(url, f"{flags} --duration {ETCD_AWAY_S:.0f}s", pids))
        threads: list[int] = []
        spent_before = tree(pids)
        for _ in range(int(ETCD_AWAY_S / 5)):
            time.sleep(5.0)
            threads.append(threads_of(pids))
        spent = between(spent_before, tree(pids))
        away = load.end()
        cluster.etcd.servers[0].start()
        began = time.monotonic()
        bench(f"{doors[0].amqp}/new-name", "--durable --count 10 --size 100")
        back_s = time.monotonic() - began
    return {
        "cpu_ratio": away["server_cpu_us"] / before["server_cpu_us"],
        # gRPC has fewer while there is no connection, and the same again at each attempt to make one.
        "threads_grown": max(threads) - there,
        "threads": [there, *threads],
        "changes_after_s": back_s,
        "accepted_max_ms": away["accepted_after_us"]["max"] / 1e3,
        "cpu_percent": 100 * spent.total_s / ETCD_AWAY_S,
    }


# --- several of each ---------------------------------------------------------------------------------------


def _spread(doors: list[Node], servers: list[Node]) -> tuple[float, float]:
    """The same load, half through each of two frontends: CPU of the servers per message, and the rate."""
    flags = "--durable --duration 6s --size 100 --backlog 20000 --queues 4 --senders 4 --receivers 4"
    pids = tuple(node.pid for node in servers)
    before = tree(pids)
    sides = [Side(partial(bench, f"{door.amqp}/half{half}", flags)) for half, door in enumerate(doors)]
    values = [side.end() for side in sides]
    spent = between(before, tree(pids)).total_s
    received = sum(each["received"] for each in values)
    return 1e6 * spent / received, sum(each["received_per_s"] for each in values)


def measure_spread(workplace: Workplace) -> Figures:
    """CPU per message over two shards and two frontends to that of one each, in turns on one machine."""
    one: list[float] = []
    two: list[float] = []
    rates: list[float] = []
    small = Cluster(Path(workplace.scratch) / "one")
    large = Cluster(Path(workplace.scratch) / "two")
    for each in (small, large):
        each.directory.mkdir()
    with small, large:
        shard, door = small.shard(), small.frontend()
        shards, doors = [large.shard(), large.shard()], [large.frontend(), large.frontend()]
        small.start()
        large.start()
        for _ in range(3):
            one.append(_spread([door, door], [shard, door])[0])
            spent_us, rate = _spread(doors, [*shards, *doors])
            two.append(spent_us)
            rates.append(rate)
            workplace.say(f"{one[-1]:.2f} and {two[-1]:.2f} µs")
    one.sort()
    two.sort()
    return {
        "ratio": two[len(two) // 2] / one[len(one) // 2],
        "one_each_cpu_us": one[len(one) // 2],
        "two_each_cpu_us": two[len(two) // 2],
        "received_per_s": max(rates),
    }


ETCD: Final = "etcd, and: lightrail shard --etcd …, lightrail frontend --etcd …, lightrail gateway --etcd …"
ROWS = (
    Row(
        "move-pause",
        f"a queue with {STORED:,} stored messages moves under {RATE:,} messages/s, durable: the pause of its "
        f"senders, p99 of {MOVES} moves",
        (ETCD, f"lightrail bench --durable --send-only --rate {RATE}", "POST /!moves    (back and forth)"),
        (Limit("pause_p99_ms", 250, "ms"),),
        measure_pause,
    ),
    Row(
        "rebalance",
        f"{QUEUES:,} small queues from 2 to 4 shards: time, largest load to mean, moves that a second run "
        "proposes",
        (ETCD, "lightrail-admin rebalance", "lightrail-admin rebalance --dry-run"),
        (
            Limit("rebalance_s", 60, "s"),
            Limit("largest_to_mean", 1.1, "times"),
            Limit("second_run_moves", 0, "moves"),
        ),
        measure_rebalance,
    ),
    Row(
        "shard-back",
        "kill -9 of a shard with 100,000 messages, started again: until a new message is stored and received",
        (ETCD, "kill -9 …", "lightrail shard --etcd …"),
        (Limit("serves_after_s", 3, "s"),),
        measure_return,
    ),
    Row(
        "etcd-away",
        f"etcd gone for {ETCD_AWAY_S:.0f} s under load: CPU per message to before, threads, changes when it "
        "is back",
        (ETCD, "kill -9 …    (etcd)", "lightrail bench --durable --rate 2000"),
        (
            Limit("cpu_ratio", 1.1, "times"),
            Limit("threads_grown", 0, "threads"),
            Limit("changes_after_s", 10, "s"),
        ),
        measure_etcd,
    ),
    Row(
        "two-by-two",
        "2 shards and 2 frontends to one each, durable: CPU per message",
        (ETCD, "lightrail bench --durable --queues 4 --senders 4 --receivers 4    (at each frontend)"),
        (Limit("ratio", 1.15, "times"),),
        measure_spread,
    ),
)
