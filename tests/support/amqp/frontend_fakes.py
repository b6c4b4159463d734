"""What stands around a link of a frontend: the AMQP link, the connection of the client, the shard."""

from types import SimpleNamespace
from typing import Any

from lightrail.amqp.link import ATTACHED
from lightrail.amqp.unsettled import Unsettled
from lightrail.frontend.client import Client
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.guard import Guard
from lightrail.frontend.hooks import FrontendHooks
from lightrail.frontend.intake import Intake
from lightrail.frontend.outflow import Outflow
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.routers import Routers
from lightrail.telemetry.frontend import FrontendCounts
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import HEADER, HEADER_SIZE, Kind
from tests.support.shard.resolvers import FakeShardConnections


class FakeLink:
    """Remembers what it was told; counts credit as the AMQP engine does."""

    def __init__(self) -> None:
        self.credit = 0
        self.granted: list[int] = []
        self.settled: list[tuple[int, int, Any]] = []
        self.settled_sent: list[tuple[int, int, Any]] = []
        self.sent: list[bytes] = []
        self.pieces = 0
        """Times that something was sent: whole slices, or single messages."""
        self.formats: set[int] = set()
        self.drains = 0
        self.backlog = 0
        self.context: Any = None
        self.session = SimpleNamespace(connection=SimpleNamespace(peer_open=None), outgoing=Unsettled())
        self.rcv_settle_mode = 0
        self.attach: Any = None
        self.state = ATTACHED
        self.peer_max_message_size = 0
        self.passed_over: list[tuple[int, int]] | None = None

    def grant(self, credit: int) -> bool:
        self.credit = credit
        self.granted.append(credit)
        return True

    def settle(self, first: int, last: int, state: Any) -> int:
        assert first <= last
        self.settled.append((first, last, state))
        return last - first + 1

    def let_peer_settle(self) -> None:
        self.peer_settles = True

    def answer(self, first: int, last: int, state: Any) -> int:
        return self.settle(first, last, state)

    def settle_sent(self, first: int, last: int, state: Any) -> int:
        self.settled_sent.append((first, last, state))
        return last - first + 1

    def send(
        self, count: int, ends: Any, blob: bytes, base: int, settled: bool, message_format: int = 0
    ) -> None:
        self.pieces += 1
        start = 0
        for end in ends:
            self.sent.append(bytes(blob[start : end - base]))
            start = end - base
        assert len(ends) == count
        self.formats.add(message_format)

    def send_one(self, payload: bytes, message_format: int = 0, settled: bool = False) -> None:
        self.pieces += 1
        self.sent.append(payload)
        self.formats.add(message_format)

    def drained(self) -> None:
        self.drains += 1


class FakeDirectory:
    """Every name is a queue."""

    def __init__(self, policies: dict[str, dict[str, Any]]) -> None:
        self.policies = policies

    def get(self, name: str) -> Name:
        return Name(name, Policy.parse({"role": "queue", **self.policies.get(name, {})}))


class FakeFrontend:
    def __init__(self) -> None:
        self.policies: dict[str, dict[str, Any]] = {}
        self.directory: FakeDirectory | Directory = FakeDirectory(self.policies)
        self.hooks = FrontendHooks()
        self.counts = FrontendCounts()
        self.settings = Settings()
        self.intake = Intake(self.counts, self.now_ms, self.later, self.settings.shard_wait)
        self.outflow = Outflow(self.later)
        self.shard_connections = FakeShardConnections()
        self.guard: Guard | FakeGuard = FakeGuard()
        self.retiring: dict[str, Any] = {}
        self.cancelled: list[int] = []
        """Indices of calls that were cancelled."""
        self.routers: Routers | None = None
        self.stopping = False
        self.time_ms = 1_000_000
        self.calls: list[tuple[int, Any]] = []
        self.links = 100

    def now_ms(self) -> int:
        return self.time_ms

    def next_link(self) -> int:
        self.links += 1
        return self.links

    def later(self, wait_ms: int, call: Any) -> None:
        self.calls.append((wait_ms, call))

    def timer(self, wait_ms: int, call: Any) -> "FakeTimer":
        self.later(wait_ms, call)
        return FakeTimer(self)

    def poll(self) -> None:
        return


class FakeTimer:
    """The latest timer of a frontend."""

    def __init__(self, frontend: FakeFrontend) -> None:
        self.frontend = frontend
        self.index = len(frontend.calls) - 1

    def cancel(self) -> None:
        self.frontend.cancelled.append(self.index)


