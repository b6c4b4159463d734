"""A link whose attach is not answered yet, with the record of its name."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightrail.amqp.link import ATTACHING, Link
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.bound import Bound, Terms
from lightrail.model import conditions
from lightrail.namespace.records import Name, Right

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.shard_client.owners.owner import Owner


def right_of(link: Link) -> Right:
    """The right that a link needs at its name; the broker's role is the opposite of the client's."""
    return Right.LISTEN if link.is_sender else Right.SEND


@dataclass(slots=True)
class Attach:
    """One attach whose rights have been checked."""

    connection: "ClientConnection"
    link: Link
    record: Name
    number: int
    """Number of the link, unique in the lifetime of this process."""
    terms: Terms

    @property
    def frontend(self) -> "Frontend":
        return self.connection.frontend

    @property
    def open(self) -> bool:
        """Whether the client still waits for the answer."""
        return self.connection.is_open and self.link.state == ATTACHING

    def bind(self, bound: Bound) -> None:
        """Sets the object of the link; the guard watches the link's name."""
        link, connection = self.link, self.connection
        link.context = bound
        link.answers_close = self.terms.at_close is not None
        self.terms.hold = self.frontend.guard.hold(
            connection.client,
            right_of(link),
            self.record,
            lambda condition, description: connection.links.detach(link, condition, description),
        )
        connection.links.bind(bound, self.terms)

    async def place(self) -> "Owner | None":
        """The owner of the name, for a link that is opened before the loop turns.

        None if the client has disconnected in the meantime.

        Raises:
            ConditionError: the name was deleted in the meantime.
        """
        name = self.record.name
        found = await self.frontend.place(name)
        current = self.frontend.directory.get(name)
        if current.created != self.record.created or current.role is not self.record.role:
            self.frontend.forget_route(name)
            raise ConditionError(conditions.RESOURCE_DELETED, f"{name} was just deleted; attach again")
        return found if self.open else None
