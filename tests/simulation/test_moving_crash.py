"""The destination of a move dies at any byte: what it had verified can be opened, all else begins anew."""

import contextlib
from typing import Any, NamedTuple

import pytest

from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import declared_of
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.moving import (
    QUEUE,
    SEGMENT_BYTES,
    Answer,
    Twins,
    ask,
    contents,
    exporting_of,
    importing_of,
    queue_of,
    scene_of,
)
from tests.support.shard.scene import Scene

KEEP = ("some", "none", "all")
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups and delays": {"groups": True, "delay": True},
    "duplicates": {"duplicate_window": 600},
    "few": {"max_length": 12, "overflow": "flow_control"},
    "captured": {"capture": True},
}


class Source(NamedTuple):
    """What the source says of its queue, piece by piece, and what it holds at the end."""

    policy: Policy
    pieces: list[Answer]
    state: Answer
    contents: list[tuple[int, int, bytes]]
    """(sequence, attempts, message) of the durable ones."""
    numbers: dict[int, int]
    parts: dict[int, int]
    ids: int


def source_of(policy: str, seed: int) -> Source:
    """A history, with other things going on between the pieces."""
    twins = Twins(seed, POLICIES[policy])
    twins.run(60)
    scene = twins.source
    exporting = exporting_of(scene, QUEUE, "1")
    pieces = []
    position = 0
    for _ in range(4):
        twins.run(5)
        pieces.append(ask(scene, exporting, position, 300, 5))
        twins.settle_down()
        position = pieces[-1][0]["next"] or pieces[-1][0]["mark"]
    twins.settle_down()
    for rewritten in (False, True):
        further: int | None = 0 if rewritten else position
        while further is not None:
            pieces.append(ask(scene, exporting, further, 300, 5, rewritten=rewritten))
            further = pieces[-1][0]["next"]
    queue = queue_of(scene, QUEUE)
    assert queue is not None
    known = scene.engine._links.sending.numbers_of(queue)
    ids = len(queue.machine.contents.duplicates or ())
    state = exporting.state(scene.now_ms)
    return Source(twins.policy, pieces, state, contents(scene, queue), known.numbers, known.parts, ids)


class Progress:
    """How far a destination came."""

    verified = False
    """All of it is on disk."""


def copy(scene: Scene, source: Source, progress: Progress) -> None:
    """The whole move."""
    importing = importing_of(scene, QUEUE)
    importing.begin(scene.now_ms)
    for index, piece in enumerate(source.pieces):
        importing.take(*piece, scene.now_ms)
        if index % 2:
            scene.settle_down()
    importing.finish(*source.state, scene.now_ms)
    scene.settle_down()
    progress.verified = True
    importing.open(scene.engine._queues.names.get(QUEUE), 2, scene.now_ms)
    scene.engine._links.receiving.serve(importing.queue, scene.now_ms)
    scene.settle_down()


def check_whole(scene: Scene, source: Source, what: object) -> None:
    queue = queue_of(scene, QUEUE)
    assert queue is not None, what
    assert queue.epoch == 2, what
    assert contents(scene, queue) == source.contents, what
    known = scene.engine._links.sending.numbers_of(queue)
    assert (known.numbers, known.parts) == (source.numbers, source.parts), what
    assert len(queue.machine.contents.duplicates or ()) == source.ids, what


@pytest.mark.parametrize("policy", POLICIES)
def test_the_destination_dies_at_any_byte(policy: str) -> None:
    source = source_of(policy, 5)
    assert source.contents
    files = FakeFiles()
    copy(scene_of(source.policy, files, memory_mark=1 << 30), source, Progress())
    total = files.written
    seen = set()
    for steps in [*range(0, total, 61), *range(total - 400, total + 60, 3)]:
        files = FakeFiles()
        files.steps_left = steps
        progress = Progress()
        with contextlib.suppress(Crash):
            copy(scene_of(source.policy, files, memory_mark=1 << 30), source, progress)
        what = (policy, steps)
        image = files.after_crash(steps, KEEP[steps % 3])
        # Its placement has been committed where all was verified, as far as anybody knows.
        placed = (0, 2) if progress.verified else (1, 1)
        found = (
            Journal(image.after_crash(1, "all"), "test", 0, segment_bytes=SEGMENT_BYTES).recover(0, 1).queues
        )
        copies = [declared_of(each.policy).copy for each in found]
        seen.add((progress.verified, *copies))
        scene = scene_of(source.policy, image, memory_mark=(1, 1 << 30)[steps % 2], placed=placed)
        # What becomes of a copy is decided at the first look at the placements.
        scene.refresh()
        assert not scene.engine._queues.copying, what
        scene.settle_down()
        if not progress.verified:
            assert queue_of(scene, QUEUE) is None, what
            copy(scene, source, progress)
        check_whole(scene, source, what)
        image = image.after_crash(1, "none")
        again = scene_of(source.policy, image, memory_mark=1 << 30, placed=(0, 2))
        assert not again.engine._queues.copying, what
        check_whole(again, source, what)
    assert seen == {(False,), (False, True), (True, True), (True, False)}
