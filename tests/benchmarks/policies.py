"""What each policy of a queue costs per message: broker CPU under the same load with it and without it."""

import json
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Row, Workplace
from tests.support.http_client import Http

LOAD: Final = "--duration 3s --backlog 20000"
KEYS: Final = "--property key=100000000"
"""More than are ever sent: no key comes twice, and the keys rise."""
ROUTER: Final = "router"


@dataclass(frozen=True, slots=True)
class Case:
    """A policy and the messages that it is measured with; plain queues get the same messages."""

    policy: dict[str, Any]
    messages: str = ""
    """Flags of the load generator for both."""
    flags: str = ""
    """Flags for this one alone."""


CASES: Final[dict[str, Case]] = {
    "max_age": Case({"max_age": 3_600}),
    "max_length": Case({"max_length": 1_000_000}),
    "lock_duration": Case({"lock_duration": 60}),
    "priorities (all of one)": Case({"priorities": 10}),
    "priorities (ten in turn)": Case({"priorities": 10}, "--priorities 10"),
    "last_value (no key twice)": Case(
        {"order": "last_value", "order_key": "application-properties.key"}, KEYS
    ),
    "sorted (rising keys)": Case({"order": "sorted", "order_key": "application-properties.key"}, KEYS),
    "groups (1,000 of them)": Case({"groups": True}, "--groups 1000"),
    "duplicate_window": Case({"duplicate_window": 60}, "--message-ids"),
    "delay (none asked for)": Case({"delay": True}),
    "a consumer's selector": Case({}, KEYS, "--selector key<>'x'"),
    "a router before the queue": Case({}, flags=f"--target {ROUTER}"),
}


def measure(workplace: Workplace) -> Figures:
    """CPU per message of every case, and of a plain queue with the same messages."""
    plain: dict[str, float] = {}
    parts: dict[str, dict[str, Any]] = {}
    with workplace.broker() as broker:
        pids = (broker.process.pid,)
        with Http(broker.http) as http:
            for number, case in enumerate(CASES.values()):
                if http("POST", f"/policy-{number}", {"role": "queue", **case.policy}).status != 201:
                    raise LoadError(f"expected 201 to the policy {case.policy}")
            http("POST", f"/{ROUTER}", {"role": "router"})
            last = {"target": f"policy-{len(CASES) - 1}"}
            if http("POST", f"/{ROUTER}/!subscriptions", last).status != 201:
                raise LoadError("expected 201 to the subscription")
        for number, (name, case) in enumerate(CASES.items()):
            messages = f"{LOAD} {case.messages}".strip()
            if messages not in plain:
                plain[messages] = bench(f"amqp://{broker.amqp}/plain", messages, pids)["server_cpu_us"]
            value = bench(f"amqp://{broker.amqp}/policy-{number}", f"{messages} {case.flags}", pids)
            own = value["server_cpu_us"] - plain[messages]
            parts[name] = {
                "policy": json.dumps(case.policy) if case.policy else "",
                "messages": f"{case.messages} {case.flags}".strip(),
                "CPU, µs": value["server_cpu_us"],
                "plain queue, µs": plain[messages],
                "own, µs": own,
                "messages/s": value["received_per_s"],
            }
            workplace.say(f"{name}: {own:.2f} µs")
    return {"parts": parts}


ROWS = (
    Row(
        "policies",
        "what each policy of a queue costs per message: 100 bytes, transient, one sender, one receiver",
        (
            SERVE,
            f"lightrail bench {LOAD} … --pids …    (a plain queue)",
            f"lightrail bench {LOAD} … --pids …    (one with the policy)",
        ),
        (),
        measure,
    ),
)
