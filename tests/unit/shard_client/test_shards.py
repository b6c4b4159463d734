"""ShardPeer: greetings, what is said again, what is dropped, and errors that stay with their link."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from lightrail.model import conditions, limits
from lightrail.shard_client.deadlines import ANSWER_MS, within
from lightrail.shard_client.links import MissingDeliveriesError
from lightrail.shard_client.peers import requests
from lightrail.shard_client.peers.requests import LateError, ShardDownError
from lightrail.shard_client.peers.shards import (
    CONNECTING_MS,
    GREETING_MS,
    GREETING_MS_MAX,
    ConnectionState,
    ShardPeer,
)
from lightrail.wire.bodies import Hello, Refusal, Welcome, encode_request
from lightrail.wire.frames import DUE, TIMED, VERSION, Kind, deliver, frame
from lightrail.wire.sockets.wiring import Wiring
from lightrail.wire.sockets.zmtp import ready
from tests.support import zmtp
from tests.support.amqp.frontend_fakes import Said
from tests.support.now import now
from tests.support.shard.wires import wiring_of


class FakeSocket:
    """Takes the place of a socket: what was sent, and whether anybody is there."""

    def __init__(self, address: str, receive: Any, after: Any, *, copies: bool, **_: Any) -> None:
        self.copies = copies
        self.receive = receive
        self.after = after
        self.there = True
        self.sent: list[list[Said]] = []
        self.closed = False

    def send(self, parts: Sequence[bytes]) -> bool:
        if self.there:
            self.sent.append([Said(part) for part in parts])
        return self.there

    def close(self, linger_ms: int = 0) -> None:
        self.closed = True


class FakeLoop:
    """Timers that ring when the test says."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Any]] = []

    def call_later(self, wait_s: float, call: Any) -> Any:
        entry = (wait_s, call)
        self.timers.append(entry)
        loop = self

        class Handle:
            def cancel(self) -> None:
                if entry in loop.timers:
                    loop.timers.remove(entry)

        return Handle()

    def ring(self) -> float:
        ((wait_s, call),) = self.timers
        self.timers.clear()
        call()
        return wait_s


class FakeLinkEnd:
    """A producer or consumer that writes down what it is told."""

    def __init__(self, number: int, peer: ShardPeer) -> None:
        self.number = number
        self.peer = peer
        self.told: list[Any] = []
        self.fails = False
        self.misses = False

    def reopen(self) -> None:
        self.told.append("say all")
        self.peer.post(frame(Kind.PRODUCER_OPEN, link=self.number))

    def ready(self) -> None:
        self.told.append("ready")

    def deliver(self, part: bytes, number: int, count: int) -> None:
        if self.fails:
            raise ValueError("a mistake")
        if self.misses:
            raise MissingDeliveriesError(f"found {number}")
        self.told.append(("deliver", number, count))

    def drained(self, number: int) -> None:
        self.told.append(("drained", number))

    def answered(self, number: int, count: int) -> None:
        self.told.append(("answered", number, count))

    def refused(self, number: int, refusal: Refusal) -> None:
        self.told.append(("refused", number, refusal.condition))

    def ended(self, refusal: Refusal) -> None:
        self.told.append(("ended", refusal.condition))


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = FakeLoop()
        self.now_ms = 1_000_000
        self.flushes = 0
        self.peer = ShardPeer(
            self.loop,  # type: ignore[arg-type]
            wiring_of(FakeSocket),
            shard=0,
            address="inproc://nowhere",
            frontend="frontend-0",
            boot=7,
            now_ms=lambda: self.now_ms,
            schedule_flush=self.schedule_flush,
            flush=self.schedule_flush,
        )
        self.socket: FakeSocket = self.peer._socket  # type: ignore[assignment]

    def schedule_flush(self) -> None:
        self.flushes += 1

    def attempts(self) -> list[int]:
        """Of the Hellos since the last time."""
        sent, self.socket.sent = self.socket.sent, []
        return [
            Hello.decode(said.body).attempt for parts in sent for said in parts if said.kind == Kind.HELLO
        ]

    def hellos(self) -> list[int]:
        """Versions of the Hellos since the last time."""
        sent, self.socket.sent = self.socket.sent, []
        return [
            Hello.decode(said.body).version for parts in sent for said in parts if said.kind == Kind.HELLO
        ]

    def kinds(self) -> list[list[Kind]]:
        """Of the messages since the last time."""
        self.peer.flush()
        sent, self.socket.sent = self.socket.sent, []
        return [[said.kind for said in parts if said.kind != Kind.COUNT] for parts in sent]

    def hear(self, *parts: bytes) -> None:
        self.socket.receive(list(parts))

    def welcome(self, attempt: int, *, boot: int = 42, version: int = VERSION) -> None:
        self.hear(frame(Kind.WELCOME, body=Welcome(version, 0, boot, attempt).encode()))

    def serving(self) -> "Rig":
        self.welcome(1)
        assert self.peer.state is ConnectionState.SERVING
        self.kinds()
        return self

    def producer(self, number: int) -> FakeLinkEnd:
        end = FakeLinkEnd(number, self.peer)
        self.peer.open_producer(end)  # type: ignore[arg-type]
        return end

    def consumer(self, number: int) -> FakeLinkEnd:
        end = FakeLinkEnd(number, self.peer)
        self.peer.open_consumer(end)  # type: ignore[arg-type]
        return end


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


