"""Queues that look into their messages, behind the wire: orders, delays, filters, changes between them."""

from typing import Any

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.model import conditions
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.model.policy import QUEUE, Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore

DELAYED = Policy.parse({"role": "queue", "delay": True})


def message(body: str, **sections: dict[Any, Any]) -> bytes:
    """An encoded message with message-annotations and application-properties."""
    data = b""
    if "annotations" in sections:
        data += b"\x00\x53\x72" + encode(
            {Symbol(key): value for key, value in sections["annotations"].items()}
        )
    if "properties" in sections:
        data += b"\x00\x53\x74" + encode(sections["properties"])
    return data + b"\x00\x53\x77" + encode(body)


def opened(policy: Policy | None = None, files: FakeFiles | None = None) -> tuple[Scene, Peer]:
    names = EveryName()
    if policy is not None:
        names.give("q", policy)
    if files is None:
        scene = Scene(names=names)
    else:
        journal = Journal(files, "test", 0)
        scene = Scene(journal, journal.recover(1 << 30, 1), names=names)
        scene.turn()
    peer = scene.peer()
    peer.produce(1, "q")
    return scene, peer


def test_a_queue_with_priorities_delivers_the_highest_first() -> None:
    _, peer = opened(Policy.parse({"role": "queue", "priorities": 10}))
    for number, priority in enumerate((1, 9, 4), 1):
        peer.send(1, number, [b"%d" % priority], priority=priority)
    peer.consume(2, "q", 10)
    assert peer.messages(2) == [b"9", b"4", b"1"]


def test_a_queue_of_last_values_reads_its_key_from_the_messages() -> None:
    policy = {"role": "queue", "order": "last_value", "order_key": "application-properties.symbol"}
    scene, peer = opened(Policy.parse(policy))
    sent = [
        message(f"{symbol}{price}", properties={"symbol": symbol}) for symbol, price in (("a", 1), ("b", 2))
    ]
    sent.append(message("a3", properties={"symbol": "a"}))
    for number, each in enumerate(sent, 1):
        peer.send(1, number, [each])
    scene.settle_down()
    peer.consume(2, "q", 10)
    assert sorted(peer.messages(2)) == sorted(sent[1:])


def test_a_change_of_policy_orders_what_is_there_and_what_comes() -> None:
    scene, peer = opened()
    peer.send(1, 1, [b"low"], priority=1)
    peer.send(1, 2, [b"high"], priority=8)
    assert isinstance(scene.names, EveryName)
    scene.names.give("q", Policy.parse({"role": "queue", "priorities": 10}))
    scene.refresh()
    peer.send(1, 3, [b"middle"], priority=5)
    peer.consume(2, "q", 2)
    assert peer.messages(2) == [b"high", b"middle"]
    scene.names.give("q", QUEUE)
    scene.refresh()
    peer.send(1, 4, [b"last"], priority=9)
    peer.credit(2, 10)
    assert peer.messages(2)[2:] == [b"low", b"last"]


def test_batches_of_many_priorities_that_are_there_before_the_policy_come_first_in_their_order() -> None:
    scene, peer = opened()
    peer.send(1, 1, [b"before"], priority=4)
    peer.send(1, 2, [b"mixed 0", b"mixed 1"], priority=PRIORITY_MIXED)
    assert isinstance(scene.names, EveryName)
    scene.names.give("q", Policy.parse({"role": "queue", "priorities": 10}))
    scene.refresh()
    peer.send(1, 3, [b"after"], priority=8)
    peer.consume(2, "q", 10)
    assert peer.messages(2) == [b"mixed 0", b"mixed 1", b"after", b"before"]


