"""Termini (2.6.13): which delivery-tags of a link a shard knows as stored, how long, and how many."""

from typing import Any

import pytest

from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.shard.links.sending import termini
from lightrail.shard.links.takeovers import YIELD_MS
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.columns import encode_tags
from lightrail.wire.frames import CLOSED, Kind, frame
from tests.support import work
from tests.support.shard.scene import Peer, Scene, batch

LINK = "1" * 32
MINUTE = 60_000


def attach(peer: Peer, link: int, *, suspended_ms: int = MINUTE, queue: str = "q", **options: Any) -> None:
    given: dict[str, Any] = {"client_link": LINK, "steals": True, "suspended_ms": suspended_ms}
    peer.produce(link, queue, **given | options)


def unsettled(peer: Peer, link: int, **options: Any) -> list[bytes]:
    """Attaches a link; the tags that the shard announces to it."""
    attach(peer, link, **options)
    peer.scene.settle_down()
    is_kept, tags = peer.unsettled.pop(link)
    assert is_kept
    return tags


def send(peer: Peer, link: int, number: int, *tags: bytes, **options: Any) -> None:
    """A batch with one message for each tag, as a frontend sends it."""
    peer.say(
        frame(Kind.TAGS, link=link, number=number, count=len(tags), body=encode_tags(tags)),
        batch(link, number, list(tags), **options),
    )


def scene_of(**policy: Any) -> Scene:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    return Scene(names=names)


def pass_time(scene: Scene, peer: Peer, wait_ms: int) -> None:
    for _ in range(0, wait_ms, 1_000):
        peer.ping()
        scene.tick(1_000)


def test_tags_are_known_to_the_next_attach_of_the_link_at_any_frontend() -> None:
    scene = Scene()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    assert unsettled(first, 1) == []
    send(first, 1, 1, b"a", b"b")
    scene.settle_down()
    scene.engine.lost(first.identity)
    assert unsettled(second, 5) == [b"a", b"b"]


def test_what_is_not_on_disk_yet_is_announced_when_it_is() -> None:
    scene = Scene()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    attach(first, 1)
    scene.settle_down()
    send(first, 1, 1, b"a")
    scene.begin_commit()
    send(first, 1, 2, b"b")
    attach(second, 1)
    assert second.take(Kind.PRODUCER_READY) == []
    scene.end_commit()
    assert second.take(Kind.PRODUCER_READY) == []
    scene.settle_down()
    assert second.unsettled == {1: (True, [b"a", b"b"])}
    assert [each.link for each in second.take(Kind.PRODUCER_READY)] == [1]


def test_a_batch_that_is_sent_again_counts_once() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    peer.greet()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    assert unsettled(peer, 1) == [b"a"]
    assert scene.queue("q")["ready"] == 1


def test_of_a_batch_that_is_stored_in_part_the_first_tags_are_known() -> None:
    scene = scene_of(max_length=2, overflow="reject")
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b", b"c")
    scene.settle_down()
    assert len(peer.refusals) == 1
    assert len(unsettled(peer, 2)) == scene.queue("q")["ready"]
    send(peer, 2, 1, b"d")
    scene.settle_down()
    assert b"d" not in unsettled(peer, 3)


def test_what_waits_for_room_when_the_link_is_stolen_is_not_stored() -> None:
    scene = scene_of(max_length=2, overflow="flow_control")
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b", b"c")
    scene.settle_down()
    assert len(unsettled(peer, 2)) == scene.queue("q")["ready"]


def test_what_the_client_has_settled_is_forgotten() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b")
    scene.settle_down()
    peer.say(frame(Kind.FORGET, link=1, count=2, body=encode_tags([b"a", b"unknown"])))
    assert unsettled(peer, 2) == [b"b"]


def test_a_new_delivery_under_a_stored_tag_replaces_it_before_it_is_answered() -> None:
    """2.6.12: the client has settled the former one. Were its record kept, a refused message would count as
    accepted."""
    scene = scene_of(max_length=1, overflow="reject")
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    send(peer, 1, 2, b"a")
    scene.settle_down()
    assert len(peer.refusals) == 1
    assert unsettled(peer, 2) == []


def test_tags_that_are_settled_once_more_are_those_of_later_batches_if_these_are_stored() -> None:
    """A frontend repeats FORGET, with the number of its next batch, until that batch is answered."""
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    forget = frame(Kind.FORGET, link=1, number=2, count=1, body=encode_tags([b"a"]))
    peer.say(forget)
    send(peer, 1, 2, b"a")
    scene.settle_down()
    peer.greet()
    attach(peer, 1)
    peer.say(forget)
    send(peer, 1, 2, b"a")
    scene.settle_down()
    assert unsettled(peer, 1) == [b"a"]
    assert scene.queue("q")["ready"] == 2


