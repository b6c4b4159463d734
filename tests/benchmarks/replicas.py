"""Rows about a shard with replicas: what they cost, and a member that catches up."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from lightrail.bench.kernel import between, tree
from tests.benchmarks.clusters import Side
from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.rates import PLAIN
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.cluster.replicated import Members
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

REPLICAS: Final = 3
TURNS: Final = 3
"""Of each number of members in one run."""
DURABLE: Final = f"--durable {PLAIN}"
PACED: Final = "--rate 500 --durable --duration 8s"
LOOK_S: Final = 0.25
"""How often etcd is asked, which costs CPU."""
STARTED_MAX_S: Final = 120.0
BEHIND_COUNT: Final = 50_000
BEHIND_SIZE: Final = 10_240
AMONG_S: Final = 10.0
"""Time for which senders are watched before and while a member catches up."""


def until_in_sync(members: Members, count: int) -> None:
    """Waits until so many members are in sync, without much CPU."""
    deadline = time.monotonic() + STARTED_MAX_S
    while len(members.entry()["in_sync"]) != count:
        if time.monotonic() > deadline:
            raise LoadError(f"expected {count} members in sync, found {members.entry()}")
        time.sleep(LOOK_S)


@dataclass(slots=True)
class Scene:
    """A cluster of one frontend and one shard, with its members."""

    frontend: Node
    members: list[Node]
    owner: Callable[[], Node]

    def load(self, flags: str) -> dict[str, Any]:
        """A load, with the CPU time per message of the servers, of all members together and of clients."""
        groups = {"members": [each.pid for each in self.members], "frontend": [self.frontend.pid]}
        before = {name: tree(tuple(pids)) for name, pids in groups.items()}
        value = bench(f"{self.frontend.amqp}/bench", flags)
        count = value["received"]
        for name, pids in groups.items():
            value[f"{name}_cpu_us"] = 1e6 * between(before[name], tree(tuple(pids))).total_s / count
        value["server_cpu_us"] = value["members_cpu_us"] + value["frontend_cpu_us"]
        value["all_cpu_us"] = value["server_cpu_us"] + value["sender_cpu_us"] + value["receiver_cpu_us"]
        return value


@contextmanager
def scene_of(directory: Path, count: int) -> Iterator[Scene]:
    """A shard with so many members; with one it has no replicas."""
    directory.mkdir()
    cluster = Cluster(directory)
    with ExitStack() as stack:
        if count == 1:
            frontend, shard = cluster.frontend(), cluster.shard()
            stack.enter_context(cluster)
            cluster.start()
            yield Scene(frontend, [shard], lambda: shard)
        else:
            members = Members(cluster, 0, "--replicas", str(count), count=count)
            frontend = cluster.frontend()
            stack.enter_context(cluster)
            # Before the processes end: it starts those again that end by themselves.
            stack.callback(members.close)
            members.start()
            cluster.start(frontend)
            until_in_sync(members, count)
            yield Scene(frontend, members.nodes, members.owner)


def in_turns(workplace: Workplace, counts: tuple[int, ...], flags: str) -> dict[int, list[dict[str, Any]]]:
    """The same load on shards with so many members, in turns on one machine."""
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    with ExitStack() as stack:
        scenes = {
            count: stack.enter_context(scene_of(Path(workplace.scratch) / str(count), count))
            for count in counts
        }
        for turn in range(TURNS):
            # What is first in one turn is last in the next: none always has the warmer machine.
            for count in counts[:: 1 if turn % 2 else -1]:
                found[count].append(scenes[count].load(flags))
    return found


def ratio(many: list[dict[str, Any]], one: list[dict[str, Any]], figure: str) -> float:
    """The median of the ratios of each turn."""
    return statistics.median(float(more[figure] / less[figure]) for more, less in zip(many, one, strict=True))


def median(values: list[dict[str, Any]], figure: str) -> float:
    return statistics.median(float(value[figure]) for value in values)


def measure_cost(workplace: Workplace) -> Figures:
    """CPU per message of shards with one, two and three members."""
    one, two, three = in_turns(workplace, (1, 2, 3), DURABLE).values()
    return {
        "two_ratio": ratio(two, one, "server_cpu_us"),
        "three_ratio": ratio(three, one, "server_cpu_us"),
        "two_ratio_with_clients": ratio(two, one, "all_cpu_us"),
        "three_ratio_with_clients": ratio(three, one, "all_cpu_us"),
        "one_cpu_us": median(one, "server_cpu_us"),
        "two_cpu_us": median(two, "server_cpu_us"),
        "three_cpu_us": median(three, "server_cpu_us"),
        "one_members_cpu_us": median(one, "members_cpu_us"),
        "two_members_cpu_us": median(two, "members_cpu_us"),
        "three_members_cpu_us": median(three, "members_cpu_us"),
        "one_per_s": median(one, "received_per_s"),
        "two_per_s": median(two, "received_per_s"),
        "received_per_s": median(three, "received_per_s"),
    }


def measure_latency(workplace: Workplace) -> Figures:
    """Times of shards with one and three members at a rate that does not strain the machine."""
    one, three = in_turns(workplace, (1, REPLICAS), PACED).values()
    for value in (*one, *three):
        for name, times in (("accepted", value["accepted_after_us"]), ("received", value["latency_us"])):
            value[f"{name}_p50_us"], value[f"{name}_p99_us"] = times["p50"], times["p99"]
    figures: Figures = {}
    for name in ("accepted", "received"):
        figures[f"{name}_ratio"] = ratio(three, one, f"{name}_p50_us")
        for kind in ("p50", "p99"):
            figures[f"one_{name}_{kind}_ms"] = median(one, f"{name}_{kind}_us") / 1e3
            figures[f"three_{name}_{kind}_ms"] = median(three, f"{name}_{kind}_us") / 1e3
    return figures | {"cpu_ratio": ratio(three, one, "server_cpu_us")}


def written_by(node: Node) -> int:
    """Bytes that a process has written to files and connections since its start, of proc(5)."""
    text = Path(f"/proc/{node.pid}/io").read_text()
    return int(text.partition("wchar: ")[2].split()[0])


def measure_catching_up(workplace: Workplace) -> Figures:
    """A member is away while messages are stored; when it is back it gets them, under a paced load."""
    cluster = Cluster(Path(workplace.scratch))
    members = Members(cluster)
    frontend = cluster.frontend()
    among = f"--rate 500 --durable --duration {AMONG_S:g}s"
    with cluster, closing(members):
        members.start()
        cluster.start(frontend)
        until_in_sync(members, REPLICAS)
        away = members.followers()[0]
        members.kill(away)
        until_in_sync(members, REPLICAS - 1)
        calm = bench(f"{frontend.amqp}/among", among)
        stored = f"--durable --send-only --count {BEHIND_COUNT} --size {BEHIND_SIZE} --backlog 0"
        bench(f"{frontend.amqp}/stored", stored)
        missing = BEHIND_COUNT * BEHIND_SIZE
        workplace.say(f"{missing >> 20:,} MiB are stored")
        load = Side(partial(bench, f"{frontend.amqp}/among", among))
        members.revive(away)
        wait.until(lambda: written_by(away) > 0.01 * missing, "it gets something", STARTED_MAX_S)
        began, first = time.monotonic(), written_by(away)
        wait.until(lambda: written_by(away) > 0.98 * missing, "it has almost all", STARTED_MAX_S)
        took, last = time.monotonic() - began, written_by(away)
        value = load.end()
        until_in_sync(members, REPLICAS)
    return {
        "mb_per_s": (last - first) / took / 1e6,
        "p99_ratio": value["accepted_after_us"]["p99"] / calm["accepted_after_us"]["p99"],
        "p99_ms": value["accepted_after_us"]["p99"] / 1e3,
        "p99_before_ms": calm["accepted_after_us"]["p99"] / 1e3,
        "p50_ms": value["accepted_after_us"]["p50"] / 1e3,
        "p50_before_ms": calm["accepted_after_us"]["p50"] / 1e3,
        "took_s": took,
    }


MEMBERS: Final = "etcd, and: lightrail shard --etcd … --replicas N    (N times), lightrail frontend --etcd …"
ROWS = (
    Row(
        "replicas-cpu",
        "durable, 100 bytes: CPU per message of a frontend and 2 members, and 3, to that without replicas",
        (MEMBERS, f"lightrail bench {DURABLE}    (in turns)"),
        (Limit("two_ratio", 1.25, "times"), Limit("three_ratio", 1.45, "times")),
        measure_cost,
    ),
    Row(
        "replicas-latency",
        "500 messages/s, durable, 3 members on one machine: p50 until accepted, and until received, to those "
        "without replicas",
        (MEMBERS, f"lightrail bench {PACED}    (in turns)"),
        (Limit("accepted_ratio", 2.0, "times"), Limit("received_ratio", 2.5, "times")),
        measure_latency,
    ),
    Row(
        "catching-up",
        f"a member that lacks {BEHIND_COUNT * BEHIND_SIZE >> 20:,} MiB catches up: its rate, and the p99 of "
        "500 messages/s until accepted to that before",
        (MEMBERS, "kill -9 …    (a member, and it is started again)", f"lightrail bench {PACED}"),
        (Limit("mb_per_s", 150.0, "MB/s", at_least=True), Limit("p99_ratio", 1.1, "times")),
        measure_catching_up,
    ),
)
