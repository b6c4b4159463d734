"""Who is refused by the status of a queue or a router, and what goes on."""

import struct

import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from tests.policies.driver import Names, listen, refused, send
from tests.policies.laws import checks

BATCH = {
    "LightRail-Producer": "p",
    "LightRail-Batch": "1",
}
DISABLED = "com.microsoft:entity-disabled"


@checks("status")
@pytest.mark.parametrize("status", ["disabled", "receive_disabled"])
def test_nobody_receives_from_a_queue_until_it_is_active_again(
    names: Names, amqp: BlockingConnection, status: str
) -> None:
    queue = names.queue()
    before = listen(amqp, queue)
    names.put(queue, status=status)
    with pytest.raises(LinkDetached) as ended:
        before.receive(timeout=20)
    assert ended.value.condition == DISABLED
    assert refused(amqp, queue).name == DISABLED
    assert names.receive(queue, 1).status == 409
    names.put(queue)
    names.send(queue, "x")
    assert names.take(queue) == ["x"]


@checks("status")
@pytest.mark.parametrize("status", ["disabled", "send_disabled"])
def test_nobody_sends_to_a_queue_and_a_router_does(
    names: Names, amqp: BlockingConnection, status: str
) -> None:
    queue, router = names.queue(status=status), names.router()
    names.subscribe(router, queue)
    with pytest.raises(LinkDetached) as ended:
        send(amqp, queue, Message(body="x"))
    assert ended.value.condition == DISABLED
    assert names.post(queue).status == 409
    names.send(router, "routed")
    names.put(queue)
    assert names.take(queue) == ["routed"]


@checks("status")
def test_a_router_routes_nothing_while_it_is_disabled(names: Names) -> None:
    queue, router = names.queue(), names.router(status="disabled")
    names.subscribe(router, queue)
    assert names.post(router).status == 409
    names.put(router, "router", status="receive_disabled")
    names.send(router, "x")
    assert names.take(queue) == ["x"]


@checks("status")
@pytest.mark.parametrize("status", ["disabled", "send_disabled"])
def test_a_batch_for_a_router_is_stored_in_queues_to_which_nobody_sends(names: Names, status: str) -> None:
    queue, router = names.queue(status=status), names.router()
    names.subscribe(router, queue)
    bodies = [Message(body=each).encode() for each in ("1", "2")]
    ends = struct.pack("<3I", 2, len(bodies[0]), len(bodies[0] + bodies[1]))
    batch = ends + b"".join(bodies)
    assert names.http("POST", f"/{queue}/!batch", batch, BATCH).status == 409
    assert names.http("POST", f"/{router}/!batch", batch, BATCH).status == 200
    names.put(queue)
    assert names.rest(queue) == ["1", "2"]
