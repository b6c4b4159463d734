"""The no-local filter of subscriptions, which excludes messages of the subscriber's container.

A subscription with this filter receives no messages from links of the container that created it (JMS 2.0,
8.3.3: of its client identifier, which is the container-id). The plan has the queues of such subscriptions and
their containers.
"""

from typing import TYPE_CHECKING

from lightrail.namespace.router_plan import Group, Plan, Routed

if TYPE_CHECKING:
    from lightrail.amqp.link import Link


def container_of(link: "Link") -> str:
    """The container-id of a link's client."""
    peer = link.session.connection.peer_open
    return "" if peer is None else peer.container_id


def left_out(routed: Routed, plan: Plan, container: str) -> Routed:
    """The groups of a batch without the queues that exclude messages of a container.

    A message that only such queues would receive is not stored, and not unroutable: it is accepted.
    """
    own = {queue for queue, unwanted in plan.no_local.items() if unwanted == container}
    if not own:
        return routed
    groups = [Group(group.queues - own, group.indices, group.payloads) for group in routed.groups]
    return Routed([group for group in groups if group.queues], routed.unroutable)
