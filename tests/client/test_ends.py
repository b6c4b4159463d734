"""Threads, forks, loops and interpreters that end in the middle: nothing hangs, nothing is left to be
reported by nobody, and what can't be used any more says why."""

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lightrail.client import ClientError, Connection, connect, sync
from tests.support.broker import Broker

JOIN_S = 30.0
SPEED_APART = """
import logging
logging.getLogger("asyncio").addFilter(lambda record: not record.msg.startswith("Executing %s took"))
"""
"""In development mode asyncio reports callbacks of more than 100 ms: that is the machine's speed, no law."""


def python(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", SPEED_APART + program, *arguments],
        capture_output=True,
        text=True,
        timeout=JOIN_S,
    )


def test_many_threads_share_one_connection_and_some_end_in_the_middle(broker: Broker) -> None:
    found: list[int] = []
    lock = threading.Lock()
    failed: list[BaseException] = []
    with sync.connect(broker.amqp) as connection:
        sender = connection.sender("threads/shared", window=20)
        receiver = connection.receiver("threads/shared", credit=20)
        sender.opened()
        receiver.opened()

        def send(first: int, count: int) -> None:
            for number in range(first, first + count):
                sender.send(number)

        def receive() -> None:
            for delivery in receiver:
                with lock:
                    found.append(delivery.body)
                    last = len(found) == 8 * 40 + 4 * 10
                delivery.accept()
                if last:
                    receiver.close()

        def ends_in_the_middle(first: int) -> None:
            send(first, 10)
            mine = connection.sender("threads/shared")
            mine.opened()
            del mine
            raise SystemExit

        def run(work: Callable[..., None], *arguments: Any) -> threading.Thread:
            def guarded() -> None:
                try:
                    work(*arguments)
                except SystemExit:
                    pass
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=guarded)
            thread.start()
            return thread

        threads = [run(send, 100 * number, 40) for number in range(8)]
        threads += [run(receive) for _ in range(4)]
        threads += [run(ends_in_the_middle, 1_000 + 100 * number) for number in range(4)]
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive()
    assert not failed
    assert len(found) == len(set(found)) == 360


def test_an_interpreter_ends_with_open_synchronous_connections(broker: Broker) -> None:
    program = """
import sys
from lightrail.client.sync import connect
connection = connect(sys.argv[1])
sender = connection.sender("exit")
receiver = connection.receiver("exit")
sender.send("x")
receiver.receive()
answers = [sender.send_nowait("y") for _ in range(10)]
print("end")
"""
    found = python(program, broker.amqp)
    assert (found.returncode, found.stdout, found.stderr) == (0, "end\n", "")


def test_an_interpreter_ends_while_a_daemon_thread_waits(broker: Broker) -> None:
    program = """
import sys, threading
from lightrail.client.sync import connect
receiver = connect(sys.argv[1]).receiver("exit/waits")
receiver.opened()
threading.Thread(target=receiver.receive, daemon=True).start()
print("end")
"""
    found = python(program, broker.amqp)
    assert (found.returncode, found.stdout, found.stderr) == (0, "end\n", "")


def test_a_loop_ends_with_an_open_connection_and_says_nothing(broker: Broker) -> None:
    program = """
import asyncio, sys
from lightrail.client import ClientError, connect
async def main():
    connection = await connect(sys.argv[1])
    sender, receiver = connection.sender("loop"), connection.receiver("loop")
    await sender.send("x")
    waiting = asyncio.create_task(receiver.receive(5))
    sender.send_nowait("y")
    return connection, sender
connection, sender = asyncio.run(main())
assert connection.closed
try:
    asyncio.run(sender.send("late"))
except ClientError as error:
    print(error)
"""
    found = python(program, broker.amqp)
    assert (found.returncode, found.stderr) == (0, "")
    assert "event loop" in found.stdout


def test_a_loop_ends_while_the_broker_is_away(broker: Broker) -> None:
    program = """
import asyncio, sys
from lightrail.client import connect
async def main():
    reader = asyncio.Event()
    connection = await connect(sys.argv[1], on_event=lambda event: event.kind == "lost" and reader.set())
    connection._wire._transport.abort()
    await reader.wait()
    sender = connection.sender("away")
    sender.send_nowait("y")
asyncio.run(main())
"""
    found = python(program, broker.amqp)
    assert (found.returncode, found.stderr) == (0, "")


def in_child(connection: Connection, results: Any) -> None:
    async def use() -> None:
        try:
            connection.sender("ends/fork")
        except ClientError as error:
            results.put(str(error))

    asyncio.run(use())


def test_a_connection_of_asyncio_that_came_over_a_fork_says_so(broker: Broker) -> None:
    forked = multiprocessing.get_context("fork")
    results = forked.SimpleQueue()

    async def test() -> None:
        async with connect(broker.amqp) as connection:
            child = forked.Process(target=in_child_of_a_loop, args=(connection, results))
            child.start()
            await asyncio.to_thread(child.join, JOIN_S)
            assert child.exitcode == 0
            assert "after the fork" in results.get()
            await connection.sender("ends/fork").send("still here")

    asyncio.run(test())


def in_child_of_a_loop(connection: Connection, results: Any) -> None:
    # The child of a fork inside of a loop inherits the mark of the running loop.
    asyncio._set_running_loop(None)
    in_child(connection, results)


def test_a_synchronous_call_on_the_thread_of_the_client_is_refused(broker: Broker) -> None:
    with sync.connect(broker.amqp) as connection:
        sender = connection.sender("own-thread")
        errors: list[ClientError] = []
        called = threading.Event()

        def call(answer: Any) -> None:
            try:
                sender.send("from the callback")
            except ClientError as error:
                errors.append(error)
            called.set()

        sender.send_nowait("x").add_done_callback(call)
        assert called.wait(JOIN_S)
        assert not errors or "outside of the client's loop" in str(errors[0])


def test_a_future_of_a_synchronous_sender_that_is_cancelled_disturbs_nobody(broker: Broker) -> None:
    with sync.connect(broker.amqp) as connection, connection.sender("futures/cancelled") as sender:
        answers = [sender.send_nowait(number) for number in range(10)]
        for answer in answers:
            answer.cancel()
        assert sender.send("after").accepted


def test_the_loop_of_another_thread_is_refused(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            with pytest.raises(ClientError, match="another one"):
                await asyncio.to_thread(asyncio.run, refused(connection))

    async def refused(connection: Connection) -> None:
        connection.sender("another")

    asyncio.run(test())
