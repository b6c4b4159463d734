"""Plan of a run: its options, the shares of its processes, and their results.

The address of a broker and a queue in one word: ``amqp://[user:password@]host[:port]/address``.

Progress of a run: a bar on a terminal, else a line per second.
"""

from dataclasses import dataclass, field
from typing import Final, TextIO
from urllib.parse import unquote, urlsplit

from lightrail.bench.arrivals import Arrivals, Ranges
from lightrail.bench.histogram import Histogram
from lightrail.bench.numbered import NumberedSections
from lightrail.console import terminal


@dataclass(frozen=True, slots=True)
class Url:
    """The broker's host and port, the user, and the address of the queue."""

    host: str
    port: int
    user: str | None
    password: str | None
    address: str

    @property
    def shown(self) -> str:
        """Without the password."""
        return f"amqp://{self.host}:{self.port}/{self.address}"


def parse_url(text: str) -> Url:
    """Read a URL; raises ValueError with what was expected and what was found.

    The address is the path without its first slash, so that addresses that begin with one
    (RabbitMQ's ``/queue/NAME``) are written with two.
    """
    parts = urlsplit(text if "//" in text else f"amqp://{text}")
    if parts.scheme != "amqp":
        raise ValueError(f"expected amqp://[user:password@]host[:port]/address, found {text!r}")
    try:
        port = parts.port or 5672
    except ValueError:
        raise ValueError(f"expected a port from 1 to 65535 in {text!r}") from None
    address = unquote(parts.path[1:]) + (f"?{parts.query}" if parts.query else "")
    return Url(
        host=parts.hostname or "127.0.0.1",
        port=port,
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        address=address or "bench",
    )