# --- greeting ------------------------------------------------------------------------------------------


def test_it_greets_until_the_latest_greeting_is_answered(rig: Rig) -> None:
    assert rig.attempts() == [1]
    rig.loop.ring()
    assert rig.attempts() == [2]
    rig.welcome(1)
    assert now(rig.peer.state) is ConnectionState.GREETING
    rig.welcome(2)
    assert rig.peer.state is ConnectionState.SERVING
    assert rig.peer.greetings == 1
    rig.welcome(2)
    assert rig.peer.greetings == 1


def test_a_shard_that_is_away_is_greeted_often_and_one_that_is_slow_more_and_more_slowly(rig: Rig) -> None:
    waits = [round(rig.loop.ring() * 1_000) for _ in range(8)]
    assert waits == [GREETING_MS << number if number < 6 else GREETING_MS_MAX for number in range(8)]
    rig.socket.there = False
    rig.loop.ring()
    waits = [round(rig.loop.ring() * 1_000) for _ in range(8)]
    # A new connection takes a moment; one to a shard that is away takes longer.
    assert waits == [min(CONNECTING_MS << number, GREETING_MS) for number in range(8)]


def test_a_slow_shard_is_greeted_in_the_end(rig: Rig) -> None:
    """Each answer takes 350 ms: at a fixed pace it would always be one to an older greeting."""
    elapsed = 0.0
    due: list[tuple[float, int]] = [(350.0, 1)]
    rig.attempts()
    for _ in range(20):
        elapsed += rig.loop.ring() * 1_000
        due += [(elapsed + 350, attempt) for attempt in rig.attempts()]
        next_beat = elapsed + rig.loop.timers[0][0] * 1_000
        for when, attempt in list(due):
            if when < next_beat:
                due.remove((when, attempt))
                rig.welcome(attempt)
        if rig.peer.state is ConnectionState.SERVING:
            return
    pytest.fail("never welcomed")


def test_another_version_is_not_served(rig: Rig) -> None:
    rig.welcome(1, version=VERSION + 1)
    assert rig.peer.state is ConnectionState.GREETING


def test_a_shard_of_the_version_before_is_greeted_again_in_its_version(rig: Rig) -> None:
    assert rig.hellos() == [VERSION]
    rig.welcome(1, version=VERSION - 1)
    assert rig.peer.state is ConnectionState.GREETING
    assert rig.hellos() == [VERSION - 1]
    rig.welcome(2, version=VERSION - 1)
    assert (rig.peer.state, rig.peer.version) == (ConnectionState.SERVING, VERSION - 1)
    # The shard may have been upgraded when it is back.
    rig.peer.greet_again("it was lost")
    assert rig.hellos() == [VERSION]


