"""Resources: what a signature opens, which bounds the rights of its user (ADR 50)."""

from typing import Final, NamedTuple
from urllib.parse import unquote

from lightrail.model.names import TEMPORARY_SEGMENT, InvalidNameError, queue_name

SCHEMES: Final = frozenset({"amqp", "amqps", "sb", "http", "https"})
"""Schemes of resources and audiences that are URIs; only their path counts."""
MANAGEMENT_SUFFIX: Final = "/$management"
"""Suffix of a resource that is the management node of a name: the signature is for the name."""
_TEMPORARY: Final = f"{TEMPORARY_SEGMENT}/"


class Resource(NamedTuple):
    """What a signature opens, by its signed text alone: nothing that its holder sends decides about it.

    A resource with a scheme is a URI, and its path counts: a broker has many hosts and ports. A resource
    without one is a path, and never begins with a host: who may choose the host would decide how much of the
    path is left (ADR 50).
    """

    path: str
    """A name, decoded, or another path of HTTP; empty for everything."""
    exact: bool = False
    """Whether it is the URI of one request, with its query: it opens its path, and nothing below."""

    @property
    def is_name(self) -> bool:
        """Whether it bounds names; False for everything, and for paths of the broker's own (`!status`)."""
        return bool(self.path) and (not self.path.startswith(("!", "$")) or self.path.startswith(_TEMPORARY))

    def opens(self, path: str) -> bool:
        """Whether it opens a name or another path.

        The clients for Go and JavaScript sign in lower case, whatever the case of the name.
        """
        asked = (path, path.lower())
        if self.exact:
            return self.path in asked
        return not self.path or any(f"{each}/".startswith(f"{self.path}/") for each in asked)


EVERYTHING: Final = Resource("")


def resource_of(text: str) -> Resource:
    """The resource that a signature is for."""
    scheme, separator, rest = text.partition("://")
    query = ""
    if separator and scheme.lower() in SCHEMES:
        rest, _, query = rest.partition("?")
        path = rest.partition("/")[2]
    else:
        path = text
    path = path.strip("/").removesuffix(MANAGEMENT_SUFFIX)
    try:
        path = queue_name(f"/{path}")
    except InvalidNameError:
        path = unquote(path)
    return Resource(path, bool(query))