class FakeGuard:
    """Grants all rights but those that a test revokes."""

    def __init__(self) -> None:
        self.revoked: dict[str, str] = {}
        """Reasons by name."""

    def check(self, client: Any, right: Any, former: Name) -> Name:
        if former.name in self.revoked:
            raise ConditionError(conditions.UNAUTHORIZED_ACCESS, self.revoked[former.name])
        return former

    def check_hold(self, hold: Any) -> None:
        if hold.is_released:
            self.check(hold.client, hold.right, hold.record)


class FakeConnection:
    """A connection, and its table of links."""

    def __init__(self, frontend: FakeFrontend | None = None) -> None:
        self.frontend = frontend or FakeFrontend()
        self.links = self
        self.client = Client("connection")
        self.is_open = True
        self.paused = False
        self.refusing = False
        self.unanswered_bytes = 0
        self.unsettled_bytes = 0
        self.lent_bytes = 0
        self.room = limits.WRITE_HIGH_WATER
        """As of one whose receivers have used up their windows for a while."""
        self.window_bytes = limits.DELIVERY_WINDOW_BYTES
        self.consumers = 0
        self.starved: dict[Any, None] = {}
        self.reading = True
        self.accepted: list[Any] = []
        self.refused: list[tuple[Any, bool, Refusal]] = []
        self.lost: list[tuple[str, str]] = []
        self.touched = 0
        self.taken = 0
        """Bytes that its socket has taken."""
        self.cuts: list[str] = []
        self.has_read_large = False
        self.holds: dict[Any, Any] = {}

    def hold_of(self, bound: Any) -> Any:
        return self.holds.get(bound)

    def set_room(self, room: int) -> None:
        self.room = room
        self.window_bytes = 2 * room

    def taken_bytes(self) -> int:
        return self.taken

    def cut(self, why: str) -> None:
        self.cuts.append(why)

    def has_too_much_unsettled(self) -> bool:
        return self.unsettled_bytes > limits.CONNECTION_UNSETTLED_BYTES

    def log_refused(self, condition: str, description: str) -> None:
        pass

    def accept_incoming(self, link: Any) -> None:
        self.accepted.append(link)

    accept_outgoing = accept_incoming

    def refuse(self, link: Any, attached: bool, refusal: Refusal) -> None:
        self.refused.append((link, attached, refusal))

    def detach(self, link: Any, condition: str, description: str) -> None:
        self.lost.append((condition, description))

    def touch(self) -> None:
        self.touched += 1

    def hold_reading(self) -> None:
        self.reading = False

    def go_on_accepting(self) -> None:
        self.refusing = False

    def go_on_reading(self) -> None:
        self.reading = True


class Said:
    """A frame that a link posted to its shard."""

    def __init__(self, part: bytes) -> None:
        fields = HEADER.unpack_from(part)
        code, self.flags, self.asked, self.epoch, self.link, self.count, self.number = fields
        self.kind = Kind(code)
        self.body = part[HEADER_SIZE:]
        self.part = part

    def __repr__(self) -> str:
        return f"{self.kind.name}({self.number}, count {self.count}, flags {self.flags})"


class FakeShard:
    """The side of an owner or of a ShardPeer that links see."""

    def __init__(self, shard: int = 0) -> None:
        self.shard = shard
        self.epoch = 3
        self.resuming = False
        self.said: list[Said] = []
        self.opened: dict[int, Any] = {}
        self.closed: list[tuple[str, int]] = []
        self.endings: list[int] = []
        """Flags with which consumers were closed."""
        self.serving = True
        self.late: list[tuple[str, dict[str, Any]]] = []
        """Requests that wait for the shard."""
        self.replaced: Any = None
        """The latest object that took the place of a consumer."""

    def resumes(self, number: int) -> bool:
        return self.resuming

    def post(self, part: bytes) -> None:
        if self.serving:
            self.said.append(Said(part))

    @property
    def is_there(self) -> bool:
        return self.serving

    def ask_late(self, operation: str, fields: dict[str, Any]) -> None:
        self.late.append((operation, fields))

    def open_producer(self, producer: Any) -> None:
        self.opened[producer.number] = producer
        if self.serving:
            producer.reopen()

    def close_producer(self, number: int) -> None:
        self.opened.pop(number, None)
        self.closed.append(("producer", number))

    def replace_consumer(self, consumer: Any) -> None:
        self.replaced = consumer

    def close_consumer(self, number: int, flags: int) -> None:
        self.closed.append(("consumer", number))
        self.endings.append(flags)

    def take(self, *kinds: Kind) -> list[Said]:
        """What was said since the last time."""
        said, self.said = self.said, []
        return [each for each in said if not kinds or each.kind in kinds]
