"""The guard: the names that open links use, and the detach of links when names or rights change.

Rights are checked at the attach, and again whenever the directory reports that a name, a policy or the rights
of a user changed: links without their right and links whose name was deleted are detached.
"""

from collections.abc import Callable, Collection, Iterable

from lightrail.frontend.client import Client
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions, names
from lightrail.model.policy import Role
from lightrail.namespace.checks import OWNER_PARTS
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name, Right, refused_by_forwarding, refused_by_status
from lightrail.namespace.rights import ONLY_ITS_CONNECTION, ForbiddenError, demand

Revoke = Callable[[str, str], None]
"""Called with a condition and a sentence when a use of a name has to end; it must release the hold."""


class Hold:
    """One use of a name by a link: the client, the right, and the function that ends it."""

    __slots__ = ("client", "is_released", "name", "record", "revoke", "right")

    def __init__(self, client: Client, right: Right, record: Name, revoke: Revoke) -> None:
        self.client = client
        self.right = right
        self.name = record.name
        self.record = record
        self.revoke = revoke
        self.is_released = False
        """Whether the use has ended."""


class Guard:
    """All uses of names in one frontend.

    Args:
        unused: called with a name when its last use here has ended.
    """

    def __init__(self, directory: Directory, unused: Callable[[str], None]) -> None:
        self._directory = directory
        self._unused = unused
        self._by_name: dict[str, dict[Hold, None]] = {}
        self._by_client: dict[Client, dict[Hold, None]] = {}
        directory.listen(self._changed)

    def demand(self, client: Client, right: Right, record: Name) -> None:
        """Raises ConditionError unless the client has this right at a name.

        Every client with the name of a temporary queue or router may send to it, as reply-to requires. Only
        the connection that created it may receive from it, not others of its user, unless its lifetime
        depends on links or messages (messaging 3.5.11 to 3.5.13).
        """
        if names.is_temporary(record.name):
            made = self._directory.find(names.owner(record.name))
            if right is Right.LISTEN and made is not None and not (_is_open(made) or client.owns(made.owner)):
                raise ConditionError(
                    conditions.UNAUTHORIZED_ACCESS, ONLY_ITS_CONNECTION.format(name=record.name)
                )
            return
        try:
            demand(self._directory, client.caller_for(record.name), right, record)
        except ForbiddenError as error:
            raise ConditionError(conditions.UNAUTHORIZED_ACCESS, str(error)) from None

    def demand_open(self, right: Right, record: Name) -> None:
        """Raises ConditionError where the policy of a name refuses links that send or receive."""
        if why := refused_by_status(record.policy, right):
            raise ConditionError(conditions.ENTITY_DISABLED, f"{record.name} is disabled: {why}")
        if why := refused_by_forwarding(record.policy, right):
            raise ConditionError(conditions.NOT_ALLOWED, f"nobody receives from {record.name}: {why}")

    def hold(self, client: Client, right: Right, record: Name, revoke: Revoke) -> Hold:
        """Registers that a link uses a name from now on."""
        hold = Hold(client, right, record, revoke)
        self._by_name.setdefault(hold.name, {})[hold] = None
        self._by_client.setdefault(client, {})[hold] = None
        return hold

    def release(self, hold: Hold) -> None:
        """The link no longer uses the name; releasing a hold twice has no effect."""
        group = self._by_name.get(hold.name)
        if group is None or hold not in group:
            return
        del group[hold]
        hold.is_released = True
        of_client = self._by_client[hold.client]
        del of_client[hold]
        if not of_client:
            del self._by_client[hold.client]
        if not group:
            del self._by_name[hold.name]
            self._unused(hold.name)

    def check(self, client: Client, right: Right, former: Name) -> Name:
        """The record of a name that a client has used before. Raises ConditionError if it may not any more.

        Args:
            former: the record at that time.
        """
        record = self._directory.get(former.name)
        if record.role is Role.NONE or record.is_another(former):
            raise ConditionError(conditions.RESOURCE_DELETED, f"{former.name} was deleted")
        self.demand(client, right, record)
        return record

    def check_hold(self, hold: Hold) -> None:
        """Raises ConditionError if a client may not do any more what a link of it has begun.

        A link that is still attached was checked at the last change of names, rights or tokens.
        """
        if hold.is_released:
            self.demand_open(hold.right, self.check(hold.client, hold.right, hold.record))

    def recheck(self, client: Client, audiences: Collection[str]) -> None:
        """Checks the uses of names for which a client's tokens have changed: audiences, and names below."""
        changed = set(audiences)
        self._check(
            hold
            for hold in self._by_client.get(client, ())
            if not changed.isdisjoint(("", hold.name, *names.above(hold.name)))
        )

    def _all(self) -> Iterable[Hold]:
        return [hold for group in self._by_name.values() for hold in group]

    def _changed(self, changes: Changes) -> None:
        for name in changes.names:
            refused = names.dead_letter_name(names.transfer_name(name))
            for each in (name, names.dead_letter_name(name), refused):
                self._check(self._by_name.get(each, ()))
        if any(_has_other_rules(before, self._directory) for before in changes.names.values()):
            # A key of a topic's rule may be used at its subscriptions, too.
            self._check(hold for hold in self._all() if hold.client.caller_for(hold.name).by_rule is not None)
        if changes.users:
            self._check(
                hold for hold in self._all() if hold.client.caller_for(hold.name).user in changes.users
            )

    def _check(self, holds: Iterable[Hold]) -> None:
        for hold in list(holds):
            try:
                hold.record = self.check(hold.client, hold.right, hold.record)
                self.demand_open(hold.right, hold.record)
            except ConditionError as error:
                hold.revoke(error.condition, error.description)


def _has_other_rules(before: Name | None, directory: Directory) -> bool:
    """Whether a name had authorization rules that it does not have now."""
    if before is None or not before.authorization_rules:
        return False
    now = directory.find(before.name)
    return now is None or now.authorization_rules != before.authorization_rules


def _is_open(made: Name) -> bool:
    """Whether other connections than the one that created a dynamic node may receive from it, too."""
    if made.role is Role.ROUTER:
        # Routers have no lifetime: that of a topic is in its owner, a link or the connection of that link.
        return len(made.owner.split("/")) == OWNER_PARTS["connection"]
    return made.role is Role.QUEUE and made.policy["lifetime"] == "connection"
