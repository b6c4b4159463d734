"""The guard: which open links use which names, and which of them must go when names or rights change.

Rights are asked for at the attach, and again whenever the directory says that a name, a policy or the rights
of a user changed: a link that lost its right is detached, one whose name was deleted as well.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lightrail.frontend.routes import Refused
from lightrail.model import conditions, names
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import ONLY_ITS_CONNECTION, Forbidden, demand

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

Lose = Callable[[str, str], None]
"""Called with a condition and a sentence when a use has to end; it must let go of its hold."""


class Hold:
    """One use of a name by a link: who, what for, and how to end it."""

    __slots__ = ("connection", "lose", "name", "record", "right")

    def __init__(self, connection: "ClientConnection", right: Right, record: Name, lose: Lose) -> None:
        self.connection = connection
        self.right = right
        self.name = record.name
        self.record = record
        self.lose = lose


class Guard:
    """All uses of names in one frontend.

    Args:
        unused: called with a name when its last use here has ended.
    """

    def __init__(self, directory: Directory, unused: Callable[[str], None]) -> None:
        self._directory = directory
        self._unused = unused
        self._by_name: dict[str, dict[Hold, None]] = {}
        self._by_connection: dict[ClientConnection, dict[Hold, None]] = {}
        directory.listen(self._changed)

    def demand(self, connection: "ClientConnection", right: Right, record: Name) -> None:
        """Raises Refused unless the connection may do this with a name.

        Who knows the name of a temporary queue or router may send to it (that is what reply-to is for). Only
        the connection that made it may listen at it, whoever else its user has connected.
        """
        if names.is_temporary(record.name):
            made = self._directory.find(names.owner(record.name))
            if right is Right.LISTEN and made is not None and not connection.owns(made.owner):
                raise Refused(
                    conditions.UNAUTHORIZED_ACCESS, ONLY_ITS_CONNECTION.format(name=record.name)
                )
            return
        try:
            demand(self._directory, connection.caller_for(record.name), right, record)
        except Forbidden as error:
            raise Refused(conditions.UNAUTHORIZED_ACCESS, str(error)) from None

    def hold(self, connection: "ClientConnection", right: Right, record: Name, lose: Lose) -> Hold:
        """A link uses a name from now on."""
        hold = Hold(connection, right, record, lose)
        self._by_name.setdefault(hold.name, {})[hold] = None
        self._by_connection.setdefault(connection, {})[hold] = None
        return hold

    def release(self, hold: Hold) -> None:
        """It does no longer; once is enough, more do nothing."""
        group = self._by_name.get(hold.name)
        if group is None or hold not in group:
            return
        del group[hold]
        of_connection = self._by_connection[hold.connection]
        del of_connection[hold]
        if not of_connection:
            del self._by_connection[hold.connection]
        if not group:
            del self._by_name[hold.name]
            self._unused(hold.name)

    def recheck(self, connection: "ClientConnection") -> None:
        """The connection speaks for another caller, or a lesser one, than before."""
        self._check(self._by_connection.get(connection, ()))

    def _all(self) -> Iterable[Hold]:
        return [hold for group in self._by_name.values() for hold in group]

    def _changed(self, changes: Changes) -> None:
        for name in changes.names:
            for each in (name, names.dead_letter_name(name)):
                self._check(self._by_name.get(each, ()))
        if changes.users:
            self._check(
                hold for hold in self._all() if hold.connection.caller_for(hold.name).user in changes.users
            )

    def _check(self, holds: Iterable[Hold]) -> None:
        for hold in list(holds):
            record = self._directory.get(hold.name)
            if record.role is Role.NONE or record.is_another(hold.record):
                hold.lose(conditions.RESOURCE_DELETED, f"{hold.name} was deleted")
                continue
            hold.record = record
            try:
                self.demand(hold.connection, hold.right, record)
            except Refused as refusal:
                hold.lose(refusal.condition, refusal.description)
