"""Requesting: links whose messages are requests to a node, some of which may be part of a transaction."""

from typing import TYPE_CHECKING

from lightrail.amqp.events import Transfers
from lightrail.frontend.links.bound import Bound

if TYPE_CHECKING:
    from lightrail.frontend.transactions.transaction import Transaction


class RequestingLink(Bound):
    """The object of a link on which the client sends requests."""

    __slots__ = ()

    @property
    def is_transactional(self) -> bool:
        """Whether requests may be part of a transaction."""
        raise NotImplementedError

    def transacted(self, event: Transfers, transaction: "Transaction") -> None:
        """The client sends requests that are part of a transaction."""
        raise NotImplementedError
