"""A request that causes an internal error: after its records, the state in memory is not trusted."""

import pytest

from lightrail.model import conditions
from lightrail.shard.transactions.applying import Applying
from lightrail.shard.transactions.checks import Checks
from tests.support.shard.scene import Scene
from tests.unit.shard.transactions.test_prepared import ID, prepare
from tests.unit.shard.transactions.test_transactions import condition, post, transact


def broken(*_: object) -> None:
    raise AssertionError("a bug")


@pytest.mark.parametrize("over", ["one shard", "several"])
def test_after_its_records_the_shard_ends(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart applies the group whole; the client was not answered."""
    scene = Scene()
    peer = scene.peer()
    if over == "several":
        prepare(peer, post("a"))
        scene.settle_down()
    monkeypatch.setattr(Applying, "_enqueue", broken)
    request = peer.ask("conclude", id=ID, commit=True) if over == "several" else transact(peer, 1, post("a"))
    assert request not in peer.answers
    assert scene.engine.not_ready()


def test_before_its_records_it_is_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "a")
    monkeypatch.setattr(Checks, "shares", broken)
    request = transact(peer, 1, post("a"))
    assert condition(peer, request) == conditions.INTERNAL_ERROR
    assert scene.engine.not_ready() is None