def test_what_was_posted_before_the_welcome_is_dropped_and_said_after_it(rig: Rig) -> None:
    producer = rig.producer(1)
    consumer = rig.consumer(2)
    rig.peer.post(frame(Kind.PING))
    assert rig.kinds() == [[Kind.HELLO]]
    rig.hear(frame(Kind.ACCEPTED, link=1, number=1, count=1))
    assert producer.told == []
    rig.welcome(1)
    assert producer.told == consumer.told == ["say all"]
    assert rig.flushes > 0
    assert rig.kinds() == [[Kind.PRODUCER_OPEN, Kind.PRODUCER_OPEN]]


# --- heartbeats ----------------------------------------------------------------------------------------


def test_a_ping_every_second(rig: Rig) -> None:
    rig.serving()
    rig.loop.ring()
    assert round(rig.loop.ring() * 1_000) == limits.HEARTBEAT_MS
    assert rig.kinds() == [[Kind.PING], [Kind.PING]]
    rig.hear(frame(Kind.PONG, number=42))
    assert rig.peer.state is ConnectionState.SERVING


def test_each_message_says_its_number(rig: Rig) -> None:
    rig.serving()
    rig.loop.ring()
    rig.peer.post(frame(Kind.CREDIT, link=1))
    rig.peer.flush()
    rig.loop.ring()
    sent = [(parts[0].kind, parts[0].number, parts[1].kind) for parts in rig.socket.sent if len(parts) > 1]
    assert sent == [
        (Kind.COUNT, 1, Kind.PING),
        (Kind.COUNT, 2, Kind.CREDIT),
        (Kind.COUNT, 3, Kind.PING),
    ]


def test_a_shard_of_whose_messages_some_got_lost_is_greeted_anew(rig: Rig) -> None:
    rig.serving()
    rig.hear(frame(Kind.ACCEPTED, link=1, number=1, count=1))
    # The welcome, the answer, and then this one.
    rig.hear(frame(Kind.PONG, number=42, count=2))
    assert now(rig.peer.state) is ConnectionState.SERVING
    rig.hear(frame(Kind.PONG, number=42, count=9))
    assert rig.peer.state is ConnectionState.GREETING


def test_large_frames_of_the_shard_come_as_views(rig: Rig) -> None:
    assert rig.socket.copies is False


def test_a_gap_in_deliveries_ends_no_link_and_the_shard_is_greeted_anew(rig: Rig) -> None:
    """A connection that broke took some with it; nothing behind them may be applied."""
    rig.serving()
    consumer = rig.consumer(1)
    consumer.misses = True
    rig.hear(frame(Kind.DELIVER, link=1, count=1, number=5), frame(Kind.DRAINED, link=1, number=6))
    assert rig.peer.state is ConnectionState.GREETING
    assert consumer.told == ["say all"]
    assert list(rig.peer.consumers) == [1]
    rig.attempts()
    rig.loop.ring()
    rig.welcome(*rig.attempts())
    assert consumer.told == ["say all", "say all"]


def test_silence_is_only_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.serving()
    rig.now_ms += 20_000
    rig.loop.ring()
    assert "has been silent for 20000 ms" in caplog.text
    assert rig.peer.state is ConnectionState.SERVING


@pytest.mark.parametrize("answer", [frame(Kind.PONG, number=43), frame(Kind.ABSENT)])
def test_a_shard_that_does_not_know_us_is_greeted_anew(rig: Rig, answer: bytes) -> None:
    rig.serving()
    producer = rig.producer(1)
    rig.kinds()
    rig.peer.post(frame(Kind.PING))
    rig.hear(answer, frame(Kind.ACCEPTED, link=1, number=1, count=1))
    assert now(rig.peer.state) is ConnectionState.GREETING
    assert rig.attempts() == [2]
    assert len(rig.loop.timers) == 1
    rig.hear(answer)
    assert rig.attempts() == []
    rig.welcome(2, boot=43)
    assert producer.told == ["say all", "say all"]
    rig.hear(frame(Kind.PONG, number=43))
    assert rig.peer.state is ConnectionState.SERVING


def test_a_socket_that_went_away_is_a_loss_when_something_is_said(rig: Rig) -> None:
    rig.serving()
    rig.socket.there = False
    rig.peer.post(frame(Kind.PING))
    rig.peer.flush()
    assert rig.peer.state is ConnectionState.GREETING
    assert len(rig.loop.timers) == 1


