"""A client of Azure Service Bus that speaks in frames: receivers of sessions, and requests to $management."""

from typing import Any
from uuid import UUID

from lightrail.amqp.messages import Message, read_message, write_message
from lightrail.amqp.performatives import Attach, Flow, Source, Target, TransactionalState
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Array, Described, Long, Symbol, UInt
from tests.support.amqp.frame_peer import Peer, receiver, transfers
from tests.support.amqp.transaction_peer import Client

REQUESTS, ANSWERS = 5, 6
"""Handles of the links to $management."""
VENDOR = {Symbol("com.microsoft:receiver-name"): "r"}
"""Properties of the attach by which a client is one of Azure's."""
DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"
"""A header that says durable."""
SESSION_FILTER = Symbol("com.microsoft:session-filter")


class Bus:
    """The requests of a client to the $management of one queue."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client = client
        self.peer = client.peer
        self.application: dict[str, Any] = {}
        """Further application properties of requests."""
        node = f"{queue}/$management"
        self.peer.attach_sender(node, REQUESTS)
        self.peer.attach_receiver(node, ANSWERS, target=Target(address="me"))
        self.peer.flow(1_000, handle=ANSWERS)

    def send(self, operation: str, body: Any, txn_id: bytes | None = None, **fields: Any) -> None:
        """A request, which is settled as Azure's clients do, and part of a transaction or of none."""
        application = {"operation": f"com.microsoft:{operation}", **self.application}
        request = Message(Properties(message_id="request", reply_to="me"), application, body)
        state = None if txn_id is None else TransactionalState(txn_id=txn_id)
        given = {"settled": True, "state": state} | fields
        self.peer.send(transfers(REQUESTS, [write_message(request)], self.client.next, **given))
        self.client.next += 1

    def answer(self) -> tuple[int, dict[str, Any], Any]:
        """Status, application properties and body of the next answer."""
        # Many requests get credit for more of them.
        found = read_message(self.peer.delivery(Flow)[1])
        return found.application["statusCode"], dict(found.application), found.body

    def ask(self, operation: str, body: Any, txn_id: bytes | None = None) -> tuple[int, dict[str, Any], Any]:
        self.send(operation, body, txn_id)
        return self.answer()

    def receive_deferred(self, *numbers: int, **fields: Any) -> list[UUID]:
        """Locks deferred messages; their lock tokens."""
        found = self.lock_deferred(*numbers, **fields)
        assert found is not None
        return found

    def lock_deferred(self, *numbers: int, **fields: Any) -> list[UUID] | None:
        """The same; None if one of them is not deferred, or locked."""
        body = {"sequence-numbers": Array([Long(each) for each in numbers], 0x81), **fields}
        status, _, found = self.ask("receive-by-sequence-number", body | {"receiver-settle-mode": UInt(1)})
        return [each["lock-token"] for each in found["messages"]] if status == 200 else None

    def settle(
        self, *tokens: UUID, txn_id: bytes | None = None, status: str = "completed", **fields: Any
    ) -> tuple[int, str]:
        """Status and condition of update-disposition."""
        body = {"lock-tokens": Array(list(tokens), 0x98), "disposition-status": status, **fields}
        code, application, _ = self.ask("update-disposition", body, txn_id)
        return code, str(application.get("errorCondition", ""))


def accept_session(peer: Peer, queue: str, session: str | None, handle: int = 1) -> Attach:
    """A receiver of a session, without credit."""
    source = Source(address=queue, filter={SESSION_FILTER: Described(Symbol(str(SESSION_FILTER)), session)})
    peer.write(receiver(None, handle, source=source, properties=VENDOR))
    return peer.expect(Attach)


def of_session(session: str, body: str) -> bytes:
    """A durable message of a session."""
    return DURABLE + write_message(Message(Properties(group_id=session), {}, body))
