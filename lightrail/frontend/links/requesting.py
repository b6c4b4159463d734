"""Requesting: links whose messages are requests to a node, some of which may be part of a transaction."""

from typing import Any, Protocol

from lightrail.amqp.events import Transfers
from lightrail.frontend.links.bound import Bound
from lightrail.frontend.links.deliveries import ConsumerLink


class OpenTransaction(Protocol):
    """A transaction, as requests use it: frontend/transactions/transaction.py."""

    id: bytes

    @property
    def refusal(self) -> str:
        """Why it accepts no more work; empty if it does."""

    def begin_request(self) -> None:
        """A request is part of it, and can't be answered yet."""

    def end_request(self) -> None:
        """That request is executed."""

    def fail(self, condition: str, description: str) -> None:
        """Marks it as failed, so that it can only be rolled back."""

    def retire_delivery(self, consumer: ConsumerLink, number: int, outcome: Any) -> None:
        """Adds an unsettled delivery of a link, with its outcome."""

    def retire_lock(self, queue: str, key: str, sequence: int, outcome: Any) -> None:
        """Adds a deferred message that is locked under a key, with its outcome."""

    def has_lock(self, key: str, sequence: int) -> bool:
        """Whether it settles this deferred message already."""


class RequestingLink(Bound):
    """The object of a link on which the client sends requests."""

    __slots__ = ()

    @property
    def is_transactional(self) -> bool:
        """Whether requests may be part of a transaction."""
        raise NotImplementedError

    def transacted(self, event: Transfers, transaction: OpenTransaction) -> None:
        """The client sends requests that are part of a transaction."""
        raise NotImplementedError