def test_a_socket_that_went_away_is_a_loss_at_the_next_ping(rig: Rig) -> None:
    rig.serving()
    rig.socket.there = False
    rig.loop.ring()
    assert rig.peer.state is ConnectionState.GREETING
    assert len(rig.loop.timers) == 1


# --- frames --------------------------------------------------------------------------------------------


def test_frames_reach_their_links(rig: Rig) -> None:
    rig.serving()
    producer, consumer = rig.producer(1), rig.consumer(2)
    refusal = Refusal(conditions.RESOURCE_LOCKED).encode()
    rig.hear(
        frame(Kind.PRODUCER_READY, link=1),
        frame(Kind.CONSUMER_READY, link=2),
        frame(Kind.ACCEPTED, link=1, number=3, count=4),
        frame(Kind.REFUSED, link=1, number=7, body=refusal),
        deliver(2, 1, 5, 1, 0, 0, 0, 0, 0, 0, 0, b"\x01\x00\x00\x00", b"x"),
        frame(Kind.DRAINED, link=2, number=6),
        frame(Kind.ACCEPTED, link=99, number=3, count=4),
        frame(Kind.DELIVER, link=99),
        frame(Kind.GONE, link=1, body=refusal),
        frame(Kind.GONE, link=2, body=refusal),
        frame(Kind.GONE, link=2, body=refusal),
    )
    assert producer.told[1:] == [
        "ready",
        ("answered", 3, 4),
        ("refused", 7, conditions.RESOURCE_LOCKED),
        ("ended", conditions.RESOURCE_LOCKED),
    ]
    assert consumer.told[1:] == [
        "ready",
        ("deliver", 5, 1),
        ("drained", 6),
        ("ended", conditions.RESOURCE_LOCKED),
    ]
    assert (rig.peer.producers, rig.peer.consumers) == ({}, {})


def test_a_mistake_with_one_link_ends_that_link_alone(rig: Rig) -> None:
    rig.serving()
    broken, well = rig.consumer(1), rig.consumer(2)
    broken.fails = True
    rig.kinds()
    rig.hear(frame(Kind.DELIVER, link=1, count=1), frame(Kind.DELIVER, link=2, count=1, number=9))
    assert broken.told[1:] == [("ended", conditions.INTERNAL_ERROR)]
    assert well.told[1:] == [("deliver", 9, 1)]
    assert rig.kinds() == [[Kind.CONSUMER_CLOSE]]
    rig.hear(frame(Kind.GONE, link=77, body=b"no JSON"), frame(Kind.DRAINED, link=2, number=1))
    assert well.told[-1] == ("drained", 1)


def test_links_that_close_are_said_once(rig: Rig) -> None:
    rig.serving()
    rig.producer(1)
    rig.consumer(2)
    rig.kinds()
    for _ in range(2):
        rig.peer.close_producer(1)
        rig.peer.close_consumer(2, 0)
    assert rig.kinds() == [[Kind.PRODUCER_CLOSE, Kind.CONSUMER_CLOSE]]


def test_a_turn_is_one_message(rig: Rig) -> None:
    rig.serving()
    for _ in range(3):
        rig.peer.post(frame(Kind.PING))
    assert rig.kinds() == [[Kind.PING] * 3]
    assert rig.kinds() == []


def test_it_says_goodbye(rig: Rig) -> None:
    rig.serving()
    rig.peer.close()
    assert rig.kinds() == [[Kind.GOODBYE]]
    assert rig.socket.closed
    assert rig.loop.timers == []


def test_without_a_welcome_there_is_nobody_to_say_goodbye_to(rig: Rig) -> None:
    rig.kinds()
    rig.peer.close()
    assert rig.kinds() == []
    assert rig.socket.closed


