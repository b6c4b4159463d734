"""Client links (transport 2.6.1): a queue has one link of a client under a name, the one attached last."""

from lightrail.model import conditions
from lightrail.wire.frames import Kind
from tests.support.shard.scene import Answer, Peer, Scene

ONE = "1" * 32
OTHER = "2" * 32


def refused(peer: Peer) -> list[tuple[int, str]]:
    """(link, condition) of each GONE, once."""
    found, peer.refusals = peer.refusals, []
    return [(link, refusal.condition) for link, _, refusal in found]


def two(scene: Scene) -> tuple[Peer, Peer]:
    return scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)


def test_a_producer_ends_where_its_client_attaches_it_at_another_frontend() -> None:
    first, second = two(Scene())
    first.produce(1, "q", client_link=ONE, steals=True)
    second.produce(5, "q", client_link=ONE, steals=True)
    assert refused(first) == [(1, conditions.STOLEN)]
    assert refused(second) == []
    second.send(5, 1, [b"a"])
    first.send(1, 1, [b"b"])
    scene = second.scene
    scene.settle_down()
    assert isinstance(scene, Scene)
    assert scene.queue("q")["ready"] == 1


def test_a_consumer_that_is_stolen_gives_back_what_it_had() -> None:
    scene = Scene()
    first, second = two(scene)
    first.produce(1, "q")
    first.send(1, 1, [b"a"])
    first.consume(2, "q", 1, client_link=ONE, steals=True)
    second.consume(2, "q", 1, client_link=ONE, steals=True)
    scene.settle_down()
    assert refused(first) == [(2, conditions.STOLEN)]
    (found,) = second.delivered[2]
    # Its client may not know of the other attach: the delivery is marked (ADR 28), and has not failed.
    assert (found.message, found.attempts) == (b"a", 1)
    assert scene.counts.links_stolen == 1


def test_a_stolen_link_that_may_be_resumed_gives_back_uncounted_what_its_client_does_not_know() -> None:
    scene = Scene()
    first, second = two(scene)
    first.produce(1, "q")
    first.send(1, 1, [b"a"])
    first.consume(2, "q", 1, client_link=ONE, steals=True, suspended_ms=60_000)
    second.consume(2, "q", 1, client_link=ONE, steals=True, suspended_ms=60_000)
    scene.settle_down()
    (found,) = second.delivered[2]
    assert (found.message, found.attempts) == (b"a", 1)


def test_a_link_that_opens_again_steals_from_nobody() -> None:
    """Its shard was lost or its queue has moved; the client has attached the link elsewhere meanwhile."""
    first, second = two(Scene())
    first.produce(1, "q", client_link=ONE, steals=True)
    first.consume(2, "q", client_link=OTHER, steals=True)
    second.produce(1, "q", client_link=ONE)
    second.consume(2, "q", client_link=OTHER)
    assert refused(first) == []
    assert refused(second) == [(1, conditions.STOLEN), (2, conditions.STOLEN)]


def test_a_link_may_open_again_at_its_own_frontend() -> None:
    scene = Scene()
    peer = scene.peer()
    for _ in range(2):
        peer.produce(1, "q", client_link=ONE)
        peer.consume(2, "q", client_link=OTHER)
    assert refused(peer) == []


def test_a_link_that_ended_is_no_former_one() -> None:
    scene = Scene()
    first, second = two(scene)
    first.produce(1, "q", client_link=ONE, steals=True)
    first.close_producer(1)
    first.consume(2, "q", client_link=OTHER, steals=True)
    first.close_consumer(2)
    second.produce(1, "q", client_link=ONE)
    second.consume(2, "q", client_link=OTHER)
    assert refused(first) == refused(second) == []
    scene.engine.lost(second.identity)
    first.produce(3, "q", client_link=ONE)
    first.consume(4, "q", client_link=OTHER)
    assert refused(first) == []


def test_links_of_other_names_queues_and_without_a_name_are_others() -> None:
    first, second = two(Scene())
    for peer in (first, second):
        peer.produce(1, "q")
        peer.consume(2, "q")
    first.produce(3, "q", client_link=ONE, steals=True)
    second.produce(3, "q", client_link=OTHER, steals=True)
    second.produce(4, "r", client_link=ONE, steals=True)
    assert refused(first) == refused(second) == []


def test_a_consumer_that_the_queue_refuses_holds_no_name() -> None:
    first, second = two(Scene())
    first.consume(1, "q", exclusive=True)
    second.consume(2, "q", client_link=ONE, steals=True)
    assert refused(second) == [(2, conditions.RESOURCE_LOCKED)]
    first.close_consumer(1)
    first.consume(3, "q", client_link=ONE)
    assert refused(first) == []
    assert Answer(Kind.CONSUMER_READY, 3, 0, 0) in first.heard
