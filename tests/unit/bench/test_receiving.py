"""lightrail.bench.receiving: one message at a time, as long as it takes, and once it is whole."""

from typing import Any

import pytest

from lightrail.bench import receiving
from lightrail.bench.arrivals import Arrivals
from lightrail.bench.histogram import Histogram
from lightrail.bench.message import STAMP, build, origin_of
from lightrail.bench.options import parse_options
from lightrail.bench.plan import SLOW_CREDIT, Share
from lightrail.bench.receiving import SlowReceiver

RUN = 5
TIME_NS = 1_000


class Engine:
    """What a link of the engine holds: the first of ``messages`` is at hand; ``partial`` when it is cut."""

    PN_EOS = -1

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.partial = False
        self.receiver: Any = None
        self.credit = 0
        self._read = False

    def put(self, sequence: int, sent_ns: int) -> None:
        template = build(100, False)
        STAMP.pack_into(template.buffer, template.stamp_at, origin_of(RUN, 0), sequence, sent_ns)
        self.messages.append(bytes(template.buffer))

    def pn_link_current(self, link: Any) -> bool:
        return bool(self.messages)

    def pn_delivery_partial(self, handle: Any) -> bool:
        return self.partial

    def pn_link_recv(self, link: Any, start: Any, capacity: int) -> int:
        if self._read:
            return self.PN_EOS
        self._read = True
        self.receiver.buffer[: len(self.messages[0])] = self.messages[0]
        return len(self.messages[0])

    def pn_delivery_update(self, handle: Any, state: int) -> None:
        """Accepted."""

    def pn_delivery_settle(self, handle: Any) -> None:
        self._read = False
        del self.messages[0]

    def pn_link_flow(self, link: Any, credit: int) -> None:
        self.credit += credit


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    for module in (receiving, receiving):
        monkeypatch.setattr(module, "lib", engine)
    options = parse_options(["--slow", "1", "--senders", "2", "--receivers", "2", "--slow-time", "1ms"])
    nothing: Any = None
    share = Share(options, 0, RUN, (0,), 1, slow=True)
    engine.receiver = SlowReceiver(nothing, nothing, share, Arrivals(), Histogram())
    engine.receiver.time_ns = TIME_NS
    return engine


def test_messages_are_taken_one_by_one_when_their_time_is_over(engine: Engine) -> None:
    receiver = engine.receiver
    assert receiver.take(100, 0) == 0
    engine.put(0, 50)
    engine.put(1, 60)
    assert [receiver.take(now_ns, 1) for now_ns in (200, 1_199, 1_200, 1_201, 2_199, 2_200)] == [
        *(0, 0, 1, 0, 0, 1)
    ]
    assert (receiver.received, receiver.done_ns, engine.messages) == (2, 0, [])
    assert (receiver.histogram.count, receiver.histogram.min_ns) == (2, 150)
    assert receiver.arrivals.missing(origin_of(RUN, 0), 2) == []


def test_work_begins_with_the_last_octet_of_a_message(engine: Engine) -> None:
    receiver = engine.receiver
    engine.put(0, 50)
    engine.partial = True
    assert (receiver.take(200, 0), receiver.done_ns) == (0, 0)
    engine.partial = False
    assert (receiver.take(500, 0), receiver.done_ns) == (0, 500 + TIME_NS)


def test_little_credit_is_given_and_given_back_in_halves(engine: Engine) -> None:
    receiver = engine.receiver
    receiver.open_credit()
    assert engine.credit == SLOW_CREDIT
    for sequence in range(5):
        engine.put(sequence, 50)
    given = []
    for now_ns in range(0, 6 * TIME_NS, TIME_NS):
        receiver.take(now_ns, 0)
        given.append(engine.credit)
    assert given == [10, 10, 10, 10, 10, 15]
