"""Locks of Azure Service Bus's clients by their tokens, over two connections."""

from typing import Any
from uuid import UUID

import pytest

from lightrail.amqp.performatives import Accepted, Disposition, Modified, Rejected, Transfer
from lightrail.model import conditions
from tests.support.amqp.bus_peer import DURABLE, VENDOR, Bus
from tests.support.amqp.frame_peer import Peer, value
from tests.support.amqp.transaction_peer import Client
from tests.support.broker import Broker
from tests.support.namespace import give


def outcome(peer: Peer, number: int, state: Any) -> Any:
    """The state in which the broker settles an outcome of the client."""
    peer.write(Disposition(role=True, first=number, settled=False, state=state))
    found = peer.expect(Disposition)
    assert (found.first, found.settled) == (number, True)
    return found.state


def token_of(transfer: Transfer) -> UUID:
    return UUID(bytes_le=bytes(transfer.delivery_tag or b""))


@pytest.mark.parametrize("commits", [None, True, False], ids=["alone", "commit", "rollback"])
def test_after_another_connection_settled_messages_their_receiver_has_lost_their_locks(
    begun: Peer, broker: Broker, queue: str, commits: bool | None
) -> None:
    give(broker.data, queue, role="queue", lock_duration=60)
    statuses = ("completed", "abandoned", "suspended", "defered")
    begun.put(queue, *[DURABLE + value(text) for text in (*statuses, "own")])
    begun.attach_receiver(queue, 1, properties=VENDOR)
    begun.flow(5, handle=1)
    tokens = [token_of(begun.delivery()[0]) for _ in range(5)]
    with Peer(broker.amqp) as other:
        other.open()
        other.begin()
        client = Client(other)
        bus = Bus(client, queue)
        txn = None if commits is None else client.declare()
        for token, status in zip(tokens, statuses, strict=False):
            assert bus.settle(token, status=status, txn_id=txn) == (200, "")
        if txn is not None:
            (client.commit if commits else client.roll_back)(txn)
        state: Any
        for number, state in enumerate(
            (Accepted(), Modified(delivery_failed=True), Accepted(), Modified(undeliverable_here=True))
        ):
            found = outcome(begun, number, state)
            if commits is False:
                assert found == state
                continue
            assert isinstance(found, Rejected)
            assert found.error is not None
            assert found.error.condition == conditions.MESSAGE_LOCK_LOST
            assert bus.settle(tokens[number])[0] == 410
        assert outcome(begun, 4, Accepted()) == Accepted()
