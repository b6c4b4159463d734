"""Bad input over real sockets: it ends its own connection, and a well-behaved pair notices nothing."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
import zlib
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.performatives import Attach, Close, Open, Source, Target, Transfer
from lightrail.amqp.settings import MAX_FRAME_SIZE
from lightrail.amqp.values import Symbol
from lightrail.cluster.logins import LOGIN_HASHES_AT_ONCE, LOGIN_SOURCE_FREE, LOGINS_WAITING
from lightrail.model import conditions, limits
from tests.chaos import attacks
from tests.chaos.attacks import Attacker, frame
from tests.chaos.bystanders import bystanders
from tests.chaos.ledger import Ledger
from tests.chaos.service import children, resident_bytes
from tests.chaos.traffic import Sender
from tests.support import wait
from tests.support.amqp.socket_client import Client, LostError
from tests.support.broker import Broker
from tests.support.namespace import permit

pytestmark = pytest.mark.timeout(150)
MB = 1024 * 1024
SEED = int(os.environ.get("LIGHTRAIL_CHAOS_SEED", "1"))


def fill(broker: Broker, queue: str, count: int, size: int) -> None:
    """Puts so many durable messages into a queue."""
    with Sender(lambda: broker.amqp, queue, Ledger(), number=9, count_max=count, size=size) as sender:
        wait.until(lambda: sender.page.accepted == count or sender.failure, f"{queue} is filled", 60.0)
        sender.finish()


def open_files(broker: Broker, role: str = "frontend") -> int:
    return len(os.listdir(f"/proc/{children(broker.process.pid)[role, 0]}/fd"))


def opened(broker: Broker) -> float:
    """Connections that were opened until now, those that are closed again among them."""
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    name = "lightrail_connections_opened_total"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def customized(tmp_path: Path, code: str) -> dict[str, str]:
    """Environment of a broker whose processes run this code at their start."""
    folder = tmp_path / "customized"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(textwrap.dedent(code))
    return {"PYTHONPATH": os.pathsep.join((str(folder), *filter(None, [os.environ.get("PYTHONPATH")])))}


# --- bytes that are no AMQP ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_garbage(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with bystanders(tmp_path / "data") as them:
        for number in range(400):
            with Attacker(them.broker.amqp) as attacker:
                attacker.say(attacks.garbage(f"g{number % 8}", chance))
                if number % 3 == 0:
                    attacker.heard(0.01)
                attacker.close(reset=chance.random() < 0.3)


def test_frame_length(tmp_path: Path) -> None:
    """A length of 4 GB, or less than a header, is answered at once: nothing waits until the rest comes."""
    opened = frames.AMQP_HEADER + attacks.OPEN
    cases = [
        (b"", 0xFFFFFFFF),
        (frames.SASL_HEADER, 0xFFFFFFFF),
        (frames.SASL_HEADER, 0x00FFFFFF),
        (frames.AMQP_HEADER, 0xFFFFFFFF),
        (opened, 0xFFFFFFFF),
        (opened, 0x80000000),
        (opened, MAX_FRAME_SIZE + 1),
        (opened, 7),
        (opened, 0),
    ]
    with bystanders(tmp_path / "data", growth_max=48 * MB) as them:
        for before, size in cases:
            with ExitStack() as stack:
                for attacker in attacks.crowd(stack, them.broker.amqp, 20, before):
                    attacker.say(size.to_bytes(4, "big") + b"\x02\x00\x00\x00" + b"\x00" * 100)
                    said = attacker.until_closed()
                    if before == opened:
                        assert conditions.FRAMING_ERROR.encode() in said, said


def test_frames_cut_anywhere(tmp_path: Path) -> None:
    """A client that says half of something and goes; and one whose frames come in two pieces."""
    with bystanders(tmp_path / "data") as them:
        data = b"".join(attacks.conversation("cut"))
        for end in range(len(data)):
            with Attacker(them.broker.amqp) as attacker:
                attacker.say(data[:end])
                attacker.close(reset=end % 2 == 0)
        for middle in range(8, len(data), 7):
            with Attacker(them.broker.amqp) as attacker:
                attacker.say(data[:middle])
                attacker.say(data[middle:])
                assert frame(Close()) in attacker.until_closed(), f"cut at {middle}"


# --- clients that take their time ---------------------------------------------------------------------


def test_half_open_and_slow(tmp_path: Path) -> None:
    """Ten thousand connections that never open, some octet by octet: freed after their time."""
    with attacks.many_files(10_000) as allowed, bystanders(tmp_path / "data") as them, ExitStack() as stack:
        count = min(10_000, allowed)
        if count < 1_000:
            pytest.skip(f"the system lets a process open {allowed} more files only")
        base = open_files(them.broker)
        began = time.monotonic()
        slow = attacks.crowd(stack, them.broker.amqp, 20)
        rest = [frames.AMQP_HEADER, frames.SASL_HEADER, frames.AMQP_HEADER + attacks.OPEN[:20], b""]
        crowd = []
        data = frames.AMQP_HEADER + attacks.OPEN
        for number in range(count - len(slow)):
            crowd += attacks.crowd(stack, them.broker.amqp, 1, rest[number % len(rest)])
            if number % 1_000 == 999:
                for attacker in slow:
                    attacker.say(data[number // 1_000 : number // 1_000 + 1])
        wait.until(lambda: open_files(them.broker) >= base + count - 200, "the broker has them all")
        them.weigh()
        took = time.monotonic() - began
        print(f"{count} half-open connections within {took:.1f} s: {them.growth // count} bytes each")
        wait.until(lambda: open_files(them.broker) <= base + 10, "the broker frees them")
        some = (*slow, *crowd[:50], *crowd[-50:])
        wait.until(lambda: all(attacker.closed_by_broker() for attacker in some), "they see it")


def test_more_half_open_than_allowed(tmp_path: Path) -> None:
    """Beyond HALF_OPEN_MAX a connection is refused at once; clients that open are served all the same."""
    environ = customized(
        tmp_path,
        """
        from lightrail.model import limits
        limits.HALF_OPEN_MAX = 300
        limits.OPENING_TIME_MS = 3_000
        """,
    )
    with bystanders(tmp_path / "data", environ=environ) as them, ExitStack() as stack:
        base = open_files(them.broker)
        crowd = attacks.crowd(stack, them.broker.amqp, 500)
        wait.until(lambda: sum(one.closed_by_broker() for one in crowd) >= 200, "the surplus is refused")
        wait.until(lambda: open_files(them.broker) <= base + 310, "no more than allowed are kept")
        wait.until(lambda: open_files(them.broker) <= base + 10, "the rest goes when its time is over")
        with Client(them.broker.amqp) as client:
            client.session()


def test_fewer_files_than_connections(tmp_path: Path) -> None:
    """The system lets the broker open few files: connections beyond wait or are refused, the rest goes on."""
    script = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
        "sys.argv = ['lightrail', 'serve', *sys.argv[1:]]; "
        "runpy.run_module('lightrail.cli.main', run_name='__main__', alter_sys=True)"
    )
    with bystanders(tmp_path / "data", command=("-c", script)) as them, ExitStack() as stack:
        crowd = attacks.crowd(stack, them.broker.amqp, 600, frames.AMQP_HEADER)
        them.still_served()
        for attacker in crowd:
            attacker.close()

        def opens() -> bool:
            try:
                with Client(them.broker.amqp) as client:
                    client.session(2.0)
            except (LostError, OSError):
                return False
            return True

        wait.until(opens, "a new client is served when they have gone")


def test_idle_clients_are_let_go(tmp_path: Path) -> None:
    """Silent ones, ones that never finish a frame, ones that do not read what they asked for."""
    with bystanders(tmp_path / "data", "--idle-timeout", "2s") as them, ExitStack() as stack:
        fill(them.broker, "unread", 20_000, 1_000)
        # In this order: for the first question the gateway connects to the frontend.
        before = opened(them.broker)
        base = open_files(them.broker)
        begun = frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN
        silent = attacks.crowd(stack, them.broker.amqp, 20, begun)
        slow = attacks.crowd(stack, them.broker.amqp, 20, begun)
        unread = []
        for _ in range(20):
            attacker = stack.enter_context(Attacker(them.broker.amqp, receive_buffer=4_096))
            attacker.say(begun + attacks.attach(0, "unread", receiver=True) + attacks.credit(0, 1_000_000))
            unread.append(attacker)
        # The first of them may be let go before the last one comes.
        wait.until(lambda: opened(them.broker) >= before + 60, "they are connected")
        frame_bytes = iter(range(10_000))

        def gone() -> bool:
            at = next(frame_bytes) % 40 + 8
            for attacker in slow:
                attacker.say(attacks.attach(0, "x" * 200, receiver=False)[at : at + 1] if at > 8 else b"\0")
            return open_files(them.broker) <= base

        # Silence, its close, the time for an answer, and that for what nobody reads.
        wait.until(gone, "the broker lets all of them go", 30.0)
        wait.until(lambda: all(attacker.closed_by_broker() for attacker in silent), "they see it")
        # What they held is there for others.
        with Client(them.broker.amqp) as client:
            session = client.session()
            client.attach(session, "r", "unread", sender=False).grant(100)
            client.until(events.Transfers)


# --- clients that ask for too much --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connections", "links", "window"),
    [(10, 20, attacks.UINT_MAX), (1, 1_000, attacks.UINT_MAX), (10, 1, 1), (10, 1, 0)],
    ids=["links", "thousand-links", "session-window-1", "session-window-0"],
)
def test_never_reads(tmp_path: Path, connections: int, links: int, window: int) -> None:
    """Huge credit on many links, or behind a session window that never opens, and nothing is ever read."""
    with bystanders(tmp_path / "data", growth_max=220 * MB) as them, ExitStack() as stack:
        fill(them.broker, "stuck", 100_000, 1_000)
        them.before = them.weigh()
        them.peak.clear()
        begin = frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN
        for _ in range(connections):
            attacker = stack.enter_context(Attacker(them.broker.amqp, receive_buffer=4_096))
            attacker.say(begin)
            for link in range(links):
                attacker.say(attacks.attach(link, "stuck", receiver=True))
                attacker.say(attacks.credit(link, 0x7FFFFFFF, window=window))
        for _ in range(5):
            them.still_served()
            them.weigh()
        # Of 100 MB: two windows and two full sockets per connection, and the interpreter's share.
        assert them.growth < connections * 6 * MB + 32 * MB, them.report()


def test_never_settles(tmp_path: Path) -> None:
    """It reads everything and settles nothing: past a bound it gets no more, and the shard stays small."""
    flags = ("--memory-mark", "16MB")
    with bystanders(tmp_path / "data", *flags, growth_max=200 * MB) as them:
        fill(them.broker, "unsettled", 200_000, 1_000)
        with Client(them.broker.amqp) as client:
            session = client.session()
            client.attach(session, "r", "unsettled", sender=False).grant(0x7FFFFFFF)
            received = 0
            quiet = 0
            while quiet < 40 and received < 200_000:
                found = [one for one in client.step(0.05) if isinstance(one, events.Transfers)]
                received += sum(len(event.payloads) for event in found)
                quiet = 0 if found else quiet + 1
                them.weigh()
        assert limits.CONNECTION_UNSETTLED_BYTES // 1_100 < received < 150_000
        them.still_served()
        # All of it is there for the next one.
        with Client(them.broker.amqp) as client:
            session = client.session()
            link = client.attach(session, "r", "unsettled", sender=False)
            link.grant(1_000)
            received = 0
            latest = time.monotonic()
            while received < 200_000:
                assert time.monotonic() - latest < 10.0, f"{received} came"
                for event in client.step(0.5):
                    if isinstance(event, events.Transfers):
                        latest = time.monotonic()
                        received += len(event.payloads)
                        link.settle(
                            event.first_delivery_id, event.first_delivery_id + len(event.payloads) - 1
                        )
                        if link.credit < 500:
                            link.grant(1_000)


def test_sends_past_its_credit_while_the_shard_stands_still(tmp_path: Path) -> None:
    """Credit for small messages, used for large ones: the socket is not read any more, nothing grows."""
    size = MB
    body = b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xb0" + size.to_bytes(4, "big") + bytes(size)
    with Broker(tmp_path / "data") as broker, Attacker(broker.amqp) as attacker:
        attacker.say(
            frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN + attacks.attach(0, "big", receiver=False)
        )
        wait.until(lambda: b"\x00\x53\x13" in attacker.heard(0.05), "credit comes")
        pid = children(broker.process.pid)["shard", 0]
        frontend = children(broker.process.pid)["frontend", 0]
        before = resident_bytes(frontend)
        wait.freeze(pid)
        attacker.socket.settimeout(2.0)
        try:
            sent = 0
            for number in range(600):
                pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
                data = attacks.transfer(0, number, pieces[0], more=True) + b"".join(
                    frame(Transfer(handle=0, more=at < len(pieces) - 2), piece)
                    for at, piece in enumerate(pieces[1:])
                )
                if not attacker.say(data):
                    break
                sent += 1
            grown = resident_bytes(frontend) - before
        finally:
            os.kill(pid, signal.SIGCONT)
        print(f"{sent} MB were taken, the frontend grew by {grown >> 20} MB")
        assert sent < 100
        assert grown < 150 * MB


def test_begins_and_never_ends(tmp_path: Path) -> None:
    """Large messages on hundreds of links, each without its last frame."""
    with bystanders(tmp_path / "data", growth_max=700 * MB) as them, Attacker(them.broker.amqp) as attacker:
        attacker.say(frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN)
        for link in range(200):
            attacker.say(attacks.attach(link, f"part{link % 10}", receiver=False))
        wait.until(lambda: b"\x00\x53\x13" in attacker.heard(0.05), "credit comes")
        piece = b"\x00\x53\x75\xb0\x07\x00\x00\x00" + bytes(60_000)
        taken = 0
        alive = True
        for _ in range(100):
            for link in range(200):
                if alive:
                    first = taken < 200 * len(piece)
                    number = link if first else None
                    alive = attacker.say(
                        frame(
                            Transfer(
                                handle=link,
                                delivery_id=number,
                                delivery_tag=None if number is None else number.to_bytes(4, "big"),
                                message_format=0 if first else None,
                                more=True,
                            ),
                            piece,
                        )
                    )
                    taken += len(piece)
            them.weigh()
        print(f"{taken >> 20} MB were said")
        assert conditions.RESOURCE_LIMIT_EXCEEDED.encode() in attacker.until_closed()


def test_thousands_of_links(tmp_path: Path) -> None:
    """Four thousand links, most on queues of their own, attached and dropped, again and again."""
    with bystanders(tmp_path / "data") as them:
        for turn in range(3):
            with Attacker(them.broker.amqp) as attacker:
                attacker.say(frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN)
                for link in range(4_000):
                    attacker.say(
                        attacks.attach(link, f"many/{link % 1_500}", receiver=link % 2 == 0, name=f"l{link}")
                    )
                said = bytearray()
                wait.until(
                    partial(has_attached, attacker, said, 4_000),
                    f"turn {turn}: all attaches are answered",
                )
                attacker.say(attacks.CLOSE)
                attacker.until_closed()
                them.weigh()


def has_attached(attacker: Attacker, said: bytearray, count: int) -> bool:
    """Whether the broker has answered so many attaches; adds what it says to what it said."""
    said.extend(attacker.heard(0.02))
    return said.count(b"\x00\x53\x12") >= count


def test_large_and_deep_properties(tmp_path: Path) -> None:
    """Nested, endless, counted wrong or with no end of symbols: an error, or taken; never much memory."""
    deep = b"\x45"
    for _ in range(5_000):
        deep = b"\xd0" + (len(deep) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + deep
    endless = b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"
    lists = b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45"
    counted = b"\xd1\x00\x00\x00\x04\xff\xff\xff\xff"
    described = b"\x00" * 30_000
    wide = {Symbol(f"k{number}"): number for number in range(4_000)}
    values = [deep[:60_000], deep[-40_000:], endless, lists, counted, described, b"\xd1" + b"\x40" * 50]
    start = frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN
    queue = attacks.attach(0, "deep", receiver=False)
    with bystanders(tmp_path / "data", growth_max=64 * MB) as them:
        for value in values:
            raw = b"\xa1\x01a\x40\x40\x40\x40\x40\x40\x40\x40" + value
            opening = b"\x00\x53\x10\xd0" + (len(raw) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x0a" + raw
            with Attacker(them.broker.amqp) as attacker:
                attacker.say(frames.AMQP_HEADER + frames.frame(0, opening) + attacks.CLOSE)
                said = attacker.until_closed()
                assert conditions.DECODE_ERROR.encode() in said or conditions.FRAMING_ERROR.encode() in said
            for section in (0x71, 0x72, 0x73, 0x74, 0x78):
                message = b"\x00\x53" + bytes((section,)) + value
                with Attacker(them.broker.amqp) as attacker:
                    attacker.say(start + queue)
                    attacker.say(attacks.transfer(0, 0, message) + attacks.transfer(0, 1, message))
                    attacker.say(attacks.CLOSE)
                    attacker.until_closed()
        for turn in range(20):
            names = {Symbol(f"{turn}-{key}"): value for key, value in wide.items()}
            with Attacker(them.broker.amqp) as attacker:
                attacker.say(frames.AMQP_HEADER + frame(Open(container_id="c", properties=names)))
                attacker.say(attacks.BEGIN + frame(attach_with(names)) + attacks.CLOSE)
                attacker.until_closed()
            them.weigh()


def attach_with(properties: dict[Symbol, int]) -> Attach:
    return Attach(
        name="wide",
        handle=0,
        role=False,
        source=Source(address="wide"),
        target=Target(address="wide"),
        initial_delivery_count=0,
        properties=properties,
    )


def test_odd_messages(tmp_path: Path) -> None:
    """Empty ones, of foreign formats, with broken sections: stored and handed out as they are, or refused."""
    header = b"\x00\x53\x70\xc0\x02\x01\x41"
    odd = [
        b"",
        header,
        b"\xff\xfe\xfd",
        header + b"\x00\x53\x72\xc1\x05\x04\xa3\x01\x61\x99\x99\x00\x53\x75\xa0\x01x",
        header + b"\x00\x53\x73\xc0\xff\x05",
        header + b"\x00\x53\x75\xa0\xff",
        b"\x00\x53\x70\x45\xff\xff\xff",
    ]
    outcomes = [
        b"\x00\x53\x25\x45",  # rejected
        b"\x00\x53\x26\x45",  # released
        b"\x00\x53\x27\xc0\x02\x01\x41",  # modified, delivery-failed
        b"\x00\x53\x27\xc0\x0b\x03\x41\x40\xc1\x06\x02\xa3\x01a\x54\x01",  # modified with annotations
    ]
    with bystanders(tmp_path / "data") as them:
        for message in odd:
            for outcome in outcomes:
                for message_format in (0, 7):
                    odd_message(them.broker, message, outcome, message_format)


def odd_message(broker: Broker, message: bytes, outcome: bytes, message_format: int) -> None:
    """Sends it, gives it an outcome as a receiver twelve times over, and looks for it as a dead letter."""
    queue = f"odd/{zlib.crc32(message + outcome):08x}-{message_format}"
    body = Transfer(
        handle=0, delivery_id=0, delivery_tag=b"t", message_format=message_format, settled=False, more=False
    )
    with Attacker(broker.amqp) as attacker:
        attacker.say(frames.AMQP_HEADER + attacks.OPEN + attacks.BEGIN)
        attacker.say(attacks.attach(0, queue, receiver=False) + attacks.attach(1, queue, receiver=True))
        attacker.say(attacks.attach(2, f"{queue}/$dlq", receiver=True) + attacks.credit(2, 20))
        attacker.heard(0.02)
        attacker.say(frame(body, message) + attacks.credit(1, 20))
        for number in range(12):
            attacker.heard(0.003)
            state = b"\x41" + bytes((0x52, number)) + b"\x40\x41" + outcome
            attacker.say(frames.frame(0, b"\x00\x53\x15\xc0" + bytes((len(state) + 1, 5)) + state))
        attacker.say(attacks.CLOSE)
        attacker.until_closed()


def test_messages_without_a_byte(tmp_path: Path) -> None:
    """One after the other, thousands of them: the mean size that windows are made from comes near to 0."""
    with bystanders(tmp_path / "data") as them, Client(them.broker.amqp) as client:
        session = client.session()
        sender = client.attach(session, "s", "empty", sender=True)
        receiver = client.attach(session, "r", "empty", sender=False)
        receiver.grant(10)
        for _ in range(3_000):
            sender.send_one(b"")
            waiting = {events.Outcome, events.Transfers}
            while waiting:
                for event in client.step(5.0):
                    waiting.discard(type(event))
                    if isinstance(event, events.Transfers):
                        receiver.settle(event.first_delivery_id, event.first_delivery_id)
                        receiver.grant(10)
                    assert not isinstance(event, events.Detached | events.Ended), event


# --- log-ins ------------------------------------------------------------------------------------------


COUNT_HASHES = """
import os
from lightrail.amqp import sasl

