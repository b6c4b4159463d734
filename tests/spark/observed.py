"""Events for tests of `analyse`, and the same tables computed from them in plain Python.

The story of each message is known here from the start (it is drawn, not read from events), so that the two
computations have nothing in common but the definition.
"""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

import pyarrow as pa

from lightrail.spark.columns import SCHEMA

START = datetime(2026, 11, 21, 9, 58, 30, tzinfo=UTC)
ENDS = ("accepted", "rejected", "expired", "dead_lettered", "purged", "discarded")


@dataclass
class Message:
    """What happened to one message, in order: (ms since START, shard, event, more columns)."""

    queue: str
    sequence: int
    size: int
    events: list[tuple[int, int, str, dict[str, Any]]] = field(default_factory=list)
    move_ms: int | None = None
    """When its queue moves from shard 0 to shard 1."""

    def then(self, event: str, at: int, **more: Any) -> None:
        """Something happens to it, behind the move of its queue if that was before."""
        shard = self.events[-1][1]
        if self.move_ms is not None and shard == 0 and at >= self.move_ms:
            self.events.append((self.move_ms, 1, "moved", {}))
            shard = 1
        self.events.append((at, shard, event, more))


def story(seed: int, queues: int = 6, messages: int = 120, older: int = 0) -> list[Message]:
    """Messages of some queues over some minutes; queue 0 moves from shard 0 to shard 1 on the way.

    Args:
        older: so many messages of queue 1 were enqueued before anything was written down.
    """
    draw = random.Random(seed)
    found = []
    for number in range(queues):
        name = f"team {number}/<orders>" if number % 2 else f"q{number}"
        clock = 0
        move_ms = 150_000 if number == 0 else None
        for sequence in range(messages):
            clock += draw.choice((0, 1, 40, 900, 4_000))
            shard = 1 if move_ms is not None and clock >= move_ms else number % 2
            message = Message(name, sequence, draw.randrange(40, 400), move_ms=move_ms)
            found.append(message)
            at = clock
            message.events.append((at, shard, "enqueued", {"producer": f"0000000a-{draw.randrange(3)}"}))

            consumer = f"0000000b-{draw.randrange(2)}"
            for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
                at += draw.choice((0, 3, 700, 20_000))
                message.then("delivered", at, consumer=consumer)
                if draw.random() < 0.3:
                    at += draw.randrange(2_000)
                    message.then(draw.choice(("released", "modified")), at)
            if draw.random() < 0.85:
                at += draw.choice((0, 1, 5, 333, 61_000, 200_000))
                end = draw.choice(("accepted",) * 6 + ENDS)
                reason = draw.choice(("expired", "rejected")) if end == "dead_lettered" else None
                message.then(end, at, reason=reason)
            elif move_ms is not None and message.events[-1][1] == 0:
                message.events.append((move_ms, 1, "moved", {}))
            if number == 1 and sequence < older:
                message.events = message.events[1:]
    return found


def table(messages: list[Message]) -> pa.Table:
    """The rows of the data source for them: journals write in the order of time."""
    happened = sorted(
        ((at, index, step), message)
        for index, message in enumerate(messages)
        for step, (at, *_) in enumerate(message.events)
    )
    lsn: Counter[int] = Counter()
    rows = []
    for (at, _, step), message in happened:
        _, shard, event, more = message.events[step]
        lsn[shard] += 1
        row = dict.fromkeys(SCHEMA.names)
        row |= {
            "queue": message.queue,
            "shard": shard,
            "journal": f"{shard:032x}",
            "epoch": 1,
            "sequence": message.sequence,
            "lsn": lsn[shard],
            "event": event,
            "event_time": START + timedelta(milliseconds=at),
        }
        if event in ("enqueued", "moved"):
            came = message.events[0][0] if message.events[0][2] == "enqueued" else at
            row |= {
                "enqueued_at": START + timedelta(milliseconds=came),
                "message": bytes(message.size),
                "durable": True,
            }
        rows.append(row | more)
    return pa.Table.from_pylist(rows, SCHEMA)


def nearest_rank(times: list[int], percent: int) -> int | None:
    """The smallest time that `percent` % of all are not above."""
    return sorted(times)[ceil(percent * len(times) / 100) - 1] if times else None


