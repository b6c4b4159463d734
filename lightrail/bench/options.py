"""The command line of ``lightrail bench``; every refusal names the option, the value and what is allowed."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from lightrail.bench.application import SIZES
from lightrail.bench.message import SIZE_MAX, SIZE_MIN
from lightrail.bench.numbered import COUNT_MAX, NAME_MAX, PRIORITIES_MAX
from lightrail.bench.plan import SLOW_CREDIT, Options, parse_url
from lightrail.model import setting_values

_T = TypeVar("_T")
LINKS_MAX: Final = 1_000_000
CREDIT_MAX: Final = 1 << 30
DAY_MS: Final = 24 * 3_600_000
PASSWORD_BYTES_MAX: Final = 1_025
"""Bytes that are read from a password file: the longest password of a LightRail broker, and its line end."""

EXAMPLES: Final = """\
examples:
  lightrail bench
      one sender, one receiver, ten seconds, as fast as it goes, on amqp://127.0.0.1/bench
  lightrail bench --durable --rate 500 --duration 30s
      the latency of durable messages at a rate that does not strain the broker
  lightrail bench --senders 50 --receivers 50 --queues 50 --pids 4711
      50 pairs on the queues bench-1 to bench-50; CPU time of process 4711 and its children per message
  lightrail bench --requests --senders 20 --receivers 4 --durable --pids 4711
      20 requesters and 4 responders: round trips per second, their latency, CPU time per round trip
  lightrail bench --senders 100 --receivers 100 --slow 98 --queues 2 --backlog 20000 --pids 4711
      two pairs at full speed beside 98 slow ones: 200 connections, most of which have little to do
  lightrail bench --durable --application --list32
      what applications send, encoded as rhea and go-amqp do
  lightrail bench --send-only --count 1000000 && lightrail bench --drain-only --count 1000000
      fill a queue, then empty it and check what comes
  lightrail bench --target prices --property colour=100 --url amqp://127.0.0.1/red
      send to the router prices, with colours 00 to 99, and receive from its queue red
  lightrail bench --url amqp://guest:guest@127.0.0.1:5672//queue/bench --json
      RabbitMQ, whose addresses begin with a slash: hence two of them

exit status: 0; 1 when messages were lost, duplicated or out of order, or replies went to the wrong requester;
2 when the run could not be made
"""


def parse_options(argv: Sequence[str]) -> Options:
    """Read the command line; leaves by SystemExit(2) with a clear line when it is wrong."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.senders < 1 or given.receivers < 1:
        parser.error("--senders and --receivers are at least 1; see --send-only and --drain-only")
    if given.send_only and given.drain_only:
        parser.error("--send-only and --drain-only exclude each other")
    if given.drain_only and given.rate is not None:
        parser.error("--rate is for sending; --drain-only does not send")
    _check_requests(parser, given)
    _check_slow(parser, given)
    receivers = given.receivers - given.slow
    if given.queues > receivers and not given.send_only:
        parser.error(
            f"--queues {given.queues} needs as many receivers, found {receivers}"
            f"{' that are not slow' if given.slow else ''}: a queue without one is never read"
        )
    if given.target is not None and given.drain_only:
        parser.error("--target is for sending; --drain-only does not send")
    if given.pre_settled and given.unsettled_max:
        parser.error("--pre-settled messages have no outcome that --unsettled could wait for")
    for name in "list32", "jms", "ttl_s":
        if getattr(given, name) and not given.application:
            parser.error(f"--{name.removesuffix('_s')} is for messages of --application")
    if given.application and (given.message_ids or given.groups or given.numbered_property):
        parser.error("--application messages have properties of their own, besides --priorities")
    user, password_file = given.user, given.password_file
    if given.system_calls and not given.pids:
        parser.error("--system-calls counts those of the processes of --pids, found none")
    if (user is None) != (password_file is None):
        parser.error("--user and --password-file go together")
    if user is not None:
        try:
            given.url = replace(given.url, user=user, password=_first_line(password_file))
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"--password-file {password_file}: expected a file that can be read, found: {error}")
    del given.user, given.password_file
    return Options(**vars(given))


