"""Forwarding: the queues that messages pass by the policy field `forward_to`, from one to the next.

Messages for a queue that forwards are stored in the last queue of its chain at once, where nothing but queues
is in between. Everything else is stored in the first queue, and a gateway transfers it (ADR 66).
"""

from itertools import pairwise
from typing import Final, NamedTuple

from lightrail.model import names as spelling
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right, refused_by_status

HOPS_MAX: Final[int] = 4
"""Times that a message is forwarded, as in Azure Service Bus."""


class ChainEnd(NamedTuple):
    """How messages came to the queue at the end of a chain."""

    source: str
    """The first queue, which stores the messages that the last one refuses."""
    hops: int
    """Times that they were forwarded."""


class Chain(NamedTuple):
    """The queues that messages pass, each by the `forward_to` of the one before."""

    queues: tuple[str, ...]
    names: frozenset[str]
    """Names on which the chain depends."""
    is_complete: bool
    """Whether the last queue forwards nothing."""

    @property
    def last(self) -> str:
        return self.queues[-1]

    @property
    def hops(self) -> int:
        return len(self.queues) - 1

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Each queue that forwards, and the next one."""
        return list(pairwise(self.queues))


def chain_of(directory: Directory, first: str, hops_max: int = HOPS_MAX) -> Chain:
    """The chain from a queue on.

    It ends before a name that is no queue, or refuses messages by its status; at a queue from which nobody
    receives by its status; and at one that looks for duplicates, since it has to see the messages.
    """
    queues = [first]
    names = {first, spelling.owner(first)}
    while True:
        policy = directory.get(queues[-1]).policy
        target: str | None = policy["forward_to"] if policy.role is Role.QUEUE else None
        if target is None:
            return Chain(tuple(queues), frozenset(names), True)
        names |= {target, spelling.owner(target)}
        found = directory.get(target)
        if (
            (len(queues) > 1 and policy["duplicate_window"] is not None)
            or refused_by_status(policy, Right.LISTEN)
            or len(queues) > hops_max
            or found.role is not Role.QUEUE
            or refused_by_status(found.policy, Right.SEND)
            or target in queues
        ):
            return Chain(tuple(queues), frozenset(names), False)
        queues.append(target)
