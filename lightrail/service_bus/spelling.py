"""Spelling: how an entity's path is written where case makes no difference, and what a signature opens."""

from typing import Final, NamedTuple

from lightrail.model import names
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import Resource

SUBSCRIPTIONS: Final = "subscriptions"
"""The segment before the id of a subscription, in small letters."""
PART_CHARACTERS_MAX: Final[int] = 50
"""Characters of the name of a new subscription or rule, as in Service Bus."""


class Spelled(NamedTuple):
    """A path of an entity or below one: the part that exists, as it is spelled, and the rest as written."""

    known: str
    rest: str

    @classmethod
    def read(cls, directory: Directory, path: str) -> "Spelled":
        """Raises InvalidNameError: case alone distinguishes several names."""
        segments = path.split("/")
        words = names.folded(path).split("/")
        if SUBSCRIPTIONS not in words[1:-1]:
            name = directory.resolve(path)
            return cls("", name) if directory.get(name).role is Role.NONE else cls(name, "")
        at = len(words) - 1 - words[::-1].index(SUBSCRIPTIONS, 1)
        router = directory.resolve("/".join(segments[:at]))
        if directory.find(router) is None:
            return cls("", path)
        id = directory.resolve_subscription(router, segments[at + 1])
        known = [router, SUBSCRIPTIONS]
        if directory.subscription(router, id) is not None:
            known.append(id)
        return cls("/".join(known), "/".join(("", *segments[at + len(known) - 1 :])))

    @property
    def path(self) -> str:
        return self.known + self.rest


def opens(directory: Directory, resource: Resource, path: str) -> bool:
    """Whether what a signature is for opens a path, by the names that both stand for.

    Clients for Go and JavaScript sign in small letters, whatever the spelling of a name is. So a resource is
    for the name that exists, and never for one beside it that differs in case; for a name that does not exist
    in any spelling, every spelling will do.
    """
    if resource.opens(path):
        return True
    try:
        signed, asked = Spelled.read(directory, resource.path), Spelled.read(directory, path)
    except InvalidNameError:
        return False
    if resource._replace(path=signed.path).opens(asked.path):
        return True
    return signed.known == asked.known and names.folded(signed.rest) == names.folded(asked.rest)
