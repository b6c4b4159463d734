"""The mark of a delivery that is on disk, by which forwarders know what they have to store durably."""

from collections.abc import Sequence
from typing import Any

import pytest

from lightrail.model.policy import Policy
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import HEADER, Kind, is_stored
from tests.support.shard.scene import Peer, Scene, delivered

RESUMES: dict[str, Any] = {"client_link": "ab" * 16, "steals": True, "suspended_ms": 60_000, "recovers": True}


def marks(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bool]]:
    """The list of deliveries that `peer` has got, which grows: each message, and whether it is on disk."""
    found: list[tuple[bytes, bool]] = []
    hear = peer.hear

    def heard(parts: Sequence[bytes]) -> None:
        for part in parts:
            if HEADER.unpack_from(part)[0] == Kind.DELIVER:
                found.extend((each.message, is_stored(part)) for each in delivered(part))
        hear(parts)

    monkeypatch.setattr(peer, "hear", heard)
    return found


@pytest.mark.parametrize("policy", ["default", "always", "never"])
def test_a_delivery_says_whether_it_is_on_disk_also_one_that_is_sent_again(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "durable": policy}))
    scene = Scene(names=names)
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    for number, durable in enumerate((True, False, True, True), 1):
        sender.send(1, number, [b"%d" % number], durable=durable)
    scene.settle_down()
    receiver = scene.peer("receiver", boot=4)
    found = marks(receiver, monkeypatch)
    receiver.consume(2, "q", **RESUMES)
    receiver.credit(2, 4)
    scene.settle_down()
    expected = {"default": [True, False, True, True], "always": [True] * 4, "never": [False] * 4}[policy]
    assert found == [(b"%d" % number, stored) for number, stored in enumerate(expected, 1)]
    found.clear()
    receiver.resend(2, (0, 4))
    assert found == [(b"%d" % number, stored) for number, stored in enumerate(expected, 1)]