def test_a_closed_link_is_forgotten() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    peer.say(frame(Kind.FORGET, flags=CLOSED, link=1))
    peer.close_producer(1)
    assert unsettled(peer, 2) == []


def test_a_suspended_link_is_forgotten_when_its_time_is_over() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    pass_time(scene, peer, 2 * MINUTE)
    # While it is attached no time counts.
    peer.close_producer(1)
    pass_time(scene, peer, MINUTE - 1_000)
    assert unsettled(peer, 2) == [b"a"]
    peer.close_producer(2)
    pass_time(scene, peer, MINUTE + 1_000)
    assert unsettled(peer, 3) == []


def test_a_link_without_a_time_is_resumed_and_not_suspended() -> None:
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    assert unsettled(peer, 2, suspended_ms=0) == [b"a"]
    peer.close_producer(2)
    assert unsettled(peer, 3) == []


def test_of_a_link_the_latest_tags_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNSETTLED_TAGS_MAX", 3)
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b")
    send(peer, 1, 2, b"c", b"d")
    scene.settle_down()
    assert unsettled(peer, 2) == [b"b", b"c", b"d"]


def test_where_there_are_too_many_links_another_one_is_attached_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(termini, "TERMINI_MAX", 2)
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    attach(peer, 2, client_link="2" * 32)
    scene.settle_down()
    assert peer.unsettled == {1: (True, []), 2: (False, [])}
    send(peer, 2, 1, b"a")
    scene.settle_down()
    assert peer.accepted(2) == [1]


def with_too_many(scene: Scene, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Peer:
    """Links 1 to 3 with one, three and two tags, of which their user may have five; 3 is attached."""
    monkeypatch.setattr(termini, "TERMINI_TAGS_MAX", 10)
    peer = scene.peer()
    for link, count in ((1, 1), (2, 3), (3, 2)):
        attach(peer, link, client_link=str(link) * 32, **options)
        send(peer, link, 1, *(b"%d" % number for number in range(count)), durable=True)
        scene.settle_down()
        if link < 3:
            peer.close_producer(link)
    return peer


def resumed(peer: Peer, link: int, **options: Any) -> tuple[bool, int]:
    """Attaches a link anew: whether it is kept, and its tags."""
    attach(peer, 10 + link, client_link=str(link) * 32, **options)
    peer.scene.settle_down()
    is_kept, tags = peer.unsettled.pop(10 + link)
    return is_kept, len(tags)


def test_if_all_links_have_too_many_tags_the_one_with_most_can_not_be_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client is informed: by an empty map it would take its stored messages for lost ones."""
    scene = Scene()
    peer = with_too_many(scene, monkeypatch)
    assert [resumed(peer, link) for link in (1, 2, 3)] == [(True, 1), (False, 0), (True, 2)]
    # Once it knows that, it may be resumed as a link without unsettled deliveries.
    peer.close_producer(12)
    assert resumed(peer, 2) == (True, 0)


def test_beyond_the_share_of_a_user_the_greediest_link_of_that_user_is_lost_and_none_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bob's link has most tags of all, and is within Bob's share."""
    monkeypatch.setattr(termini, "TERMINI_TAGS_MAX", 12)
    scene = Scene()
    peer = scene.peer()
    for link, user, count in ((1, "bob", 4), (2, "ann", 1), (3, "ann", 3), (4, "ann", 1)):
        attach(peer, link, client_link=str(link) * 32, user=user)
        send(peer, link, 1, *(b"%d" % number for number in range(count)))
        scene.settle_down()
    links = ((1, "bob"), (2, "ann"), (3, "ann"), (4, "ann"))
    assert [resumed(peer, link, user=user) for link, user in links] == [
        (True, 4),
        (True, 1),
        (False, 0),
        (True, 1),
    ]


def test_a_user_that_comes_when_another_has_its_share_keeps_its_tags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(termini, "TERMINI_TAGS_MAX", 12)
    scene = Scene()
    peer = scene.peer()
    for link in range(1, 5):
        attach(peer, link, client_link=str(link) * 32, user="ann")
        send(peer, link, 1, b"a", b"b")
        scene.settle_down()
    attach(peer, 5, client_link="5" * 32, user="bob")
    send(peer, 5, 1, b"a", b"b", b"c")
    scene.settle_down()
    assert resumed(peer, 5, user="bob") == (True, 3)


def test_the_links_of_one_user_are_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link beyond is attached as one that can't be resumed; one that has ended makes room."""
    monkeypatch.setattr(termini, "TERMINI_MAX", 4)
    scene = Scene()
    peer = scene.peer()
    for link, user in ((1, "ann"), (2, "ann"), (3, "ann"), (4, "bob"), (5, "")):
        attach(peer, link, client_link=str(link) * 32, user=user)
    scene.settle_down()
    kept = {link: is_kept for link, (is_kept, _) in peer.unsettled.items()}
    assert kept == {1: True, 2: True, 3: False, 4: True, 5: False}
    peer.say(frame(Kind.FORGET, flags=CLOSED, link=4))
    peer.close_producer(4)
    attach(peer, 5, client_link="5" * 32)
    scene.settle_down()
    assert peer.unsettled[5] == (True, [])


def test_a_link_counts_for_the_user_that_has_attached_it_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termini, "TERMINI_TAGS_MAX", 10)
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a", b"b", b"c")
    scene.settle_down()
    assert resumed(peer, 1, user="ann") == (True, 3)
    attach(peer, 2, client_link="2" * 32, user="ann")
    send(peer, 2, 1, b"a", b"b")
    attach(peer, 3, client_link="3" * 32, user="ann")
    send(peer, 3, 1, b"a")
    scene.settle_down()
    assert [resumed(peer, link, user="ann") for link in (1, 2, 3)] == [(False, 0), (True, 2), (True, 1)]