SLOW_CREDIT: Final = 10
"""Largest credit of a slow receiver, in which messages that the broker sends ahead wait unsettled."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked."""

    url: Url
    senders: int = 1
    receivers: int = 1
    connections: int = 0
    """Per side; 0: one per link."""
    queues: int = 1
    count: int | None = None
    """Messages in all."""
    duration_s: float = 10.0
    """Measured time when no count is given."""
    rate: float | None = None
    """Messages per second in total, without those of slow senders; None: as fast as possible."""
    slow: int = 0
    """Number of slow senders, and of slow receivers: pairs on separate queues."""
    slow_rate: float = 5.0
    """Messages per second of each slow sender."""
    slow_time_s: float = 0.1
    """Time that a slow receiver needs for each message."""
    size: int = 100
    durable: bool = False
    priorities: int = 0
    """Priorities that take turns, so that no order is expected; 0: no priority."""
    message_ids: bool = False
    groups: int = 0
    """Group-ids that take turns; 0: none."""
    numbered_property: tuple[str, int] | None = None
    """Name of an application property, and how many values of it take turns."""
    application: bool = False
    """Messages as applications send them (application.py), with bodies of random sizes."""
    list32: bool = False
    """Whether their sections are encoded as list32."""
    ttl_s: float = 0.0
    """Their time to live in seconds; 0: none."""
    jms: bool = False
    """Whether they have annotations as JMS clients write them."""
    target: str | None = None
    """Where senders send; None: to the address of the URL."""
    selector: str | None = None
    """Of every receiver."""
    requests: bool = False
    """Senders are requesters: each waits for the reply to a message before it sends the next one."""
    pre_settled: bool = False
    credit: int = 1_000
    unsettled_max: int = 0
    """Messages a sender may have unanswered; 0: as many as the broker gives credit for."""
    backlog_max: int = 0
    """Messages that may be sent and not yet received; 0: any number."""
    processes: int = 1
    """Per side."""
    warm_up_s: float = 1.0
    drain_time_s: float = 10.0
    """Time without arrivals after which missing messages count as lost."""
    drain_only: bool = False
    send_only: bool = False
    pids: tuple[int, ...] = ()
    system_calls: bool = False
    json: bool = False
    quiet: bool = False

    def address_of(self, link: int) -> str:
        """The queue of a sender or receiver: each slow pair has its own, the others take turns."""
        if link < self.slow:
            return f"{self.url.address}-slow-{link + 1}"
        if self.queues == 1:
            return self.url.address
        return f"{self.url.address}-{(link - self.slow) % self.queues + 1}"

    def reply_address_of(self, requester: int) -> str:
        """The queue on which a requester waits for replies."""
        return f"{self.url.address}-reply-{requester + 1}"

    def target_of(self, sender: int) -> str:
        """Where a sender sends."""
        return self.address_of(sender) if self.target is None else self.target

    @property
    def numbered(self) -> NumberedSections:
        """The numbered parts of each message."""
        return NumberedSections(
            self.priorities,
            self.message_ids or self.requests,
            self.groups,
            self.numbered_property,
            self.application,
            self.list32,
            int(self.ttl_s * 1000),
            self.jms,
        )

    def count_of(self, sender: int) -> int | None:
        """Messages of one sender; the first ones get the remainder."""
        if self.count is None:
            return None
        whole, rest = divmod(self.count, self.senders)
        return whole + (sender < rest)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one process."""

    options: Options
    worker: int
    """Its index on the board."""
    run: int
    links: tuple[int, ...]
    """Numbers of its senders or receivers."""
    connections: int
    slow: bool = False
    """Whether these links are slow; slow links have processes of their own, so that they delay no others."""


@dataclass(slots=True)
class Sent:
    """Outcomes of the messages of one sender."""

    sent: int
    outcomes: dict[str, Ranges] = field(default_factory=dict)
    """All but accepted, by name; ``unanswered`` for those without an outcome."""


@dataclass(slots=True)
class SenderResult:
    """Of one process."""

    senders: dict[int, Sent]
    """By origin."""
    accepted_after: Histogram
    """From sending to the outcome, measured once per batch."""


@dataclass(slots=True)
class ReceiverResult:
    """Of one process."""

    arrivals: Arrivals
    received: int
    """Messages of this run (of any run when only draining)."""
    foreign: int
    """Messages of others that were in the queue; accepted and left out."""
    latency: Histogram


@dataclass(slots=True)
class RequesterResult(SenderResult):
    """Of one process: requests, and the replies with the times of round trips."""

    replies: ReceiverResult


@dataclass(slots=True)
class ResponderResult(ReceiverResult):
    """Of one process: requests."""

    not_accepted: dict[str, int]
    """Replies by outcome."""


PLAIN_EVERY_S: Final = 1.0


class RunProgress:
    """Rates since the last line, and the part of the run that is done."""

    def __init__(self, options: Options, out: TextIO | None = None) -> None:
        self.options = options
        self._shown = terminal.Progress(out, every_s=PLAIN_EVERY_S, begin_s=0.0)
        self._last_s = 0.0
        self._last = (0, 0)

    def update(self, elapsed_s: float, sent: int, received: int) -> None:
        """Draw if it is due."""
        if self.options.quiet or elapsed_s <= 0 or not self._shown.due(elapsed_s):
            return
        passed = elapsed_s - self._last_s
        rates = [(new - old) / passed for new, old in zip((sent, received), self._last, strict=True)]
        self._last_s, self._last = elapsed_s, (sent, received)
        text = f"{elapsed_s:6.1f} s  sent {rates[0]:>9,.0f}/s  received {rates[1]:>9,.0f}/s"
        self._shown.show(elapsed_s, text, self._part(elapsed_s, sent if self.options.send_only else received))

    def finish(self) -> None:
        """Clear the bar."""
        self._shown.finish()

    def _part(self, elapsed_s: float, counted: int) -> float:
        options = self.options
        if options.count is not None:
            return min(counted / options.count, 1.0) if options.count else 1.0
        if options.drain_only:
            return 0.0
        return min(elapsed_s / (options.warm_up_s + options.duration_s), 1.0)
