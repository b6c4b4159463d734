"""Stories of what queues allow: bounds, readers and lifetimes hold in the next broker as before."""

import time
from collections.abc import Iterator
from typing import Any

from proton import Message
from proton.utils import BlockingConnection

from tests.policies.driver import Names, listen, nothing, outcome, refused, send
from tests.policies.laws import survives
from tests.support import wait
from tests.support.amqp.proton_blocking import received
from tests.support.http_client import Http


@survives("max_length", "overflow")
def a_full_queue_is_full(names: Names) -> Iterator[None]:
    queue = names.queue(max_length=2)
    names.send(queue, "1", "2")
    yield
    assert names.post(queue, "3").status == 503
    assert names.take(queue) == ["1"]
    names.send(queue, "3")
    assert names.rest(queue) == ["2", "3"]


@survives("max_bytes")
def its_bytes_are_counted(names: Names) -> Iterator[None]:
    queue = names.queue(max_bytes=1000)
    names.send(queue, "x" * 600)
    before = names.figures(queue)["bytes"]
    yield
    assert names.figures(queue)["bytes"] == before
    assert names.post(queue, "x" * 600).status == 503
    names.send(queue, "small")


@survives("overflow")
def what_does_not_fit_is_dropped(names: Names) -> Iterator[None]:
    incoming = names.queue("incoming", max_length=1, overflow="discard_incoming")
    existing = names.queue("existing", max_length=1, overflow="discard_existing")
    names.send(incoming, "1", "2")
    names.send(existing, "1", "2")
    yield
    names.send(incoming, "3")
    names.send(existing, "3")
    assert (names.rest(incoming), names.rest(existing)) == (["1"], ["3"])


@survives("overflow")
def what_flowed_to_disk_is_read_in_order(names: Names) -> Iterator[None]:
    queue = names.queue(max_length=3, overflow="flow_to_disk")
    names.send(queue, *map(str, range(20)))
    yield
    names.send(queue, *map(str, range(20, 30)))
    assert names.take(queue, 30) == [str(number) for number in range(30)]


@survives("overflow")
def flow_control_holds_senders_again(names: Names) -> Iterator[None]:
    queue = names.queue(max_length=1, overflow="flow_control")
    names.send(queue, "first")
    yield
    with Http(names.broker.http, deadline_s=60) as sender:
        sender.ask("POST", f"/{queue}?body=text")
        names.until_figure(queue, "parked", 1)
        assert names.take(queue) == ["first"]
        assert sender.answer().status == 201


@survives("enqueue_timeout")
def senders_wait_as_long_as_before(names: Names) -> Iterator[None]:
    queue = names.queue(max_length=1, enqueue_timeout=0.3)
    names.send(queue, "first")
    yield
    with names.amqp() as amqp:
        sender = amqp.create_sender(queue)
        started = time.monotonic()
        assert outcome(amqp, sender, Message(body="second")) == "amqp:resource-limit-exceeded"
        assert time.monotonic() - started >= 0.3


@survives("max_consumers", "exclusive")
def no_more_readers_come_in(names: Names) -> Iterator[None]:
    two, alone = names.queue("two", max_consumers=2), names.queue("alone", exclusive=True)
    with names.amqp() as amqp:
        listen(amqp, two)
        listen(amqp, alone)
    yield
    with names.amqp() as amqp:
        # Those of the broker that died do not count.
        _ = listen(amqp, two), listen(amqp, two), listen(amqp, alone)
        assert refused(amqp, two).name == "amqp:resource-limit-exceeded"
        assert refused(amqp, alone).name == "amqp:resource-locked"


@survives("single_active")
def one_consumer_gets_everything(names: Names) -> Iterator[None]:
    queue = names.queue(single_active=True)
    names.send(queue, "0", "1")
    yield
    with names.amqp() as amqp:
        active, waiting = listen(amqp, queue, 10), listen(amqp, queue, 10)
        names.send(queue, "2")
        assert len(received(active, 3)) == 3
        assert nothing(amqp, waiting)


@survives("lifetime")
def what_went_with_a_client_is_gone_and_what_did_not_is_there(names: Names) -> Iterator[None]:
    permanent, last = names.queue("permanent"), names.queue("last", lifetime="last_consumer")
    names.send(permanent, "kept")
    names.send(last, "kept")
    client = BlockingConnection(f"amqp://{names.broker.amqp}", timeout=30)
    made = str(client.create_receiver(None, dynamic=True).link.remote_source.address)
    yield
    assert names.role(made) == "none"
    assert names.texts(permanent) == names.texts(last) == ["kept"]
    with names.amqp() as amqp:
        listen(amqp, last).close()
    wait.until(lambda: names.role(last) == "none", "it goes with its last consumer")
    assert names.role(permanent) == "queue"


@survives("max_idle")
def a_queue_that_nobody_uses_is_there_with_its_time_and_its_messages(names: Names) -> Iterator[None]:
    unused, used = names.queue("unused", max_idle=300), names.queue("used", max_idle=86_400)
    names.send(used, "kept")
    router = names.router("topic", max_idle=300)
    names.subscribe(router, used)
    names.send(router, "routed")
    yield
    assert (names.policy(unused), names.policy(used)) == ({"max_idle": 300}, {"max_idle": 86_400})
    assert names.policy(router) == {"max_idle": 300}
    assert names.rest(used) == ["kept", "routed"]
    names.send(unused, "x")
    assert names.rest(unused) == ["x"]


@survives("replicas", "capture", "description", "max_message_bytes", "service_bus")
def a_policy_is_as_it_was_given(names: Names) -> Iterator[None]:
    given: dict[str, Any] = {"max_message_bytes": 1000, "capture": True, "description": "für später"}
    given["service_bus"] = "EnableExpress=true"
    queue = names.queue(replicas=1, **given)
    names.send(queue, "x" * 900)
    yield
    assert names.policy(queue) == given
    assert names.http("GET", f"/{queue}/!policy?effective=true").json()["replicas"] == 1
    assert names.post(queue, "x" * 1100).status == 413
    assert names.rest(queue) == ["x" * 900]
    with names.amqp() as amqp:
        assert amqp.create_sender(queue).link.remote_max_message_size == 1000
        send(amqp, queue, Message(body="x"))
