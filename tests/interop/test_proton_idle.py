"""Idle time-outs with python-qpid-proton in both directions (2.4.5). Time is the subject: these take some."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message

from tests.support import wait
from tests.support.amqp.proton_blocking import connected, received
from tests.support.amqp.proton_reactor import Client
from tests.support.broker import ROOT, Broker

IDLE_S = 1.0
"""The shortest that the broker can be set to."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("idle") / "data", "--idle-timeout", "1s") as started:
        yield started


@pytest.mark.parametrize("heartbeat", [None, 0.4])
def test_a_quiet_connection_stays(broker: Broker, heartbeat: float | None) -> None:
    """Both sides send empty frames in time; with a heartbeat proton would close when ours did not come."""

    class Quiet(Client):
        def begin(self) -> None:
            self.after(2.5 * IDLE_S, self.wake)

        def wake(self) -> None:
            transport = self.connection.transport
            self.frames = (transport.frames_input, transport.frames_output)
            self.announced = transport.remote_idle_timeout
            self.done()

    client = Quiet(broker.amqp, heartbeat=heartbeat)
    client.run()
    assert client.announced == IDLE_S / 2
    came, went = client.frames
    assert went >= 2.5 * IDLE_S / client.announced
    if heartbeat is not None:
        assert came >= 2.5 * IDLE_S / heartbeat


def test_a_silent_client_is_closed_and_its_message_comes_back(broker: Broker, queue: str) -> None:
    script = Path(__file__).with_name("proton_hold.py")
    with connected(broker.amqp) as connection:
        connection.create_sender(queue).send(Message(body="held"))
    client = subprocess.Popen(
        [sys.executable, str(script), broker.amqp, queue], stdout=subprocess.PIPE, bufsize=0, cwd=ROOT
    )
    assert client.stdout is not None
    try:
        # No connection of this process meanwhile: while it waits for the other one, it would be silent, too.
        assert wait.line(client.stdout) == b"held\n"
        wait.freeze(client.pid)
        with connected(broker.amqp) as connection:
            (again,) = received(connection.create_receiver(queue), 1)
            assert (again.body, again.delivery_count) == ("held", 1)
        os.kill(client.pid, signal.SIGCONT)
        assert wait.line(client.stdout) == b"amqp:resource-limit-exceeded\n"
    finally:
        client.kill()
        client.wait()
        client.stdout.close()
