"""The links that a connection opens for its application, from the arguments of its methods."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightrail.amqp.performatives import Source
from lightrail.client.management import NODE, Management
from lightrail.client.receiver import CREDIT, Receiver
from lightrail.client.requests import Requester
from lightrail.client.resuming import resume_of
from lightrail.client.resuming_receiver import ResumingReceiver
from lightrail.client.resuming_sender import ResumingSender
from lightrail.client.sender import WINDOW, Sender
from lightrail.client.sources import check_options, source_of
from lightrail.client.transaction import Transaction, TransactionLink

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.links import LinkType


class LinkFactory:
    """The part of a connection that makes its links.

    Args:
        name: the container-id.
        is_named: whether the application chose the name.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, name: str, *, is_named: bool) -> None:
        self._name = name
        self._is_named = is_named
        self._numbers = 0
        self._coordinator: TransactionLink | None = None
        """Made with the first transaction."""

    def sender(
        self,
        address: str | None = None,
        *,
        window: int = WINDOW,
        name: str | None = None,
        presettled: bool = False,
        resume: int | None = None,
        durable: bool = True,
    ) -> Sender:
        """A sender to an address; `await` its `opened`, or use it in `async with`.

        Args:
            address: None where each message has its own in `to`.
            window: messages without an outcome from which on `send` waits.
            name: of the link, by which the broker identifies it after a loss.
            presettled: messages are sent settled, at most once, without outcomes.
            resume: seconds for which the broker keeps the state of the link after a loss, so that it stores
                each message once (exactly once; LightRail does). None: it does not.
            durable: with resume, it keeps the state on disk, also over its restart.
        """
        excluded = {"presettled": presettled, "no address": address is None}
        wanted, name = resume_of(resume, durable, excluded), name or self._number()
        if wanted is not None:
            return self._add(ResumingSender(self._owner, address, window=window, name=name, resume=wanted))
        return self._add(Sender(self._owner, address, window=window, name=name, presettled=presettled))

    def receiver(
        self,
        address: str | None = None,
        *,
        credit: int = CREDIT,
        browse: bool = False,
        presettled: bool = False,
        name: str | None = None,
        selector: str | None = None,
        sql: str | None = None,
        subject: str | None = None,
        group: str | None = None,
        properties: Mapping[str, Any] | None = None,
        filters: Mapping[str, Any] | None = None,
        subscription: str | None = None,
        shared: bool = False,
        dynamic: bool = False,
        renew_for: float = 0.0,
        resume: int | None = None,
        durable: bool = True,
    ) -> Receiver:
        """A receiver of an address; `await` its `opened`, or use it in `async with`.

        It receives messages that pass all filters, and fails where the broker does not apply one of them.

        Args:
            credit: messages that the broker sends ahead; 0: those that `Receiver.grant` asks for.
            browse: receives copies of messages that stay in the queue.
            presettled: at most once: messages on their way at the loss of the connection are lost.
            name: of the link, by which the broker identifies it after a loss.
            selector: of JMS, as "colour = 'red' AND size > 3".
            sql: an expression of AMQP Filter Expressions 1.0.
            subject: a pattern of words, as orders.*.created or orders.#.
            group: messages of this group-id.
            properties: application-properties with equal values.
            filters: others, by name; described values as AMQP has them (messaging 3.5.8).
            subscription: name of a durable subscription at a router, which stores messages until they are
                received, and ends with `Receiver.unsubscribe`. It belongs to the `name` of the connection.
            shared: receivers of any connection share the subscription of that name.
            dynamic: the broker makes a node that lives as long as the link, whose name becomes `address`.
            renew_for: seconds for which locks of unsettled messages are renewed, for handlers that may take
                longer than the queue's lock_duration. 0: not at all.
            resume: seconds for which unsettled messages stay locked for it after a loss, and can be settled
                when it is connected again, so that none is received twice (exactly once; LightRail does).
            durable: with resume, also over a restart of the broker.
        """
        # Long for its arguments, which are the public interface.
        check_options(credit, presettled, renew_for, subscription, shared, self._is_named)
        excluded = {
            "presettled": presettled,
            "browse": browse,
            "dynamic": dynamic,
            "subscription": subscription,
        }
        wanted = resume_of(resume, durable, excluded)
        if subscription is not None:
            # Of the name of a link to a shared subscription the broker ignores the part from | on.
            name = f"{subscription}|{self._number()}" if shared else subscription
        source = source_of(
            address,
            browse=browse,
            dynamic=dynamic,
            selector=selector,
            sql=sql,
            subject=subject,
            group=group,
            properties=properties,
            filters=filters,
            durable=subscription is not None,
            shared=shared,
        )
        name = name or self._number()
        if wanted is None:
            return self._add(
                Receiver(
                    self._owner,
                    address,
                    credit=credit,
                    name=name,
                    source=source,
                    presettled=presettled,
                    renew_for=renew_for,
                )
            )
        return self._add(
            ResumingReceiver(
                self._owner,
                address,
                credit=credit,
                name=name,
                source=source,
                renew_for=renew_for,
                resume=wanted,
            )
        )

    def transaction(self) -> Transaction:
        """A transaction, for `async with`: all that is sent and settled in it takes effect at its end, or
        nothing.

        Several may be open at the same time. Each ends with the connection to the broker.
        """
        if self._coordinator is None or self._coordinator.closed:
            self._coordinator = self._add(TransactionLink(self._owner, self._number()))
        return Transaction(self._coordinator)

    def requester(self, address: str) -> Requester:
        """Sends requests to an address, receives answers; `await` its `opened`, or use it in `async with`."""
        return Requester(self.loop, self.sender(address), self.receiver(dynamic=True, presettled=True))

    def node(self, address: str) -> Requester:
        """As `requester`, for a node of the broker that answers to a receiver from it, without a queue."""
        name = self._number()
        source = Source(address=address)
        receiver = Receiver(
            self._owner, address, credit=CREDIT, name=name, source=source, target=name, presettled=True
        )
        return Requester(self.loop, self.sender(address), self._add(receiver), name)

    def management(self) -> Management:
        """Reads and changes a LightRail broker; use it in `async with`."""
        return Management(self.requester(NODE))

    # --- inside ------------------------------------------------------------------------------------------

    def _number(self) -> str:
        self._numbers += 1
        return f"{self._name}-{self._numbers}"

    @property
    def _owner(self) -> "Connection":
        """The connection, for its links."""
        raise NotImplementedError

    def _add(self, link: "LinkType") -> "LinkType":
        """Opens a link. Raises ClosedError where the connection has ended, ClientError as Links.add."""
        raise NotImplementedError
