"""Laws of receiving links at a shard, between its steps: the table of links, and what else names them."""

from typing import Final

from lightrail.shard.effects.receiving_link import ReceivingLink, ReceivingState
from lightrail.shard.engine.engine import Engine

FEW: Final = 200
"""Links of a scene whose laws are checked; with more, a test counts what its work costs."""


def check(engine: Engine) -> None:
    """Everything that names a link agrees with the state of the link."""
    links = engine._performer.links
    if len(links) > FEW:
        return
    receiving, names = engine._links.receiving, engine._links.client_links
    for id, link in links.items():
        assert link.id == id
        assert link.state is not ReceivingState.ENDED
        _check_consumer(link)
        assert (receiving._by_key.get(link.key) is link) == link.is_waiting
        assert (link in receiving._due._times) == link.is_waiting
        of_user = receiving._suspended.get(link.opened.user, {})
        assert (link in of_user) == (link.state is ReceivingState.SUSPENDED)
        found = names.get(link.queue, link.opened.client_link)
        assert not (link.is_waiting and link.opened.client_link) or found is link
        assert link.queue.is_frozen == (link.state is ReceivingState.AWAY) or not link.queue.is_serving
    for peer in engine._frontends:
        for number, consumer in peer.consumers.items():
            link = links[consumer.id]
            assert (consumer.peer, consumer.link, link.consumer) == (peer, number, consumer)
            assert link.state is ReceivingState.ATTACHED
    waiting = [link for link in links.values() if link.is_waiting]
    suspended = [link for link in waiting if link.state is ReceivingState.SUSPENDED]
    assert len(receiving) == len(waiting)
    assert receiving._suspended_links.total == len(suspended)
    assert receiving._suspended_deliveries.total == sum(link.suspended for link in suspended)
    assert receiving._suspended.keys() == {link.opened.user for link in suspended}
    for of_queue in names._by_queue.values():
        for each in of_queue.values():
            assert not isinstance(each, ReceivingLink) or links[each.id] is each


def _check_consumer(link: ReceivingLink) -> None:
    """The machine has the consumer, and the frontend the link if it is attached."""
    assert link.queue.view.consumer(link.id) is not None
    consumer = link.consumer
    if link.state is ReceivingState.ATTACHED:
        assert consumer is not None
        assert consumer.peer.consumers.get(consumer.link) is consumer
        assert link.key == (consumer.peer.boot, consumer.link)
        assert not link.has_ended
    else:
        assert link.state is ReceivingState.AWAY or consumer is None
        assert link.state is not ReceivingState.SUSPENDED or link.has_ended
