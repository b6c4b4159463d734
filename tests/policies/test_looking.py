"""Looking into queues and emptying them: browse, purge, move, copy."""

from proton import Message, Terminus
from proton.reactor import Copy
from proton.utils import BlockingConnection

from tests.policies.driver import Names, listen, send, transferred
from tests.support.amqp.proton_blocking import drain


def test_browsing_over_http_shows_everything_and_takes_nothing(names: Names) -> None:
    queue = names.queue(delay=True)
    names.send(queue, "locked", MessageId="m1", Subject="s", own={"colour": "red"})
    names.send(queue, "ready")
    names.send(queue, "later", DeliveryDelay=3600)
    names.lock(queue)
    for _ in range(2):
        seen = names.peek(queue)
        assert [(each["body"]["text"], each["state"]) for each in seen] == [
            ("locked", "locked"),
            ("ready", "ready"),
            ("later", "delayed"),
        ]
    assert seen[0]["properties"]["message-id"] == "m1"
    assert seen[0]["application_properties"] == {"colour": "red"}
    pages = names.http("GET", f"/{queue}/!messages?from=1&count=1").json()
    assert [each["sequence"] for each in pages["messages"]] == [1]
    assert pages["next"] == 2
    assert names.http("GET", f"/{queue}/!messages/1").json()["body"]["text"] == "ready"
    assert names.take(queue) == ["ready"]


def test_browsing_over_amqp_gives_copies_and_takes_nothing(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(priorities=10)
    send(amqp, queue, *(Message(body=str(level), priority=level) for level in (1, 9, 5)))
    for _ in range(2):
        browser = amqp.create_receiver(queue, options=Copy())
        assert browser.link.remote_source.distribution_mode == Terminus.DIST_MODE_COPY
        assert [message.body for message in drain(amqp, browser)] == ["1", "9", "5"]
        browser.close()
    assert names.take(queue, 3) == ["9", "5", "1"]


def test_a_purge_takes_what_is_ready_and_leaves_what_a_consumer_holds(names: Names) -> None:
    queue = names.queue(priorities=3)
    names.send(queue, *"abcd")
    locked = names.lock(queue)
    purged = names.http("DELETE", f"/{queue}/!messages")
    assert (purged.status, purged.json()) == (200, {"purged": 3})
    assert names.texts(queue) == [locked.body]
    assert names.complete(locked) == 200
    assert names.http("DELETE", f"/{queue}/!messages").json() == {"purged": 0}
    names.send(queue, "new")
    assert names.take(queue) == ["new"]


def test_a_move_takes_messages_along_and_a_copy_leaves_them(names: Names) -> None:
    source, copy, moved = names.queue("source"), names.queue("copy"), names.queue("moved")
    for number in range(10):
        names.send(source, str(number), MessageId=str(number), Subject="even" if number % 2 == 0 else "odd")
    every = [str(number) for number in range(10)]
    assert transferred(names, source, copy, mode="copy") == 10
    assert names.texts(source) == names.texts(copy) == every
    odd = {"properties": {"subject": "odd"}}
    assert transferred(names, source, moved, mode="move", filter=odd) == 5
    assert transferred(names, source, moved, mode="move", count=2) == 2
    assert names.rest(source) == ["4", "6", "8"]
    assert names.rest(moved) == [*every[1::2], "0", "2"]


def test_a_move_into_a_queue_with_another_order(names: Names, amqp: BlockingConnection) -> None:
    source, target = names.queue("source"), names.queue("target", priorities=10)
    send(amqp, source, *(Message(body=str(level), priority=level) for level in (1, 9, 5)))
    assert transferred(names, source, target, mode="move") == 3
    assert names.take(target, 3) == ["9", "5", "1"]
    assert drain(amqp, listen(amqp, source)) == []