def test_a_delayed_message_is_seen_cancelled_and_delivered_in_time() -> None:
    scene, peer = opened(DELAYED)
    due_ms = scene.now_ms + 3_000
    peer.send(1, 1, [message("later", annotations={"x-opt-delivery-time": Timestamp(due_ms)})])
    peer.send(1, 2, [message("never", annotations={"x-opt-delivery-delay": 2_000}), message("now")])
    scene.settle_down()
    fields, _ = peer.answers[peer.ask("peek", queue="q")]
    seen = [(each["state"], each["due_ms"]) for each in fields["messages"]]
    assert seen == [("delayed", due_ms), ("delayed", scene.now_ms + 2_000), ("ready", None)]
    assert peer.answers[peer.ask("queue", queue="q")][0]["delayed"] == 2
    number = peer.ask("cancel", queue="q", sequences=[1, 2, 77])
    assert number not in peer.answers
    scene.settle_down()
    assert peer.answers[number][0] == {"cancelled": 1}
    assert peer.answers[peer.ask("cancel", queue="q", sequences=[1])][0] == {"cancelled": 0}
    for wrong in (None, [], 1, ["1"], [-1], [True]):
        fields, _ = peer.answers[peer.ask("cancel", queue="q", sequences=wrong)]
        assert fields["error"]["condition"] == conditions.INVALID_FIELD
    peer.consume(2, "q", 10)
    assert len(peer.messages(2)) == 1
    assert scene.engine.deadline_ms == due_ms
    peer.ping()
    scene.tick(3_000)
    assert [each.sequence for each in peer.delivered[2]] == [2, 0]


def test_delays_and_their_cancelling_survive_a_restart() -> None:
    files = FakeFiles()
    scene, peer = opened(DELAYED, files)
    delay = {"x-opt-delivery-delay": 2_000}
    peer.send(1, 1, [message("a", annotations=delay), message("b", annotations=delay)])
    scene.settle_down()
    peer.ask("cancel", queue="q", sequences=[0])
    scene.settle_down()
    scene.store.close()
    scene, peer = opened(DELAYED, files)
    assert peer.answers[peer.ask("queue", queue="q")][0]["delayed"] == 1
    peer.consume(2, "q", 10)
    assert peer.messages(2) == []
    peer.ping()
    scene.tick(2_000)
    assert [each.sequence for each in peer.delivered[2]] == [1]
    scene.store.close()


def test_a_consumer_with_a_filter_gets_what_matches() -> None:
    _, peer = opened()
    peer.consume(2, "q", 10, filter={"sql": "colour = 'red'"})
    peer.consume(3, "q", browse=True, filter={"properties": {"application-properties.colour": "blue"}})
    sent = [message(colour, properties={"colour": colour}) for colour in ("red", "blue", "red")]
    peer.send(1, 1, [*sent, b"no message at all"])
    peer.credit(3, 10)
    assert peer.messages(2) == [sent[0], sent[2]]
    assert peer.messages(3) == [sent[1]]


def test_a_filter_that_cannot_be_used_ends_the_link_and_says_why() -> None:
    _, peer = opened()
    peer.consume(2, "q", filter={"sql": "colour = "})
    peer.consume(3, "q", filter={"colour": "red"})
    assert [refusal.condition for _, _, refusal in peer.refusals] == [conditions.INVALID_FIELD] * 2
    assert all("filter can't be used" in refusal.description for _, _, refusal in peer.refusals)


def test_routed_messages_are_ordered_by_each_queue_for_itself() -> None:
    scene, peer = opened(Policy.parse({"role": "queue", "priorities": 10}))
    peer.produce(5)
    peer.targets(5, 1, "q", "plain")
    for number, priority in enumerate((1, 9), 1):
        peer.route(5, number, 1, [b"%d" % priority], priority=priority)
    scene.settle_down()
    for link, queue in ((2, "q"), (3, "plain")):
        peer.consume(link, queue, 10)
        peer.settle(link, 0, 2)
    assert peer.messages(2) == [b"9", b"1"]
    assert peer.messages(3) == [b"1", b"9"]
    scene.settle_down()
    assert isinstance(scene.store, SmallStore)
    assert scene.store.usage().live_bytes == 0