class Expected:
    """The tables of `analyse`, from the stories."""

    def __init__(self, messages: list[Message]) -> None:
        self._of_queue: dict[str, list[Message]] = defaultdict(list)
        for message in messages:
            if message.events:
                self._of_queue[message.queue].append(message)

    def minutes(self) -> dict[tuple[str, datetime], dict[str, Any]]:
        """By (queue, minute)."""
        found = {}
        for name, messages in self._of_queue.items():
            older = sum(all(event != "enqueued" for _, _, event, _ in each.events) for each in messages)
            depth = older
            seen = {minute(at) for each in messages for at, *_ in each.events}
            for when in sorted(seen):
                row = _count(messages, when)
                depth += row["enqueued"] - row["ended"]
                row |= {"depth": depth, "depth_known": not older}
                row |= {"in_per_s": row["enqueued"] / 60, "out_per_s": row["ended"] / 60}
                found[name, when] = row
        return found

    def queues(self) -> dict[str, dict[str, Any]]:
        """By queue."""
        minutes = self.minutes()
        found = {}
        for name, messages in self._of_queue.items():
            row = _count(messages, None)
            older = sum(all(event != "enqueued" for _, _, event, _ in each.events) for each in messages)
            depths = [each["depth"] for (queue, _), each in sorted(minutes.items()) if queue == name]
            whens = [when for queue, when in sorted(minutes) if queue == name]
            row |= {
                "depth_first": older,
                "depth_max": max(older, *depths),
                "depth_last": depths[-1],
                "depth_known": not older,
                "first_minute": whens[0],
                "last_minute": whens[-1],
            }
            found[name] = row
        return found

    def dead_letters(self) -> dict[tuple[str, datetime, str], tuple[int, int | None]]:
        """(messages, bytes) by (queue, minute, reason)."""
        found: dict[tuple[str, datetime, str], list[int]] = defaultdict(list)
        for name, messages in self._of_queue.items():
            for each in messages:
                for at, _, event, more in each.events:
                    if event == "dead_lettered":
                        found[name, minute(at), more["reason"]].append(known_size(each))
        return {key: (len(sizes), sum(sizes) or None) for key, sizes in found.items()}

    def shards(self) -> dict[tuple[int, datetime], dict[str, Any]]:
        """By (shard, minute)."""
        found: dict[tuple[int, datetime], dict[str, Any]] = {}
        names = defaultdict(set)
        for name, messages in self._of_queue.items():
            for each in messages:
                for at, shard, event, _ in each.events:
                    row = found.setdefault((shard, minute(at)), Counter())
                    names[shard, minute(at)].add(name)
                    row["messages_in"] += event == "enqueued"
                    row["bytes_in"] += (event == "enqueued") * each.size
                    row["messages_out"] += event in ENDS
                    row["bytes_out"] += (event in ENDS) * known_size(each)
                    row["delivered"] += event == "delivered"
                    row["messages_moved_in"] += event == "moved"
                    row["bytes_moved_in"] += (event == "moved") * each.size
        return {
            key: {
                name: value or (None if name.startswith("bytes") else 0)
                for name, value in (row | {"queues": len(names[key])}).items()
            }
            for key, row in found.items()
        }


def minute(at: int) -> datetime:
    return (START + timedelta(milliseconds=at)).replace(second=0, microsecond=0)


def known_size(message: Message) -> int:
    """Its bytes, where a row says them."""
    return message.size if {"enqueued", "moved"} & {event for _, _, event, _ in message.events} else 0


def _count(messages: list[Message], when: datetime | None) -> dict[str, Any]:
    """The counts of some messages of a queue in one minute, or in all."""
    row: Counter[str] = Counter()
    names = ("enqueued", *ENDS, "released", "modified", "delivered", "moved", "ended", "redelivered")
    row.update(dict.fromkeys(names, 0))
    sizes: dict[str, list[int]] = {"in": [], "out": []}
    waits: list[int] = []
    people: dict[str, set[str]] = {"producer": set(), "consumer": set()}
    for each in messages:
        deliveries = 0
        for at, _, event, more in each.events:
            deliveries += event == "delivered"
            if when is not None and minute(at) != when:
                continue
            row[event] += 1
            row["ended"] += event in ENDS
            row["redelivered"] += event == "delivered" and deliveries > 1
            if event == "enqueued":
                sizes["in"].append(each.size)
            if event in ENDS:
                if known_size(each):
                    sizes["out"].append(each.size)
                if each.events[0][2] == "enqueued":
                    waits.append(at - each.events[0][0])
            for column, seen in people.items():
                if more.get(column):
                    seen.add(more[column])
    return {
        **row,
        "bytes_in": sum(sizes["in"]) or None,
        "bytes_out": sum(sizes["out"]) or None,
        "waits": len(waits) or None,
        "p50_ms": nearest_rank(waits, 50),
        "p99_ms": nearest_rank(waits, 99),
        "producers": len(people["producer"]),
        "consumers": len(people["consumer"]),
    }
