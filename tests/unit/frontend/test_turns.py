"""A client that sends more than one turn may cost: its socket waits, its frames keep their order."""

from lightrail.amqp import frames
from lightrail.model import limits
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.now import now


def small_frames(count: int) -> bytes:
    """Dispositions of a delivery that nobody knows."""
    return frames.disposition(0, True, 5, 5, True, b"\x00S\x24\x45") * count


async def opened(scene: Scene) -> Client:
    client = scene.client()
    await client.open()
    return client


def test_the_socket_of_a_client_that_sends_too_much_for_one_turn_is_read_when_that_is_done() -> None:
    async def test(scene: Scene) -> None:
        client = await opened(scene)
        client.protocol.data_received(small_frames(2 * limits.FRAMES_OF_A_TURN + 1))
        assert now(client.protocol.has_more)
        assert not now(client.transport.reading)
        await scene.settle()
        assert not client.protocol.has_more
        assert client.transport.reading
        assert not client.transport.closing

    play(test)


def test_other_clients_have_their_turn_while_one_waits() -> None:
    async def test(scene: Scene) -> None:
        greedy, other = await opened(scene), await opened(scene)
        greedy.protocol.data_received(small_frames(5 * limits.FRAMES_OF_A_TURN))
        seen: list[bool] = []
        scene.frontend.soon(lambda: seen.append(greedy.protocol.has_more))
        other.protocol.data_received(small_frames(1))
        await scene.settle()
        assert seen == [True]

    play(test)


def test_a_client_that_goes_while_its_frames_wait_leaves_nothing() -> None:
    async def test(scene: Scene) -> None:
        client = await opened(scene)
        client.protocol.data_received(small_frames(2 * limits.FRAMES_OF_A_TURN))
        assert client.protocol.has_more
        client.transport.abort()
        await scene.settle()
        assert not client.protocol.has_more

    play(test)