def _check_requests(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Refuses options that contradict --requests."""
    if not given.requests:
        return
    if given.application:
        parser.error("--requests have properties of their own, as --application messages do: choose one")
    for name in "send_only", "drain_only", "slow", "backlog_max", "unsettled_max":
        if getattr(given, name):
            option = name.removesuffix("_max").replace("_", "-")
            parser.error(f"--requests are answered one by one for each requester: not with --{option}")


def _check_slow(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Refuses options that contradict --slow, or need it."""
    if not given.slow:
        for name, option in ("slow_rate", "--slow-rate"), ("slow_time_s", "--slow-time"):
            if getattr(given, name) is not None:
                parser.error(f"{option} is for the links of --slow, found none")
            delattr(given, name)
        return
    if given.slow >= min(given.senders, given.receivers):
        parser.error(
            f"--slow {given.slow} needs more senders and more receivers than that, found {given.senders} and "
            f"{given.receivers}: those that are not slow are measured"
        )
    for option in "count", "send-only", "drain-only", "target":
        if getattr(given, option.replace("-", "_")):
            parser.error(f"--slow senders and receivers are pairs that work for a time: not with --{option}")
    for name in "slow_rate", "slow_time_s":
        if getattr(given, name) is None:
            delattr(given, name)


# fmt: off
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrail bench",
        description="Load an AMQP 1.0 broker, measure it, and check for loss, duplicates and order.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--url", type=_read(parse_url), default=parse_url("amqp://127.0.0.1/bench"), metavar="URL",
        help="amqp://[user:password@]host[:port]/address (default amqp://127.0.0.1:5672/bench)")
    add("--user", metavar="NAME", help="user to log in as, instead of a user in the URL")
    add("--password-file", metavar="FILE",
        help="its first line is the password, which in a URL would be visible in the process list")
    _add_load(parser.add_argument_group("load").add_argument)
    _add_messages(parser.add_argument_group("messages").add_argument)
    _add_results(parser.add_argument_group("what to do and to show").add_argument)
    return parser


def _add_load(add: Callable[..., object]) -> None:
    add("--senders", type=_whole(0, LINKS_MAX), default=1, metavar="N", help="sending links (default 1)")
    add("--receivers", type=_whole(0, LINKS_MAX), default=1, metavar="N", help="receiving links (default 1)")
    add("--queues", type=_whole(1, LINKS_MAX), default=1, metavar="N",
        help="spread the links over ADDRESS-1 to ADDRESS-N (default 1: ADDRESS itself)")
    add("--connections", type=_whole(0, LINKS_MAX), default=0, metavar="N",
        help="connections of each side that the links share (default: one per link)")
    add("--processes", type=_whole(1, 1024), default=1, metavar="N",
        help="processes of each side (default 1)")
    add("--count", type=_whole(1, 1 << 40), metavar="N", help="messages in all, instead of --duration")
    add("--duration", dest="duration_s", type=_seconds(1, DAY_MS), default=10.0, metavar="TIME",
        help="measured time, such as 10s (default)")
    add("--warm-up", dest="warm_up_s", type=_seconds(0, DAY_MS), default=1.0, metavar="TIME",
        help="time before that does not count; with --count a tenth of the messages at most (default 1s)")
    add("--rate", type=_rate, metavar="N",
        help="messages per second in all, slow senders left out (default: as fast as possible)")
    add("--requests", action="store_true",
        help="the senders are requesters, each of which waits for the reply to a message before it sends the "
        "next one; the receivers reply, to the queues ADDRESS-reply-1 to ADDRESS-reply-N of N requesters")
    add("--slow", type=_whole(0, LINKS_MAX), default=0, metavar="N",
        help="N of the senders and N of the receivers are slow, in pairs on queues ADDRESS-slow-1 to "
        f"ADDRESS-slow-N, with a credit of {SLOW_CREDIT} at most; shown are the others (default 0)")
    add("--slow-rate", type=_rate, metavar="N", help="messages per second of each slow sender (default 5)")
    add("--slow-time", dest="slow_time_s", type=_seconds(1, DAY_MS), metavar="TIME",
        help="time that a slow receiver needs for each message before it accepts it (default 100ms)")
    add("--backlog", dest="backlog_max", type=_whole(0, 1 << 40), default=0, metavar="N",
        help="senders wait while N messages are sent and not received (default 0: they do not)")
    add("--unsettled", dest="unsettled_max", type=_whole(0, 1 << 30), default=0, metavar="N",
        help="messages a sender may have unanswered (default 0: as many as the broker's credit)")


