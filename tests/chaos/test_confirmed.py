"""Whom the broker has confirmed an outcome (receiver-settle-mode second) never sees the message again."""

import contextlib
from pathlib import Path

from lightrail.amqp.performatives import Accepted, Disposition, Flow, Transfer
from tests.support.amqp.frame_peer import Peer, value
from tests.support.broker import Broker

MESSAGES = 1_000
DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"
"""A header that says durable."""
AT_ONCE = 5
"""Outcomes that the client has sent and that are not confirmed yet."""
SECOND = 1
BODY = value(0)[:3]
"""What each message begins with behind its header."""
KILL_AFTER = (3, 10, 50, 200, 400)
"""Confirmations, of five rounds on the same data."""


def _confirmed(peer: Peer) -> range:
    """The deliveries that the broker's next frame settles; ConnectionError where it has died."""
    found = peer.next()
    if found is None:
        raise ConnectionError("the broker is dead")
    if not isinstance(found.body, Disposition):
        return range(0)
    assert (found.body.role, found.body.settled) == (False, True)
    return range(found.body.first, (found.body.first if found.body.last is None else found.body.last) + 1)


def _everything(peer: Peer) -> list[bytes]:
    """What the queue has now, without the headers, which say that it was delivered before."""
    peer.attach_receiver("queue", rcv_settle_mode=SECOND)
    peer.flow(MESSAGES, drain=True)
    got: list[bytes] = []
    while isinstance((found := peer.read()).body, Transfer):
        assert found.body.delivery_id == len(got)
        got.append(found.payload[found.payload.index(BODY) :])
    assert isinstance(found.body, Flow)
    return got


def test_what_was_confirmed_is_not_delivered_again_after_kill_9(tmp_path: Path) -> None:
    messages = [value(number) for number in range(MESSAGES)]
    expected, perhaps = set(messages), set[bytes]()
    for turn, confirmations in enumerate(KILL_AFTER):
        with Broker(tmp_path / "data") as broker, Peer(broker.amqp) as peer:
            peer.open()
            peer.begin()
            if turn == 0:
                peer.put("queue", *(DURABLE + each for each in messages))
            got = _everything(peer)
            assert len(set(got)) == len(got)
            # An outcome that was stored and not confirmed has ended its message as well.
            assert expected <= set(got) <= expected | perhaps
            said = 0
            confirmed: set[int] = set()
            with contextlib.suppress(ConnectionError):
                while len(confirmed) < confirmations:
                    for each in range(said, min(len(got), len(confirmed) + AT_ONCE)):
                        peer.write(Disposition(role=True, first=each, last=each, state=Accepted()))
                        said = each + 1
                    confirmed.update(_confirmed(peer))
                broker.kill_everything()
                # Confirmations that had left it count as well.
                while True:
                    confirmed.update(_confirmed(peer))
            assert confirmations <= len(confirmed) <= said
            perhaps = {got[each] for each in range(said) if each not in confirmed}
            expected = set(got[said:])
    with Broker(tmp_path / "data") as broker, Peer(broker.amqp) as peer:
        peer.open()
        peer.begin()
        assert expected <= set(_everything(peer)) <= expected | perhaps
