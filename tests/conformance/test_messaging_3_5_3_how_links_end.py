"""What becomes of unsettled deliveries when their link ends, by who ended it and how (ADR 5)."""

from collections.abc import Callable
from typing import Any

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Close,
    Detach,
    End,
    Modified,
    Source,
)
from lightrail.amqp.values import Symbol
from tests.conformance.test_messaging_3 import FAILED, rest, settle
from tests.support.amqp.frame_peer import Peer, receiver, value

PREFETCHED = 3
ROUNDS = 10
"""As many as there are failed deliveries before a message becomes a dead letter, by default."""

ERROR = AmqpError(condition=Symbol("example:broken"))

IN_ORDER: dict[str, Any] = {
    "detach, closed": Detach(handle=0, closed=True),
    "detach": Detach(handle=0, closed=False),
    "end": End(),
    "close": Close(),
}
WITH_ERROR: dict[str, Any] = {
    "detach, closed": Detach(handle=0, closed=True, error=ERROR),
    "detach": Detach(handle=0, closed=False, error=ERROR),
    "end": End(error=ERROR),
    "close": Close(error=ERROR),
}


def protocol_error(peer: Peer) -> None:
    """A second attach on a handle in use ends the connection."""
    peer.write(receiver("elsewhere", handle=0, name="another"))
    peer.expect(Close)


FAILURES: dict[str, Callable[[Peer], None]] = {
    "socket": lambda peer: peer.socket.close(),
    "protocol error": protocol_error,
    **{name: lambda peer, body=body: peer.write(body) for name, body in WITH_ERROR.items()},  # type: ignore[misc]
}


def received(begun: Peer, queue: str, count: int = PREFETCHED, **fields: Any) -> Peer:
    """Another connection, which has received the queue's messages on handle 0 and settled none."""
    peer = Peer("{}:{}".format(*begun.socket.getpeername()))
    peer.open()
    peer.begin()
    peer.attach_receiver(queue, **fields)
    peer.flow(count)
    for _ in range(count):
        peer.delivery()
    return peer


def ended(peer: Peer, body: Any) -> None:
    """Writes a detach, end or close, and reads the answer, before which the deliveries have returned."""
    peer.write(body)
    while type(peer.read().body) is not type(body):
        pass


@pytest.mark.parametrize("default", [None, FAILED, Modified(delivery_failed=True, undeliverable_here=True)])
@pytest.mark.parametrize("how", IN_ORDER)
def test_an_end_in_order_counts_no_failure_whatever_the_default_outcome(
    begun: Peer, queue: str, how: str, default: Any
) -> None:
    begun.put(queue, *(value(number) for number in range(PREFETCHED)))
    source = Source(address=queue, default_outcome=default)
    for _ in range(ROUNDS):
        with received(begun, queue, source=source) as other:
            ended(other, IN_ORDER[how])
    assert rest(begun, queue) == [(0, value(number)) for number in range(PREFETCHED)]


def test_an_end_in_order_keeps_the_outcomes_before_it(begun: Peer, queue: str) -> None:
    begun.put(queue, *(value(number) for number in range(PREFETCHED)))
    with received(begun, queue) as other:
        settle(other, Accepted(), 0)
        settle(other, FAILED, 1)
        ended(other, Close())
    assert rest(begun, queue) == [(1, value(1)), (0, value(2))]


def dead_letter(peer: Peer, queue: str) -> bytes:
    """The first dead letter, which may have to be awaited."""
    peer.attach_receiver(f"{queue}/$dlq", handle=3, name="dead")
    peer.flow(10, handle=3)
    return peer.delivery()[1]


@pytest.mark.parametrize("how", FAILURES)
def test_a_client_that_fails_again_and_again_brings_the_oldest_to_the_dead_letters_and_no_neighbour(
    begun: Peer, queue: str, how: str
) -> None:
    begun.put(queue, *(value(number) for number in range(PREFETCHED)))
    for _ in range(ROUNDS):
        # It receives all of them, as soon as the broker has noticed the former failure.
        with received(begun, queue) as other:
            FAILURES[how](other)
    assert dead_letter(begun, queue).endswith(value(0))
    # They may have been worked on: they are marked, and are not counted.
    assert rest(begun, queue) == [(1, value(number)) for number in range(1, PREFETCHED)]


def test_the_end_of_a_link_that_may_be_resumed_counts_as_that_of_any_link(begun: Peer, queue: str) -> None:
    begun.put(queue, *(value(number) for number in range(PREFETCHED)))
    source = Source(address=queue, timeout=60)
    for how in (IN_ORDER, WITH_ERROR):
        for _ in range(ROUNDS):
            with received(begun, queue, source=source, name="kept") as other:
                ended(other, how["detach, closed"])
    assert dead_letter(begun, queue).endswith(value(0))
    assert rest(begun, queue) == [(1, value(number)) for number in range(1, PREFETCHED)]


def test_a_suspended_link_that_its_client_does_not_resume_counts_the_failure_that_ended_it(
    begun: Peer, queue: str
) -> None:
    """Each attach without the unsettled deliveries gives the former attach up."""
    begun.put(queue, *(value(number) for number in range(PREFETCHED)))
    source = Source(address=queue, timeout=60)
    for _ in range(ROUNDS):
        with received(begun, queue, source=source, name="kept") as other:
            ended(other, WITH_ERROR["close"])
    with received(begun, queue, PREFETCHED - 1, source=source, name="kept") as other:
        ended(other, IN_ORDER["detach, closed"])
    assert dead_letter(begun, queue).endswith(value(0))
    assert rest(begun, queue) == [(1, value(number)) for number in range(1, PREFETCHED)]


def test_an_end_by_the_broker_counts_no_failure(begun: Peer, queue: str) -> None:
    """Another attach of the link ends the former one (2.6.1)."""
    begun.put(queue, *(value(number) for number in range(PREFETCHED)))
    for _ in range(ROUNDS):
        with received(begun, queue, name="one") as other:
            other.write(receiver(queue, handle=1, name="one"))
            # The answer to the new attach is written before or after it.
            while type(found := other.read().body) is not Detach:
                pass
            assert found.error is not None
            assert str(found.error.condition) == "amqp:link:stolen"
            ended(other, Close())
    # They are marked, as the client may have settled them meanwhile, and are not counted.
    assert rest(begun, queue) == [(1, value(number)) for number in range(PREFETCHED)]
