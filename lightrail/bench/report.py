"""The results of a run: as a page for people, as a value for machines."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lightrail.bench.application import SIZES
from lightrail.bench.histogram import Histogram
from lightrail.bench.plan import Options
from lightrail.bench.run import RunResult

PERCENTS: Final = (50.0, 90.0, 99.0, 99.9)
UNEVEN: Final = 0.1
"""Part of the received messages by which sent and received may differ before a note says so."""


def as_value(options: Options, outcome: RunResult) -> dict[str, Any]:
    """For --json: rates in messages per second, times in µs, CPU in µs per message."""
    window = outcome.window
    sent, received = window.sent + window.slow_sent, window.received + window.slow_received
    counted = received or sent
    value: dict[str, Any] = {
        "url": options.url.shown,
        "senders": 0 if options.drain_only else options.senders,
        "receivers": 0 if options.send_only else options.receivers,
        "queues": options.queues,
        "size": None if options.application else options.size,
        "application": options.application,
        "list32": options.list32,
        "ttl_s": options.ttl_s,
        "jms": options.jms,
        "durable": options.durable,
        "pre_settled": options.pre_settled,
        "credit": options.credit,
        "rate": options.rate,
        "requests": options.requests,
        "slow": options.slow,
        "measured_s": round(window.elapsed_s, 4),
        "measured_messages": counted,
        "sent_per_s": _per_s(window.sent, window.elapsed_s),
        "received_per_s": _per_s(0 if options.send_only else window.received, window.elapsed_s),
        "sent": outcome.sent,
        "accepted": outcome.accepted,
        "not_accepted": outcome.not_accepted,
        "received": outcome.received,
        "foreign": outcome.foreign,
        "lost": outcome.lost,
        "duplicates": outcome.arrivals.duplicates,
        "out_of_order": outcome.arrivals.disordered,
        "misdirected": outcome.arrivals.misdirected,
        "redelivered": outcome.arrivals.redelivered,
        "redelivered_duplicates": outcome.arrivals.redelivered_duplicates,
        "faults": outcome.lost_examples + outcome.arrivals.examples,
        "latency_us": _times(outcome.latency),
        "accepted_after_us": _times(outcome.accepted_after),
        "sender_cpu_us": _each(window.senders_cpu_s, sent),
        "receiver_cpu_us": _each(window.receivers_cpu_s, 0 if options.send_only else received),
        "interrupted": outcome.interrupted,
    }
    if options.requests:
        value["replies_not_accepted"] = outcome.replies_not_accepted
    if options.slow:
        value["slow_received_per_s"] = _per_s(window.slow_received, window.elapsed_s)
        value["slow_latency_us"] = _times(outcome.slow_latency)
    if window.server is not None:
        value["server_cpu_us"] = _each(window.server.total_s, counted)
        value["server_switches"] = _per(window.switches, counted)
        if window.system_calls is not None:
            value["server_system_calls"] = _per(window.system_calls, counted)
        value["server_processes"] = [
            {"pid": pid, "name": name, "cpu_us": _each(spent, counted)}
            for pid, name, spent in window.server.processes
        ]
    return value


def _kind_of_message(options: Options) -> str:
    if not options.application:
        return f"{options.size} bytes"
    traits = " as list32" if options.list32 else ""
    traits += f" with a ttl of {options.ttl_s:g} s" if options.ttl_s else ""
    traits += " and annotations of JMS" if options.jms else ""
    return f"messages of applications{traits}, {SIZES[0]} to {SIZES[1]} bytes"


def _nouns(options: Options) -> tuple[str, str, str]:
    """The nouns for a counted unit, a sender and a receiver."""
    if options.requests:
        return "round trip", "requester", "responder"
    return "message", "sender", "receiver"


def as_text(options: Options, outcome: RunResult) -> str:
    """The page."""
    value = as_value(options, outcome)
    lines = [*_load(options, value), *_latencies(options, outcome, value)]
    if "server_cpu_us" in value:
        lines += _server(_nouns(options)[0], value)
    lines += [*_checks(options, outcome, value), *_notes(outcome)]
    return "\n".join(lines)


def _load(options: Options, value: Mapping[str, Any]) -> Iterable[str]:
    """The options and the rates."""
    message, sending, receiving = _nouns(options)
    traits = [
        _kind_of_message(options),
        "durable" if options.durable else "transient",
        "pre-settled" if options.pre_settled else "unsettled",
        f"{options.rate:g} messages/s asked for" if options.rate else "as fast as possible",
    ]
    queues = f"{options.queues} queues" if options.queues > 1 else "1 queue"
    yield f"broker       {value['url']}, {queues}"
    yield (
        f"load         {value['senders']} {sending}s, {value['receivers']} {receiving}s, {', '.join(traits)}"
    )
    yield f"measured     {value['measured_s']:.2f} s, {value['measured_messages']:,} {message}s"
    yield f"rate         sent {value['sent_per_s']:,.0f}/s, received {value['received_per_s']:,.0f}/s"


def _latencies(options: Options, outcome: RunResult, value: Mapping[str, Any]) -> Iterable[str]:
    if outcome.latency.count:
        yield f"{'round trip  ' if options.requests else 'latency     '} {_spell(value['latency_us'])}"
    if outcome.accepted_after.count:
        yield f"accepted in  {_spell(value['accepted_after_us'])}"
    if options.slow:
        waits = f", latency {_spell(value['slow_latency_us'])}" if outcome.slow_latency.count else ""
        yield (
            f"slow         {options.slow} of the senders and of the receivers, left out of the lines above: "
            f"received {value['slow_received_per_s']:,.0f}/s{waits}"
        )


def _server(message: str, value: Mapping[str, Any]) -> Iterable[str]:
    """CPU time and kernel work of the server's processes."""
    each = ", ".join(
        f"{process['name']} ({process['pid']}) {process['cpu_us']:.2f}"
        for process in value["server_processes"]
        if process["cpu_us"] >= 0.005
    )
    yield f"CPU server   {value['server_cpu_us']:.2f} µs per {message}: {each}"
    calls = value.get("server_system_calls")
    called = "" if calls is None else f", {calls:.2f} system calls"
    switched = f"{value['server_switches']:.2f} voluntary context switches"
    yield f"kernel       {switched}{called} per {message}"