def _add_messages(add: Callable[..., object]) -> None:
    add("--size", type=_whole(SIZE_MIN, SIZE_MAX), default=100, metavar="BYTES",
        help=f"of the body, {SIZE_MIN} or more (default 100)")
    add("--durable", action="store_true", help="send durable messages")
    add("--pre-settled", action="store_true", help="at most once: no outcomes, in both directions")
    add("--credit", type=_whole(1, CREDIT_MAX), default=1_000, metavar="N",
        help="messages a receiver lets the broker send ahead (default 1000)")
    add("--priorities", type=_whole(0, PRIORITIES_MAX), default=0, metavar="N",
        help="priorities 0 to N-1 in turn; no order is expected then (default 0: no priority)")
    add("--message-ids", action="store_true", help="a unique message-id for each")
    add("--groups", type=_whole(0, COUNT_MAX), default=0, metavar="N",
        help="a group-id for each, N of them in turn (default 0: none)")
    add("--property", dest="numbered_property", type=_read(_property), metavar="NAME=N",
        help="an application property: a text, the numbers 0 to N-1 in turn, all with as many digits")
    add("--application", action="store_true",
        help="messages as applications send them: message-id, subject, content-type, creation-time, two "
        f"application properties, a body of {SIZES[0]} to {SIZES[1]} bytes at random")
    add("--list32", action="store_true",
        help="with --application: lists of the message encoded with four octets of size, as many clients do")
    add("--ttl", dest="ttl_s", type=_seconds(1, DAY_MS), default=0.0, metavar="TIME",
        help="with --application: a header with the time to live of each, such as 1h")
    add("--jms", action="store_true",
        help="with --application: annotations as JMS clients write them, and with --ttl the time at which "
        "each message expires")
    add("--selector", metavar="TEXT", help="receive with this JMS selector, which must select all messages")
    add("--target", metavar="ADDRESS",
        help="send there, such as to a router whose queue is received from (default: the address of --url)")


def _add_results(add: Callable[..., object]) -> None:
    add("--send-only", action="store_true", help="leave the messages in the queue")
    add("--drain-only", action="store_true",
        help="receive the messages in the queue, until --count or until nothing arrives for --drain-time")
    add("--drain-time", dest="drain_time_s", type=_seconds(1, DAY_MS), default=10.0, metavar="TIME",
        help="time without arrivals after which missing messages count as lost (default 10s)")
    add("--pids", type=_read(_pids), default=(), metavar="PID,...",
        help="report CPU time and context switches of these processes and all their descendants per message")
    add("--system-calls", action="store_true",
        help="with --pids: report their system calls, too; needs root, and costs CPU time in the kernel")
    add("--json", action="store_true", help="the results as one line of JSON")
    add("--quiet", action="store_true", help="no progress")
# fmt: on


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline(PASSWORD_BYTES_MAX).rstrip("\r\n")


def _read(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Make argparse show the text of the ValueError of ``parse``."""

    def read(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        plain = text.replace("_", "").replace(",", "")
        if not plain.isascii() or not plain.isdigit() or not low <= int(plain) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}, found {text!r}")
        return int(plain)

    return _read(parse)


def _seconds(low_ms: int, high_ms: int) -> Callable[[str], float]:
    parse = setting_values.duration_ms(low_ms, high_ms)
    return _read(lambda text: parse(text) / 1000)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.001 <= rate <= 1e9:
        raise argparse.ArgumentTypeError(f"expected messages per second, above 0, found {text!r}")
    return rate


def _property(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition("=")
    expected = f"expected NAME=N, a name of up to {NAME_MAX} bytes and a number from 1 to {COUNT_MAX}"
    if not 0 < len(name.encode()) <= NAME_MAX or not count.isascii() or not count.isdigit():
        raise ValueError(f"{expected}, found {text!r}")
    if not 1 <= int(count) <= COUNT_MAX:
        raise ValueError(f"{expected}, found {text!r}")
    return name, int(count)


def _pids(text: str) -> tuple[int, ...]:
    pids = []
    for word in text.split(","):
        if not word.strip().isdigit() or not os.path.exists(f"/proc/{int(word)}"):
            raise ValueError(f"expected ids of running processes, found {word!r}")
        pids.append(int(word))
    return tuple(pids)
