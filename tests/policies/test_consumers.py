"""Who may consume, and how long the queue lives: max_consumers, single_active, exclusive, lifetimes."""

import pytest
from proton import Endpoint, Message, Timeout
from proton.utils import BlockingConnection

from lightrail.model.policy_fields import REPLICAS_MAX
from tests.policies.driver import Names, listen, refused, send
from tests.policies.laws import checks
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, received


@checks("max_consumers")
def test_so_many_consumers_and_no_more(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_consumers=2)
    first, _ = listen(amqp, queue), listen(amqp, queue)
    assert refused(amqp, queue).name == "amqp:resource-limit-exceeded"
    first.close()
    listen(amqp, queue)


@checks("exclusive")
def test_a_second_consumer_is_refused_over_amqp_and_http(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(exclusive=True)
    first = listen(amqp, queue)
    condition = refused(amqp, queue)
    assert condition.name == "amqp:resource-locked"
    names.send(queue, "x")
    assert names.receive(queue, 1).status == 409
    assert received(first, 1)[0].body
    first.close()
    listen(amqp, queue)


@checks("single_active")
def test_one_consumer_gets_everything_and_the_next_takes_over(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(single_active=True)
    with connected(names.broker.amqp) as other:
        active = listen(other, queue, credit=10)
        waiting = listen(amqp, queue, credit=10)
        send(amqp, queue, *(Message(body=number) for number in range(4)))
        assert [message.body for message in received(active, 3)] == [0, 1, 2]
        assert active.receive().body == 3
        with pytest.raises(Timeout):
            waiting.receive(timeout=0.3)
    assert [message.body for message in received(waiting, 1)] == [3]


@checks("lifetime")
def test_with_its_last_consumer_it_goes(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(lifetime="last_consumer")
    names.send(queue, "x")
    one, two = listen(amqp, queue), listen(amqp, queue)
    one.close()
    assert names.role(queue) == "queue"
    two.close()
    wait.until(lambda: names.role(queue) == "none", "it goes")


@checks("lifetime")
def test_permanent_is_for_ever(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(lifetime="permanent")
    listen(amqp, queue).close()
    assert names.role(queue) == "queue"


@checks("lifetime", "template")
@pytest.mark.parametrize("lifetime", ["connection", "session", "link"])
def test_what_a_client_makes_by_its_attach_goes_with_it(
    names: Names, amqp: BlockingConnection, lifetime: str
) -> None:
    names.give("mine", "none", template={"lifetime": lifetime})
    queue = names.name("mine/queue")
    link = listen(amqp, queue)
    assert names.policy(queue) == {"lifetime": lifetime}
    with names.amqp() as other:
        send(other, queue, Message(body="x"))
    assert link.receive().body == "x"
    if lifetime == "link":
        link.close()
    elif lifetime == "session":
        link.link.session.close()
        amqp.wait(lambda: link.link.session.state & Endpoint.REMOTE_CLOSED, timeout=20)
    else:
        assert names.role(queue) == "queue"
        amqp.close()
    wait.until(lambda: names.role(queue) == "none", "it goes")


@checks("lifetime")
def test_what_is_posted_has_no_client_to_go_with(names: Names) -> None:
    refused = names.http("POST", f"/{names.name('queue')}", {"role": "queue", "lifetime": "link"})
    assert (refused.status, refused.json()["field"]) == (422, "lifetime")
    assert "permanent or last_consumer" in refused.json()["allowed"]


@checks("lifetime")
def test_a_dynamic_node_goes_with_its_client(names: Names) -> None:
    with names.amqp() as connection:
        made = str(connection.create_receiver(None, dynamic=True).link.remote_source.address)
        assert names.policy(made) == {"lifetime": "link"}
    wait.until(lambda: names.role(made) == "none", "it goes")


@checks("replicas")
def test_no_more_replicas_are_demanded_than_a_shard_has(names: Names) -> None:
    assert names.policy(names.queue(replicas=1)) == {}
    refused = names.http("POST", f"/{names.name('more')}", {"role": "queue", "replicas": 2})
    assert (refused.status, refused.json()["field"], refused.json()["found"]) == (422, "replicas", 2)
    assert "from 1 to 1: " in refused.json()["allowed"]
    assert "`lightrail-admin shard replicas N --replicas 2`" in refused.json()["allowed"]
    beyond = names.http("POST", f"/{names.name('more')}", {"role": "queue", "replicas": REPLICAS_MAX + 1})
    assert (beyond.status, f"from 1 to {REPLICAS_MAX}" in beyond.json()["allowed"]) == (422, True)
