"""A container's only connection over several frontends of an installation, with kill -9."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp.performatives import Close, Open
from lightrail.amqp.values import Symbol, UInt
from tests.support import wait
from tests.support.amqp.frame_peer import AMQP, Peer, frame
from tests.support.broker import Broker
from tests.support.http_client import Http

CAPABILITY = Symbol("sole-connection-for-container")
POLICY = Symbol("sole-connection-enforcement-policy")
FAILED = Symbol("amqp:connection-establishment-failed")
FRONTENDS = 3
TRIES = 64


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data: Path = tmp_path_factory.mktemp("sole") / "data"
    with Broker(data, "--frontends", str(FRONTENDS)) as running:
        yield running


def opened(broker: Broker, container: str, policy: int) -> tuple[Peer, bool]:
    """A peer, and whether its connection was let in."""
    with contextlib.ExitStack() as until_open:
        peer = until_open.enter_context(Peer(broker.amqp))
        peer.send(
            AMQP,
            frame(
                Open(
                    container_id=container,
                    desired_capabilities=[CAPABILITY],
                    properties={POLICY: UInt(policy)},
                )
            ),
        )
        assert peer.header() == AMQP
        let_in = FAILED not in (peer.expect(Open).properties or {})
        until_open.pop_all()
    return peer, let_in


def frontend_of(broker: Broker, container: str) -> int:
    """The number of the frontend that has the container's connection, when a former one has ended."""

    def alone() -> list[dict[str, Any]]:
        found: dict[str, list[dict[str, Any]]] = http("GET", f"/!connections?container={container}").json()
        return found["connections"] if len(found["connections"]) == 1 else []

    with Http(broker.http) as http:
        [found] = wait.until(alone, f"{container} has one connection")
    return int(found["id"].partition(".")[0].rpartition("-")[2])


def test_no_frontend_lets_a_second_one_in(broker: Broker) -> None:
    """The kernel chooses the frontend: of so many tries, each has some."""
    with contextlib.ExitStack() as stack:
        first, let_in = opened(broker, "refused", 0)
        stack.enter_context(first)
        assert let_in
        for _ in range(TRIES):
            second, let_in = opened(broker, "refused", 0)
            with second:
                assert not let_in
                second.expect(Close)


def test_the_former_one_is_closed_at_whatever_frontend_it_is(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        former, _ = opened(broker, "closed", 1)
        stack.enter_context(former)
        found: set[int] = set()
        while len(found) < FRONTENDS:
            latest, let_in = opened(broker, "closed", 1)
            stack.enter_context(latest)
            assert let_in
            error = former.expect(Close).error
            assert error is not None
            assert error.condition == "amqp:resource-locked"
            former.write(Close())
            former.expect_end()
            found.add(frontend_of(broker, "closed"))
            former = latest


def test_a_container_whose_frontend_was_killed_gets_in_again(broker: Broker) -> None:
    first, let_in = opened(broker, "killed", 0)
    with first:
        assert let_in
        pid = broker.pid("frontend", frontend_of(broker, "killed"))
        os.kill(pid, signal.SIGKILL)
        wait.until(
            lambda: wait.gone(pid), "the end of the frontend"
        )  # Until then the kernel chooses its socket.

        def again() -> bool:
            second, let_in = opened(broker, "killed", 0)
            with second:
                return let_in

        wait.until(again, "the container gets in again")