def test_an_attached_link_with_most_tags_keeps_none_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termini, "TERMINI_TAGS_MAX", 10)
    scene = Scene()
    peer = scene.peer()
    attach(peer, 1, client_link="1" * 32)
    send(peer, 1, 1, *(b"%d" % number for number in range(6)))
    scene.settle_down()
    # It is opened again because its shard was lost, and its client does not get to know of that.
    peer.greet()
    attach(peer, 1, client_link="1" * 32, steals=False)
    send(peer, 1, 2, b"another")
    scene.settle_down()
    assert resumed(peer, 1) == (False, 0)


def test_a_deleted_queue_has_no_termini() -> None:
    scene = scene_of()
    peer = scene.peer()
    attach(peer, 1)
    send(peer, 1, 1, b"a")
    scene.settle_down()
    links = scene.engine._links
    assert len(links.sending.termini) == 1
    names = scene.names
    assert isinstance(names, EveryName)
    names.give("q", Policy.parse({"role": "metadata", "reference": "elsewhere"}))
    scene.refresh()
    assert len(links.sending.termini) == 0


def test_a_tick_costs_the_same_among_many_suspended_termini() -> None:
    def cost(count: int) -> int:
        scene = Scene()
        peer = scene.peer()
        for number in range(count):
            attach(peer, 1 + number, client_link=f"{number:032x}", suspended_ms=10 * MINUTE)
            peer.close_producer(1 + number)
        scene.tick()
        assert len(scene.engine._links.sending.termini) == count
        return work.lines(lambda: scene.engine._links.sending.termini.tick(scene.now_ms + 1))

    assert cost(200) < cost(5) + 50


def elsewhere() -> tuple[Scene, Peer, Peer]:
    """A link with a stored message at a frontend that is silent; its client attaches it at another."""
    scene = Scene()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    unsettled(first, 1)
    send(first, 1, 1, b"a")
    scene.settle_down()
    first.yields = False
    attach(second, 5)
    scene.settle_down()
    assert second.unsettled == {}
    assert [answer.link for answer in first.take(Kind.YIELD)] == [1]
    return scene, first, second


@pytest.mark.parametrize("closed", [True, False])
def test_a_link_that_was_closed_at_one_frontend_is_forgotten_before_it_opens_at_another(closed: bool) -> None:
    scene, first, second = elsewhere()
    if closed:
        first.say(frame(Kind.FORGET, flags=CLOSED, link=1))
    first.close_producer(1)
    first.yielded(1)
    scene.settle_down()
    assert second.unsettled[5] == (True, [] if closed else [b"a"])


def test_a_frontend_that_does_not_answer_for_a_sender_is_waited_for_no_longer_than_the_bound() -> None:
    scene, first, second = elsewhere()
    scene.tick(YIELD_MS)
    scene.settle_down()
    assert second.unsettled[5] == (True, [b"a"])
    # Its link was stolen: what it sends for it late has no effect.
    first.say(frame(Kind.FORGET, flags=CLOSED, link=1))
    scene.settle_down()
    assert unsettled(second, 6) == [b"a"]


def test_a_sending_link_that_closes_while_it_waits_is_not_opened() -> None:
    scene, first, second = elsewhere()
    second.close_producer(5)
    first.yielded(1)
    scene.settle_down()
    assert second.unsettled == {}
    assert first.refusals == []
