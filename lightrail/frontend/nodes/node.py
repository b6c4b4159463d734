"""What answers requests at an address, such as $management."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lightrail.amqp.messages import Message

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.transactions.transaction import Transaction


class Node(Protocol):
    """Answers requests at an address."""

    @property
    def large(self) -> tuple[bytes, ...]:
        """Names of operations whose answers may be large; a request of one of them contains its name."""

    def silent(self, payload: bytes) -> bool:
        """Whether this request has only an outcome, and no answer."""

    def wait_ms(self, payload: bytes) -> int | None:
        """How long the client waits for the answer to a request, in milliseconds; None if it is unknown."""

    async def answer(self, connection: "ClientConnection", payload: bytes) -> Message | None:
        """The answer without its address and correlation-id; None for a request that only has an outcome.

        Raises:
            ConditionError: the request is rejected.
        """


@runtime_checkable
class TransactionalNode(Protocol):
    """A node whose requests may be part of a transaction."""

    async def answer_in(
        self, connection: "ClientConnection", payload: bytes, transaction: "Transaction"
    ) -> Message:
        """The answer to a request that takes effect with the transaction; errors make that one fail."""
