"""Benchmark of filters: CPU microseconds per message of extraction, matching and actions.

    python tests/benchmarks/filters_bench.py

CPU is process time, the median of several rounds, of a message with header, properties, four application
properties and a body of 256 bytes.
"""

import statistics
import time
from collections.abc import Callable
from uuid import uuid4

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Header, Properties, decode_application_properties, decode_properties
from lightrail.amqp.values import Described, Symbol, Timestamp, ULong
from lightrail.filters.action import compile_action
from lightrail.filters.filter import Filter, compile_filter
from lightrail.filters.matcher import Matcher
from lightrail.filters.message import MessageView, extract
from lightrail.filters.path import parse_path
from lightrail.filters.rules.rule_action import compile_rule_action

ROUNDS = 7
CALLS = 20_000

MESSAGE = b"".join(
    (
        encode(Header(durable=True)),
        encode(
            Properties(
                message_id="0f5f0c8a-7a44-4bd3-9a0c-7a3f1de1a5b2",
                to="orders",
                subject="orders.eu.created",
                reply_to="replies",
                correlation_id=ULong(17),
                content_type=Symbol("application/json"),
                creation_time=Timestamp(1_700_000_000_000),
                group_id="customer-17",
                group_sequence=4,
            )
        ),
        encode(Described(ULong(0x74), {"tenant": "acme", "weight": 17, "colour": "red-7", "urgent": True})),
        encode(Described(ULong(0x75), b"m" * 256)),
    )
)


def cost_us(call: Callable[[], object]) -> float:
    """CPU microseconds of one call."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            call()
        rounds.append((time.process_time() - start) / CALLS * 1e6)
    return statistics.median(rounds)


def matching(filters: list[Filter | None]) -> Callable[[], object]:
    matcher = Matcher(list(enumerate(filters)))
    return lambda: matcher.targets(MessageView(MESSAGE))


def main() -> None:
    subject, colour, missing, group = map(
        parse_path,
        ("subject", "application-properties.colour", "application-properties.size", "group-id"),
    )
    equal = [
        compile_filter({"properties": {"application-properties.colour": f"red-{n}"}}) for n in range(100)
    ]
    sql = [compile_filter({"sql": f"colour LIKE 'red-{n}%' AND weight > {n}"}) for n in range(100)]
    guarded = [compile_filter({"sql": f"colour = 'red-{n}' AND weight > {n}"}) for n in range(100)]
    patterns = [compile_filter({"subject": f"orders.*.created.#.{n}"}) for n in range(100)]
    one = compile_filter({"sql": "colour = 'red-7' AND weight BETWEEN 10 AND 20"})
    action = compile_action({"set": {"subject": "copied", "application-properties.hops": 1}})
    rule_equal = [compile_filter({"rule": {"properties": {"Colour": f"red-{n}"}}}) for n in range(100)]
    rules = [
        compile_filter({"rule": {"sql": f"Colour LIKE 'red-{n}%' AND Weight > {n}"}}) for n in range(100)
    ]
    rule = compile_filter({"rule": {"sql": "Colour = 'red-7' AND Weight BETWEEN 10 AND 20"}})
    statements = compile_rule_action({"sql": "SET sys.Label = 'copied'; SET hops = 1"}, uuid4)
    rows = {
        "extract subject": lambda: extract(MESSAGE, subject),
        "extract group-id": lambda: extract(MESSAGE, group),
        "extract third application property": lambda: extract(MESSAGE, colour),
        "extract application property that is not there": lambda: extract(MESSAGE, missing),
        "decode all properties, for comparison": lambda: decode_properties(MESSAGE),
        "decode all application properties, for comparison": lambda: decode_application_properties(MESSAGE),
        "targets of 100 equalities of one application property": matching(list(equal)),
        "targets of 100 expressions with an equality and a comparison": matching(list(guarded)),
        "targets of 100 expressions with LIKE and a comparison": matching(list(sql)),
        "targets of 100 subject patterns": matching(list(patterns)),
        "one expression of two conditions": lambda: one.matches(MessageView(MESSAGE)),
        "action that sets subject and an application property": lambda: action.apply(MESSAGE),
        "targets of 100 correlation filters of one application property": matching(list(rule_equal)),
        "targets of 100 rules with LIKE and a comparison": matching(list(rules)),
        "one rule of two conditions": lambda: rule.matches(MessageView(MESSAGE)),
        "statements that set the label and an application property": lambda: statements.apply(MESSAGE, 0),
    }
    for name, call in rows.items():
        print(f"{cost_us(call):8.2f} us  {name}")


if __name__ == "__main__":
    main()