def counted(keys, password, verify=sasl.verify_plain):
    with open(os.environ["CHAOS_HASHES"], "a") as file:
        file.write(f"{password}\\n")
    return verify(keys, password)

sasl.verify_plain = counted
"""
"""Writes a line for each password that a process hashes."""


def test_sasl_flood(tmp_path: Path) -> None:
    """Wrong passwords by the thousand from one address, most of which do not wait for the answer.

    The frontend hashes no more of them than may be checked or wait at a time, and a right one from another
    address gets in. From the same one it may have to wait for those before it, a second each.
    """
    data = tmp_path / "data"
    password = tmp_path / "password"
    password.write_text("correct horse\n")
    hashes = tmp_path / "hashes"
    environ = {"CHAOS_HASHES": str(hashes)} | customized(tmp_path, COUNT_HASHES)
    # Few rounds: a frontend that hashed all of these passwords would hash all of them within this test.
    admin = [sys.executable, "-m", "lightrail.cli.admin", "--data", str(data), "user", "add", "ann"]
    options = ["--rounds", "4096", "--password-file", str(password)]
    subprocess.run([*admin, *options], check=True, capture_output=True)
    permit(data, "anonymous", "", "send", "listen", "manage")
    with bystanders(data, "--allow-anonymous", environ=environ) as them, ExitStack() as stack:
        plain = b"\x00ann\x00wrong"
        inits = [
            sasl_init("PLAIN", plain),
            sasl_init("PLAIN", b"\x00" * 10_000),
            sasl_init("SCRAM-SHA-256", b"n,,n=ann,r=abcdef"),
            sasl_init("SCRAM-SHA-512", b"y,,n=nobody,r=abcdef"),
            sasl_init("NONSENSE", b""),
            sasl_init("SCRAM-SHA-256", b"\xff" * 100),
            frames.sasl_frame(b"\x00\x53\x41\xd0\xff\xff\xff\xff\xff\xff\xff\xff"),
        ]
        for number in range(3_000):
            attacker = stack.enter_context(Attacker(them.broker.amqp, source="127.0.0.2"))
            attacker.say(frames.SASL_HEADER + inits[number % len(inits) if number < 700 else 0])
            if number % 5 or number > 700:
                attacker.close(reset=number % 2 == 0)
        assert log_in(them.broker, b"\x00ann\x00correct horse")
        hashed = hashes.read_text().splitlines()
        print(f"{hashed.count('wrong')} wrong passwords were hashed before the right one")
        assert hashed.count("wrong") <= LOGIN_SOURCE_FREE + LOGINS_WAITING + LOGIN_HASHES_AT_ONCE
        assert not log_in(them.broker, plain)


def sasl_init(mechanism: str, response: bytes) -> bytes:
    name = mechanism.encode()
    body = b"\xa3" + bytes((len(name),)) + name + b"\xb0" + len(response).to_bytes(4, "big") + response
    data = b"\x00\x53\x41\xd0" + (len(body) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x02" + body
    return frames.sasl_frame(data)


def log_in(broker: Broker, response: bytes) -> bool:
    """PLAIN, and whether it was good."""
    with Attacker(broker.amqp) as attacker:
        attacker.say(frames.SASL_HEADER + sasl_init("PLAIN", response))
        said = b""
        end = time.monotonic() + 30.0
        while b"\x00\x53\x44" not in said:
            assert time.monotonic() < end, "no outcome"
            said += attacker.heard(0.05)
        return said[said.index(b"\x00\x53\x44") :].find(b"\x50\x00") >= 0
