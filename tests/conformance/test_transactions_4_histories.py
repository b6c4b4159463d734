"""No order of ends, steals, settlements, partial messages, deletions and discharges commits half of them.

Random histories of one client, each a connection to a running broker. After a confirmed commit every message
that the client sent in the transaction is stored, and every settlement has had its effect; after a refusal or
a rollback there is nothing of either.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    AmqpError,
    Begin,
    Detach,
    Discharge,
    Disposition,
    End,
    Modified,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from lightrail.amqp.values import Symbol
from tests.support.amqp.frame_peer import WINDOW, Peer, frame, receiver, value
from tests.support.amqp.transaction_peer import Client
from tests.support.broker import Broker
from tests.support.http_client import Http

HISTORIES = 60
MESSAGES = 6
OUTCOMES = (Accepted(), Released(), Rejected(), Modified(delivery_failed=True))
ENDS = ("close", "detach", "error", "steal", "end")


@dataclass
class Txn:
    id: bytes
    sent: list[str] = field(default_factory=list)
    settled: dict[int, Any] = field(default_factory=dict)
    """Outcomes, by the number of the message, which is its delivery-id."""
    is_partial: bool = False
    is_spoiled: bool = False
    """Whether it can't be committed."""


class History:
    """What one client does, and knows of its deliveries."""

    def __init__(self, peer: Peer, http: Http, queue: str, seed: int) -> None:
        self.random = Random(seed)
        self.peer = peer
        self.http = http
        self.queue = queue
        self.out = f"{queue}/out"
        self.steps: list[str] = []
        peer.put(queue, *(value(str(number)) for number in range(MESSAGES)))
        peer.put(self.out, value("first"))
        peer.open(container_id=queue)
        peer.begin()
        self.client = Client(peer)
        peer.attach_sender(self.out)
        peer.begin(1)
        peer.attach_receiver(queue, handle=1, channel=1)
        peer.flow(MESSAGES, handle=1, channel=1)
        for _ in range(MESSAGES):
            peer.delivery()
        self.mine = set(range(MESSAGES))
        """Unsettled deliveries of the client, by id; messages have the same numbers."""
        self.is_attached = True
        self.is_deleted = False
        self.sent = 0

    # --- steps -----------------------------------------------------------------------------------------

    def run(self) -> None:
        txn = Txn(self.client.declare())
        for _ in range(self.random.randint(1, 7)):
            step = self.random.choice(
                (
                    self.send,
                    self.settle,
                    self.settle,
                    self.settle,
                    self.plain,
                    self.end,
                    self.part,
                    self.delete,
                )
            )
            step(txn)
        self.discharge(txn)

    def send(self, txn: Txn) -> None:
        if txn.is_partial:
            return
        name = f"sent {self.sent}"
        settled = self.random.random() < 0.5
        self.steps.append(f"send {name} settled={settled}")
        begin = self._transfer(txn, settled=settled)
        self.peer.send(frame(begin, value(name)))
        self.sent += 1
        txn.sent.append(name)

    def part(self, txn: Txn) -> None:
        """The first or the second frame of a message."""
        message = value("in parts")
        if txn.is_partial:
            self.steps.append("the rest of a message")
            last = Transfer(handle=0, state=TransactionalState(txn_id=txn.id))
            self.peer.send(frame(last, message[4:]))
            txn.sent.append("in parts")
        elif self.random.random() < 0.4:
            self.steps.append("a message in part")
            self.peer.send(frame(self._transfer(txn, settled=True, more=True), message[:4]))
        else:
            return
        txn.is_partial = not txn.is_partial

    def _transfer(self, txn: Txn, *, settled: bool, more: bool = False) -> Transfer:
        id, self.client.next = self.client.next, self.client.next + 1
        state = TransactionalState(txn_id=txn.id)
        return Transfer(
            handle=0, delivery_id=id, delivery_tag=b"%d" % id, settled=settled, more=more, state=state
        )

    def settle(self, txn: Txn) -> None:
        """Outcomes in the transaction, also of deliveries that are settled, unknown, or returned."""
        first = self.random.randrange(MESSAGES + 1)
        last = min(MESSAGES, first + self.random.choice((0, 0, 1, 2)))
        outcome = self.random.choice(OUTCOMES)
        settled = self.random.random() < 0.6
        self.steps.append(f"settle {first}..{last} {type(outcome).__name__} settled={settled}")
        state = TransactionalState(txn_id=txn.id, outcome=outcome)
        self.peer.write(
            Disposition(role=True, first=first, last=last, settled=settled, state=state), channel=1
        )
        for id in range(first, last + 1):
            if id in txn.settled and id not in self.mine:
                continue  # Settled in this transaction already: the first outcome stands.
            if id in txn.settled or id in self.mine:
                txn.settled[id] = outcome
            else:
                txn.is_spoiled = True
            if settled:
                self.mine.discard(id)

    def plain(self, txn: Txn) -> None:
        """An outcome outside of the transaction."""
        if self.random.random() < 0.5:
            id = self.random.randrange(MESSAGES)
            self.steps.append(f"release {id}")
            self.peer.write(Disposition(role=True, first=id, settled=True, state=Released()), channel=1)
            txn.is_spoiled |= id in self.mine and id in txn.settled
            self.mine.discard(id)

    def end(self, txn: Txn) -> None:
        """The receiving link ends, in one of many ways."""
        if not self.is_attached:
            return
        how = self.random.choice(ENDS)
        self.steps.append(how)
        self.is_attached = False
        self.mine.clear()
        txn.is_spoiled |= how in ("error", "steal") and bool(txn.settled)
        write = self.peer.write
        if how == "end":
            write(End(), channel=1)
            write(Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW), channel=1)
        elif how == "steal":
            write(receiver(self.queue, handle=2, name="r1"), channel=0)
            write(Detach(handle=1, closed=True), channel=1)
        else:
            error = AmqpError(condition=Symbol("app:error")) if how == "error" else None
            write(Detach(handle=1, closed=how != "detach", error=error), channel=1)

    def delete(self, _: Txn) -> None:
        """Somebody deletes the queue."""
        if self.is_deleted or self.random.random() < 0.8:
            return
        self.steps.append("delete")
        self.is_deleted = True
        assert self.http("DELETE", f"/{self.queue}/!policy").status in (200, 204)

    def discharge(self, txn: Txn) -> None:
        fail = self.random.random() < 0.2
        self.steps.append("roll back" if fail else "commit")
        number = self.client.next
        self.client.request(Discharge(txn_id=txn.id, fail=fail))
        accepted = self._answer(number)
        if fail:
            assert accepted, self.steps
        elif not self.is_deleted:
            assert accepted is not (txn.is_spoiled or txn.is_partial), self.steps
        self.check(txn, accepted and not fail)

    def _answer(self, number: int) -> bool:
        """Whether the discharge was accepted; other frames are passed over."""
        while True:
            found = self.peer.read()
            body = found.body
            if type(body) is Detach and body.handle == 0 and found.channel == 0:
                return False
            is_mine = type(body) is Disposition and body.role is True and found.channel == 0
            if is_mine and body.first <= number <= (body.first if body.last is None else body.last):
                return type(body.state) is Accepted

    # --- afterwards ------------------------------------------------------------------------------------

    def check(self, txn: Txn, committed: bool) -> None:
        self.peer.socket.close()
        history = f"{self.steps}"
        assert self._stored(self.out) == ["first", *(txn.sent if committed else ())], history
        if self.is_deleted:
            assert not (committed and txn.settled), history
            return
        ready, dead = self._stored(self.queue), self._stored(f"{self.queue}/$dlq")
        for number in range(MESSAGES):
            outcome = type(txn.settled[number]) if committed and number in txn.settled else Released
            assert ready.count(str(number)) == (outcome in (Released, Modified)), (number, history)
            assert dead.count(str(number)) == (outcome is Rejected), (number, history)

    def _stored(self, queue: str) -> list[str]:
        """All messages of a queue, delivered ones as well."""
        found = self.http("GET", f"/{queue}/!messages?from=0&count=100")
        return [each["body"]["text"] for each in found.json()["messages"]] if found.status == 200 else []


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_history_leaves_all_of_a_committed_transaction_or_nothing(broker: Broker, seed: int) -> None:
    with Peer(broker.amqp) as peer, Http(broker.http) as http:
        History(peer, http, f"histories/q{seed}", seed).run()
