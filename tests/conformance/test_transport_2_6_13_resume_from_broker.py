"""Resuming links on which the client receives (transport 2.6.13): the broker keeps none of their deliveries.

So every delivery that a client still has in its map is one that only the target considers unsettled: the
broker has released it with the former link, and sends it as a new one.
"""

from typing import Any

import pytest

from lightrail.amqp.performatives import Accepted, Attach, Detach, Received, Source
from lightrail.amqp.values import Symbol
from tests.support.amqp.frame_peer import Peer, receiver, value


@pytest.mark.parametrize(
    "state",
    [None, Received(section_number=0, section_offset=0), Accepted()],
    ids=["null", "received", "accepted"],
)
def test_what_only_the_receiver_has_is_sent_as_a_new_delivery(begun: Peer, queue: str, state: Any) -> None:
    begun.put(queue, value("m"))
    begun.attach_receiver(queue, name="link")
    begun.flow(1)
    tag = begun.delivery()[0].delivery_tag
    assert tag is not None
    begun.write(Detach(handle=0, closed=False))
    begun.expect(Detach)
    begun.write(receiver(queue, name="link", unsettled={tag: state}))
    answer = begun.expect(Attach)
    assert answer.unsettled == {}
    assert not answer.incomplete_unsettled
    begun.flow(1, next_incoming_id=1)
    transfer, payload = begun.delivery()
    assert not transfer.resume
    assert transfer.delivery_tag != tag
    assert payload.endswith(value("m"))


def test_the_answer_says_that_nothing_outlives_the_link(begun: Peer, queue: str) -> None:
    source = Source(address=queue, timeout=60, expiry_policy=Symbol("connection-close"), durable=2)
    begun.write(receiver(queue, source=source))
    answer = begun.expect(Attach)
    assert isinstance(answer.source, Source)
    found = (answer.source.timeout, str(answer.source.expiry_policy), answer.source.durable)
    assert found == (0, "link-detach", 0)
    assert answer.unsettled is None
