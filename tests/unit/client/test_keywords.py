"""Options and fields that are passed on have types: a type checker finds a mistake in them."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightrail.client.sync
from lightrail.client import (
    Connection,
    ConnectOptions,
    Message,
    MessageFields,
    ReceiverOptions,
    SenderOptions,
    connect,
)
from lightrail.client.keywords import MessageChanges
from tests.support.broker import ROOT

LAST: list[tuple[type, Callable[..., Any]]] = [
    (ConnectOptions, Connection.__init__),
    (SenderOptions, Connection.sender),
    (ReceiverOptions, Connection.receiver),
    (MessageFields, Message.__init__),
]
"""Keywords, and the function that takes them in the end."""


@pytest.mark.parametrize(("keywords", "function"), LAST, ids=lambda each: each.__qualname__)
def test_keywords_are_those_of_the_function_that_takes_them(
    keywords: type, function: Callable[..., Any]
) -> None:
    expected = {
        each.name: each.annotation
        for each in inspect.signature(function).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert list(keywords.__annotations__.items()) == list(expected.items())


def test_replace_takes_what_a_message_is_made_of() -> None:
    assert set(MessageChanges.__annotations__) == {"body", *MessageFields.__annotations__}


RIGHT = """
import lightrail.client.sync
from lightrail.client import Message, ReceiverOptions, sync

async def main() -> None:
    async with lightrail.client.connect("amqp://h", name="n", heartbeat=5) as connection:
        async with connection.sender("q", window=5) as sender, connection.requester("q") as requester:
            await sender.send("x", subject="s", ttl=5)
            sender.send_nowait(Message("x"), durable=False)
            await sender.schedule("x", delay=5, annotations={"x-opt-k": 1})
            await requester.request("x", timeout=5, properties={"k": 1})
    options: ReceiverOptions = {"credit": 5, "renew_for": 600}
    with sync.connect("amqp://h", name="n") as plain:
        plain.sender("q", presettled=True).send("x", priority=9)
        plain.receiver("q", **options)
"""
WRONG = {
    'lightrail.client.connect("amqp://h", heartbeet=5)': 'Unexpected keyword argument "heartbeet"',
    'lightrail.client.connect("amqp://h", heartbeat="5")': '"heartbeat"',
    'sync.connect("amqp://h", reconect=None)': 'Unexpected keyword argument "reconect"',
    'plain.sender("q", windw=5)': 'Unexpected keyword argument "windw"',
    'plain.receiver("q", credits=5)': 'Unexpected keyword argument "credits"',
    'plain.receiver("q", credit="many")': '"credit"',
    'plain.sender("q").send("x", subjct="s")': 'Unexpected keyword argument "subjct"',
    'plain.requester("q").request("x", prioritty=5)': 'Unexpected keyword argument "prioritty"',
    'Message("x").replace(idd=5)': 'Unexpected keyword argument "idd"',
}


def test_a_type_checker_finds_each_mistake_in_an_option_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    lines = [*RIGHT.strip().splitlines(), "", "def mistakes(plain: sync.Connection) -> None:"]
    first = len(lines) + 1
    program.write_text("\n".join([*lines, *(f"    {line}" for line in WRONG)]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull]
        + ["--cache-dir", str(tmp_path / "cache"), str(program)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(found) == len(WRONG), done.stdout + done.stderr
    for number, (line, text) in enumerate(WRONG.items(), first):
        (error,) = [each for each in found if each.startswith(f"{program.name}:{number}:")]
        assert text in error, line


def test_a_mistake_is_an_error_of_the_program_too() -> None:
    """Without a type checker: before anything is sent."""
    with pytest.raises(TypeError, match="heartbeet"):
        lightrail.client.sync.connect("amqp://127.0.0.1:1", heartbeet=5)  # type: ignore[call-arg]
    assert inspect.signature(connect).parameters["options"].kind is inspect.Parameter.VAR_KEYWORD