def test_a_request_has_its_deadline_by_the_clock_of_the_shard(rig: Rig) -> None:
    async def check() -> None:
        peer = rig.serving().peer
        peer._requests._loop = asyncio.get_running_loop()
        # A shard that never sent the time of its clock, as one of a former version.
        first = asyncio.ensure_future(peer.request("queue", {"queue": "q"}))
        await asyncio.sleep(0)
        peer.flush()
        assert [(said.flags, said.epoch) for said in rig.socket.sent.pop()[1:]] == [(0, 0)]
        rig.hear(frame(Kind.PONG, flags=TIMED, epoch=rig.now_ms + 5_000, number=42))
        rig.now_ms += 100
        second = asyncio.ensure_future(peer.request("purge", {"queue": "q"}, wait_ms=4_000))
        await asyncio.sleep(0)
        peer.flush()
        due = 1_000_100 + 5_000 + 4_000 - ANSWER_MS
        assert [(said.flags, said.epoch) for said in rig.socket.sent.pop()[1:]] == [(DUE, due)]
        error = {"condition": conditions.LATE, "description": "too late"}
        rig.hear(frame(Kind.RESPONSE, number=2, body=encode_request({"error": error})))
        with pytest.raises(LateError, match="shard 0: too late"):
            await second
        with within(asyncio.get_running_loop().time() - 1), pytest.raises(LateError, match="was over before"):
            await peer.request("purge", {"queue": "q"})
        first.cancel()

    asyncio.run(check())


def test_at_most_so_many_requests_wait_for_a_shard(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUESTS_MAX", 3)

    async def check() -> None:
        peer = rig.serving().peer
        peer._requests._loop = asyncio.get_running_loop()
        waiting = [asyncio.ensure_future(peer.request("queue", {"queue": "q"})) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ShardDownError, match="3 requests wait for shard 0 already; try again"):
            await peer.request("queue", {"queue": "q"})
        assert rig.kinds() == [[Kind.REQUEST] * 3]
        # An answer makes room.
        rig.hear(frame(Kind.RESPONSE, number=1, body=encode_request({"ready": 1})))
        assert (await waiting[0]).fields == {"ready": 1}
        last = asyncio.ensure_future(peer.request("queue", {"queue": "q"}))
        await asyncio.sleep(0)
        assert rig.kinds() == [[Kind.REQUEST]]
        for each in (*waiting[1:], last):
            each.cancel()

    asyncio.run(check())


@pytest.mark.parametrize("boot", [0, 1, 0x100, 0xFFFFFF00, 0xFFFFFFFF])
def test_the_name_of_a_connection_is_one_that_zmtp_allows(boot: int) -> None:
    """A name may not begin with a zero, and the boot number of a process is any."""
    names: list[bytes] = []

    def connect(*args: Any, name: bytes, **options: Any) -> FakeSocket:
        names.append(name)
        return FakeSocket(*args, **options)

    for number in (0, 1):
        ShardPeer(
            FakeLoop(),  # type: ignore[arg-type]
            wiring_of(connect),
            shard=0,
            address="ipc:///nowhere",
            frontend=f"frontend-{number}",
            boot=boot,
            now_ms=lambda: 0,
            schedule_flush=lambda: None,
            flush=lambda: None,
        )
    assert len(set(names)) == 2
    for name in names:
        assert ready(b"DEALER", name)


# --- over ZeroMQ --------------------------------------------------------------------------------------------


def test_a_former_connection_whose_handshake_comes_late_does_not_silence_the_new_one(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/shard.sock"

    async def heard(shard: "zmq.Socket[bytes]") -> bytes:
        """The ZeroMQ name of the connection whose greeting is read next."""
        assert await asyncio.to_thread(shard.poll, 10_000), "nobody is heard"
        return shard.recv_multipart()[0]

    async def test(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        shard = context.socket(zmq.ROUTER)
        shard.setsockopt(zmq.ROUTER_HANDOVER, 1)
        shard.bind(address)
        wiring = Wiring(asyncio.get_running_loop())
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(f"{tmp_path}/shard.sock")
            peer = ShardPeer(
                asyncio.get_running_loop(),
                wiring,
                shard=0,
                address=address,
                frontend="frontend-0",
                boot=7,
                now_ms=lambda: 0,
                schedule_flush=lambda: None,
                flush=lambda: None,
            )
            try:
                former = await heard(shard)
                peer.reach(address)
                while await heard(shard) == former:
                    pass
                late.sendall(zmtp.ready(b"DEALER", former))
                # Greetings are repeated until they are answered; some may be from before the handshake.
                for _ in range(3):
                    await heard(shard)
            finally:
                peer.close()
                wiring.close()
                shard.close(0)

    context = zmq.Context()
    try:
        asyncio.run(test(context))
    finally:
        context.destroy(0)
