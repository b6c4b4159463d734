"""What selectors may cost in one step of a shard, however many of them there are and whatever they ask."""

from lightrail.amqp.encoder import encode
from lightrail.filters.matcher import Looks
from lightrail.model import limits
from lightrail.shard.queues.dead_letters import selector
from tests.support import work
from tests.support.shard.scene import Peer, Scene, numbered_messages

ONE_LOOK = 1_000_000
"""More units than any one look costs."""


def hostile_message() -> bytes:
    return b"\x00\x53\x74" + encode({"p": "a" * 65_000}) + b"\x00\x53\x75\xa0\x01x"


def hostile_pattern() -> str:
    return "%" + "a" * 3_900 + "_" + "a" * 3_900 + "b%"


def steps_of(scene: Scene) -> list[int]:
    """Takes steps until no consumer has looks left; what each of them cost."""
    looks = scene.engine._queues.looks
    found = []
    while scene.engine._queues.deadlines.next_ms == 0:
        scene.tick(1)
        found.append(limits.LOOKS_OF_A_TURN - looks.left)
    return found


def filled(scene: Scene, peer: Peer, queue: str, link: int, messages: list[bytes], batches: int = 1) -> None:
    peer.produce(link, queue)
    for number in range(1, batches + 1):
        peer.send(link, number, messages)
    scene.settle_down()


def test_hostile_patterns_do_not_hold_up_a_shard() -> None:
    scene = Scene()
    peer = scene.peer()
    filled(scene, peer, "q", 1, [hostile_message()], 12)
    pattern = hostile_pattern()
    most = 10 * len(pattern)
    assert work.lines(lambda: peer.consume(2, "q", 100, filter={"sql": f"p LIKE '{pattern}'"})) < 2 * most
    assert not peer.refusals
    while scene.engine._queues.deadlines.next_ms == 0:
        assert work.lines(lambda: scene.tick(1)) < most
    assert not peer.messages(2)


def test_the_looks_of_one_step_are_bounded_and_all_of_them_are_done() -> None:
    scene = Scene()
    peer = scene.peer()
    wanted = b"\x00\x53\x74" + encode({"p": "wanted"}) + b"\x00\x53\x75\xa0\x01w"
    filled(scene, peer, "q", 1, numbered_messages(20_000) + [wanted])
    expression = " OR ".join(f"p = 'x{n}'" for n in range(200))
    peer.consume(2, "q", 10, filter={"sql": f"{expression} OR p = 'wanted'"})
    spent = steps_of(scene)
    assert peer.messages(2) == [wanted]
    assert len(spent) > 10
    assert max(spent) < limits.LOOKS_OF_A_TURN + ONE_LOOK
    assert sorted(spent)[-2] < limits.LOOKS_OF_A_TURN + 1_000


def test_consumers_of_many_queues_share_the_looks_of_a_step() -> None:
    scene = Scene()
    peer = scene.peer()
    for number in range(40):
        filled(scene, peer, f"q{number}", 1 + number, numbered_messages(1_000))
        expression = " OR ".join(f"p = 'x{n}'" for n in range(200))
        peer.consume(100 + number, f"q{number}", 10, filter={"sql": expression})
    spent = steps_of(scene)
    assert max(spent) < limits.LOOKS_OF_A_TURN + 1_000


def test_a_queue_is_not_kept_from_looking_by_one_that_always_has_more_to_look_at() -> None:
    scene = Scene()
    peer = scene.peer()
    expression = " OR ".join(f"p = 'x{n}'" for n in range(240))
    peer.consume(3, "busy", 10, filter={"sql": expression})
    peer.consume(4, "other", 10, filter={"sql": f"p IS NULL OR {expression}"})
    filled(scene, peer, "busy", 1, numbered_messages(4_000))
    peer.produce(2, "other")
    peer.send(2, 1, numbered_messages(1))
    for _ in range(6):
        if peer.messages(4):
            break
        peer.send(1, 1 + _ + 1, numbered_messages(4_000))
        scene.tick(1)
    assert peer.messages(4) == numbered_messages(1)


def test_consumers_of_one_queue_take_turns_in_looking() -> None:
    scene = Scene()
    peer = scene.peer()
    filled(scene, peer, "q", 1, numbered_messages(100_000))
    expression = " OR ".join(f"p = 'x{n}'" for n in range(240))
    peer.consume(2, "q", 10, filter={"sql": expression})
    peer.consume(3, "q", 10, filter={"sql": f"p IS NULL OR {expression}"})
    for _ in range(3):
        scene.tick(1)
    assert len(peer.messages(3)) == 10


def test_a_browser_shares_the_looks() -> None:
    scene = Scene()
    peer = scene.peer()
    filled(scene, peer, "q", 1, numbered_messages(10_000))
    expression = " OR ".join(f"p = 'x{n}'" for n in range(200))
    peer.consume(2, "q", 10, filter={"sql": expression}, browse=True)
    assert len(steps_of(scene)) > 3
    assert not peer.messages(2)


def test_a_selector_says_not_now_when_the_looks_are_used_up() -> None:
    looks = Looks()
    selects = selector({"sql": "p IS NULL"}, looks)
    [message] = numbered_messages(1)
    assert selects(message) is True
    looks.left = 0
    assert selects(message) is None
    looks.begin()
    assert selects(message) is True
    assert looks.spent > 0


def test_others_are_served_while_a_selector_looks() -> None:
    scene = Scene()
    peer, other = scene.peer(), scene.peer("frontend-1", 8)
    filled(scene, peer, "q", 1, numbered_messages(50_000))
    other.produce(1, "plain")
    other.consume(2, "plain", 10)
    peer.consume(2, "q", 10, filter={"sql": " OR ".join(f"p = 'x{n}'" for n in range(240))})
    assert scene.engine._queues.deadlines.next_ms == 0
    other.send(1, 1, numbered_messages(1), durable=False)
    assert other.messages(2) == numbered_messages(1)
    assert scene.engine._queues.deadlines.next_ms == 0