def _checks(options: Options, outcome: RunResult, value: Mapping[str, Any]) -> Iterable[str]:
    """CPU time of the load generator, all counts, and what the checks found."""
    message, sending, receiving = _nouns(options)
    yield (
        f"CPU bench    {sending}s {value['sender_cpu_us']:.2f}, {receiving}s {value['receiver_cpu_us']:.2f} "
        f"µs per {message}"
    )
    others = "".join(f", {name} {number:,}" for name, number in outcome.not_accepted.items())
    yield (
        f"in all       sent {outcome.sent:,}, accepted {outcome.accepted:,}{others}, "
        f"received {outcome.received:,}" + (f", of others {outcome.foreign:,}" if outcome.foreign else "")
    )
    yield (
        f"checks       lost {outcome.lost:,}, duplicates {outcome.arrivals.duplicates:,}, "
        f"out of order {outcome.arrivals.disordered:,}, redelivered {outcome.arrivals.redelivered:,} "
        f"({outcome.arrivals.redelivered_duplicates:,} of them again)"
    )
    if options.requests:
        replies = "".join(f", {name} {number:,}" for name, number in outcome.replies_not_accepted.items())
        yield f"replies      misdirected {outcome.arrivals.misdirected:,}{replies}"
    yield from (f"             {fault}" for fault in value["faults"])


def _notes(outcome: RunResult) -> Iterable[str]:
    """Reservations about the figures."""
    window = outcome.window
    growth = window.sent - window.received
    if window.received and window.sent and abs(growth) > UNEVEN * window.received:
        way = "in than out" if growth > 0 else "out than in"
        yield (
            f"note         {abs(growth):,} more messages went {way}, "
            "and CPU is per message received; --backlog keeps them even"
        )
    if outcome.interrupted:
        yield "             interrupted; the figures are of the part that was done"


def _times(histogram: Histogram) -> dict[str, float] | None:
    if not histogram.count:
        return None
    times = {f"p{p:g}": round(ns / 1e3, 1) for p, ns in histogram.percentiles(PERCENTS).items()}
    return times | {"max": round(histogram.max_ns / 1e3, 1), "mean": round(histogram.mean_ns / 1e3, 1)}


def _spell(times: dict[str, float]) -> str:
    return ", ".join(f"{name} {value / 1e3:,.3f}" for name, value in times.items()) + " ms"


def _per_s(messages: int, elapsed_s: float) -> float:
    return round(messages / elapsed_s, 1) if elapsed_s else 0.0


def _per(events: int, messages: int) -> float:
    return round(events / messages, 4) if messages else 0.0


def _each(seconds: float, messages: int) -> float:
    return round(seconds / messages * 1e6, 4) if messages else 0.0
