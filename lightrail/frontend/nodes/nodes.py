"""Nodes that the frontend serves without a shard, such as $management."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lightrail.amqp.link import SETTLE_FIRST, Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.nodes.links import NODE_REQUEST_BYTES, RequestLink, path_of
from lightrail.frontend.nodes.node import Node
from lightrail.frontend.nodes.replies import NodeLinks, ReplyLink
from lightrail.model import limits

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

TOKEN_REQUEST_BYTES: Final[int] = 64 * 1024
"""Largest request on links of clients that have put no token yet (unproven.py)."""


class Nodes:
    """All nodes of one frontend by address."""

    def __init__(self, by_address: Mapping[str, Node]) -> None:
        self._by_address = dict(by_address)

    def attach(self, connection: "ClientConnection", link: Link) -> bool:
        """Accepts or refuses a link at once, if its attach addresses a node.

        Returns:
            False if the link is for another address.
        """
        terminus = link.source if link.is_sender else link.target
        if not isinstance(terminus, Source | Target) or terminus.dynamic:
            return False
        address = terminus.address
        if not isinstance(address, str) or "$" not in address:
            return False
        path = path_of(address)
        own = self._by_address.get(path)
        made = own or connection.frontend.hooks.node(path)
        if made is None:
            return False
        node_links = connection.node_links
        if node_links is None:
            node_links = connection.node_links = NodeLinks()
        here = node_links.at(path, made)
        terminus.durable, terminus.timeout = 0, 0
        terminus.expiry_policy = Symbol("link-detach")
        number = connection.frontend.next_link()
        terms = Terms(f"{connection.client.session_owner(link.session)}/{number}")
        if isinstance(terminus, Source):
            terminus.filter = None
            link.accept()
            reply = ReplyLink(connection, node_links, link, here.node, path)
            here.replies.append(reply)
            link.context = reply
            connection.links.bind(reply, terms)
            return True
        # Clients of a hook's node do not expect a bound: theirs is in the answer, and the link goes on.
        most = limits.MAX_MESSAGE_BYTES if own is None else NODE_REQUEST_BYTES
        if connection.client.is_unproven:
            most = TOKEN_REQUEST_BYTES
        link.accept(max_message_size=most, rcv_settle_mode=SETTLE_FIRST)
        request = RequestLink(connection, node_links, link, here.node, path, answers_refusals=own is None)
        here.requests.append(request)
        link.context = request
        connection.links.bind(request, terms)
        request.top_up()
        return True
