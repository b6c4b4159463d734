"""`lightrail bus`: services run in processes, dead letters and outboxes are looked after."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightrail.bus import BrokerAwayError, Bus, Conventions, Retry
from lightrail.cli import admin
from lightrail.cli import main as cli
from lightrail.transport import Envelope
from lightrail.transport.amqp import AmqpBroker
from lightrail.transport.outbox_file import OutboxFile
from tests.bus.conftest import numbers, play
from tests.bus.shop import Bill
from tests.support import wait
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import Broker

SERVICE = """
from dataclasses import dataclass
import os, sys
from lightrail.bus import Bus, Context, Conventions, command, message

bus = Bus("{url}", name="service", conventions=Conventions("{prefix}"))
ANSWER = "{answer}"

@command("run.ask")
@dataclass
class Ask:
    text: str

@message("run.answer")
@dataclass
class Answer:
    text: str
    process: int

@bus.responder
async def answer(ask: Ask) -> Answer:
    if ask.text == "die":
        os._exit(3)
    return Answer(ANSWER + ask.text, os.getpid())
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["bus", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def failing_service(url: str, prefix: str, count: int) -> None:
    """Sends commands to a handler that fails, and returns when all are dead letters."""

    async def test() -> None:
        bus = Bus(url, name="service", conventions=Conventions(prefix))
        failed = 0
        done = asyncio.Event()

        @bus.handler(retry=Retry())
        async def handle(bill: Bill) -> None:
            nonlocal failed
            failed += 1
            if failed == count:
                done.set()
            raise RuntimeError(f"no money for {bill.order}")

        async with bus:
            for number in range(count):
                await bus.send(Bill(number), id=f"bill-{number}")
            await done.wait()

    play(test())


def test_dead_letters_are_listed_shown_retried_and_discarded(
    shared_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    url, prefix = f"amqp://{shared_broker.amqp}", f"errors-{next(numbers)}/"
    queue = f"{prefix}commands/shop.bill"
    failing_service(url, prefix, 4)

    status, out, _ = run(capsys, "errors", "list", "--url", url, "--json")
    assert status == 0
    assert {"queue": queue, "dead_letters": 4} in [json.loads(line) for line in out.splitlines()]
    status, out, _ = run(capsys, "errors", "list", queue, "--url", url)
    assert out.count("RuntimeError: no money for") == 4
    assert "lightrail:handler-failed" in out
    status, out, _ = run(capsys, "errors", "show", queue, "bill-2", "--url", url)
    assert '{"order":2}' in out
    assert "x-opt-exception-trace" in out
    status, _, err = run(capsys, "errors", "show", queue, "bill-", "--url", url)
    assert (status, "found 4" in err) == (1, True)
    status, _, err = run(capsys, "errors", "retry", queue, "--url", url)
    assert (status, "--all" in err) == (2, True)

    status, out, _ = run(capsys, "errors", "retry", queue, "bill-2", "--url", url, "--json")
    assert json.loads(out) == {"queue": queue, "retry": 1}
    status, out, _ = run(capsys, "errors", "discard", queue, "bill-0", "bill-1", "--url", url)
    assert out.startswith("2 dead letters")
    status, out, _ = run(capsys, "errors", "list", queue, "--url", url, "--json")
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["bill-3"]
    status, out, _ = run(capsys, "errors", "discard", queue, "--all", "--url", url)
    assert out.startswith("1 dead letters")

    async def check() -> None:
        broker = AmqpBroker(url)
        await broker.open()
        found: list[Envelope] = []
        transport = broker.transport(queue)
        assert await transport.receive(lambda envelope: lambda received: found.append(envelope), timeout=10)
        assert found[0].id == "bill-2"
        assert not any(str(key).startswith("x-opt-dead-letter-reason") for key in found[0].annotations)
        await broker.close()

    play(check())


def test_a_broker_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "errors", "list", "--url", "amqp://127.0.0.1:1")
    assert (status, out) == (1, "")
    assert err.startswith("lightrail bus errors: ")
    assert len(err.splitlines()) == 1


def test_an_outbox_is_shown_and_what_was_refused_is_retried_or_discarded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "outbox.db"
    file = OutboxFile(path, 100, 10_000)
    file.append([Envelope(body=b"x", id=f"m-{number}") for number in range(4)])
    for sequence in (1, 2):
        file.refuse(sequence, "too large")
    file.close()
    status, out, _ = run(capsys, "outbox", str(path), "--json")
    found = json.loads(out)
    assert (status, found["messages"], len(found["refused"])) == (0, 2, 2)
    assert found["refused"][0] == {"sequence": 1, "id": "m-0", "reason": "too large"}
    status, out, _ = run(capsys, "outbox", str(path), "--retry", "1", "--discard", "2")
    assert "3 messages of" in out
    assert "1 refused messages are forwarded again, 1 were deleted" in out
    status, _, err = run(capsys, "outbox", str(tmp_path / "none"))
    assert (status, "found none" in err) == (1, True)
    assert not (tmp_path / "none").exists()


def start(directory: Path, *flags: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "lightrail.cli.main", "bus", "run", "service:bus", *flags]
    return subprocess.Popen(command, cwd=directory, env=os.environ | {"PYTHONPATH": str(Path.cwd())})


def asked(url: str, prefix: str, text: str, timeout: float = 20.0) -> Any:
    """The answer of a service that may be starting."""

    async def ask() -> Any:
        from dataclasses import dataclass

        from lightrail.bus import command, message

        @command("run.ask")
        @dataclass
        class Ask:
            text: str

        @message("run.answer")
        @dataclass
        class Answer:
            text: str
            process: int

        async with Bus(url, name="test", conventions=Conventions(prefix)) as bus:
            return await bus.request(Ask(text), Answer, timeout=timeout)

    return asyncio.run(ask())


def test_workers_run_a_service_are_started_again_when_they_die_and_stop_in_order(
    shared_broker: Broker, tmp_path: Path
) -> None:
    url, prefix = f"amqp://{shared_broker.amqp}", f"run-{next(numbers)}/"
    (tmp_path / "service.py").write_text(SERVICE.format(url=url, prefix=prefix, answer="re: "))
    process = start(tmp_path, "--workers", "2")
    try:
        first = asked(url, prefix, "hello")
        assert first.text == "re: hello"
        assert first.process != process.pid
        with pytest.raises(TimeoutError):
            asked(url, prefix, "die", timeout=2.0)
        assert asked(url, prefix, "again").text == "re: again"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_service_that_is_started_before_its_broker_waits_for_it(tmp_path: Path) -> None:
    """A wrong password is another matter: it ends the service at once."""
    broker = ReturningBroker(tmp_path / "data")
    broker.kill()
    url, prefix = f"amqp://{broker.url}", f"early-{next(numbers)}/"
    (tmp_path / "service.py").write_text(SERVICE.format(url=url, prefix=prefix, answer="early "))
    process = start(tmp_path)
    try:

        async def refused() -> None:
            with pytest.raises(BrokerAwayError, match="could not be started"):
                await Bus(url, name="test").start()

        play(refused())
        assert process.poll() is None
        broker.start()
        assert asked(url, prefix, "bird").text == "early bird"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        broker.stop()
    password = tmp_path / "password"
    password.write_text("pencil\n")
    data = tmp_path / "guarded"
    assert admin.main(["--data", str(data), "user", "add", "app", "--password-file", str(password)]) == 0
    guarded = ReturningBroker(data)
    try:
        wrong = f"amqp://app:wrong@{guarded.url}"
        (tmp_path / "service.py").write_text(SERVICE.format(url=wrong, prefix=prefix, answer=""))
        assert start(tmp_path).wait(30) == 1
    finally:
        guarded.stop()


def test_a_service_is_started_anew_when_its_file_changes(shared_broker: Broker, tmp_path: Path) -> None:
    url, prefix = f"amqp://{shared_broker.amqp}", f"reload-{next(numbers)}/"
    path = tmp_path / "service.py"
    path.write_text(SERVICE.format(url=url, prefix=prefix, answer="old "))
    process = start(tmp_path, "--reload")
    try:
        assert asked(url, prefix, "x").text == "old x"
        path.write_text(SERVICE.format(url=url, prefix=prefix, answer="newer "))
        wait.until(lambda: asked(url, prefix, "x").text == "newer x", "the new file answers", 30)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("service", "expected MODULE:BUS"),
        ("nothing_such:bus", "expected a module nothing_such"),
        ("tests.bus.shop:Bill", "expected a Bus as Bill"),
    ],
)
def test_what_is_no_bus_is_refused(capsys: pytest.CaptureFixture[str], name: str, text: str) -> None:
    status, _, err = run(capsys, "run", name)
    assert status == 1
    assert text in err
