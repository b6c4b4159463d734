"""A client of transactions that speaks in frames: a link to the coordinator beside the links of a peer."""

from typing import Any

from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Flow,
    TransactionalState,
)
from tests.support.amqp.frame_peer import Peer, sender, transfers, value

COORDINATOR = 9
"""Handle of the link to the coordinator."""


class Client:
    """A peer with a link to the coordinator on handle 9; numbers deliveries of its session."""

    def __init__(self, peer: Peer, **fields: Any) -> None:
        self.peer = peer
        self.next = 0
        peer.write(sender(None, COORDINATOR, target=Coordinator(), **fields))
        self.answer = peer.expect(Attach)
        self.credit = peer.expect(Flow).link_credit

    def request(self, body: Any, **fields: Any) -> None:
        """A message to the coordinator."""
        self.peer.send(transfers(COORDINATOR, [value(body)], self.next, **fields))
        self.next += 1

    def outcome(self) -> Any:
        """The state of the next disposition for what this client sent; flows before it are passed over."""
        while True:
            found = self.peer.read().body
            if type(found) is Flow:
                continue
            assert type(found) is Disposition, f"expected Disposition, found {found!r}"
            assert found.role is True
            assert found.settled
            return found.state

    def declare(self) -> bytes:
        self.request(Declare())
        state = self.outcome()
        assert type(state) is Declared
        return state.txn_id

    def discharge(self, txn_id: bytes, fail: bool = False) -> Any:
        self.request(Discharge(txn_id=txn_id, fail=fail))
        return self.outcome()

    def send_unanswered(self, txn_id: bytes, body: Any) -> None:
        """A message in a transaction whose provisional outcome is read by `discharge_after`."""
        state = TransactionalState(txn_id=txn_id)
        self.peer.send(transfers(0, [value(body)], self.next, state=state))
        self.next += 1

    def discharge_after(self, outcomes: int, txn_id: bytes) -> Any:
        """The answer to a discharge behind so many other outcomes."""
        self.request(Discharge(txn_id=txn_id))
        return [self.outcome() for _ in range(outcomes + 1)][-1]

    def commit(self, txn_id: bytes) -> None:
        assert type(self.discharge(txn_id)) is Accepted

    def roll_back(self, txn_id: bytes) -> None:
        assert type(self.discharge(txn_id, True)) is Accepted

    def send(self, txn_id: bytes, *bodies: Any, handle: int = 0, head: bytes = b"") -> None:
        """Messages in a transaction, each answered with its provisional outcome; `head` is their header."""
        for body in bodies:
            state = TransactionalState(txn_id=txn_id)
            self.peer.send(transfers(handle, [head + value(body)], self.next, state=state))
            self.next += 1
            found = self.outcome()
            assert type(found) is TransactionalState
            assert found.txn_id == txn_id
            assert type(found.outcome) is Accepted


def settle(
    peer: Peer, txn_id: bytes, first: int, last: int, *, settled: bool = True, outcome: Any = None
) -> None:
    state = TransactionalState(txn_id=txn_id, outcome=outcome or Accepted())
    peer.write(Disposition(role=True, first=first, last=last, settled=settled, state=state))
