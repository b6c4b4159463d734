"""A standby makes queues ahead of a take-over; those that change are made anew."""

from lightrail.journal.record import Outcome
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.standby import MADE_QUEUES
from tests.support.shard.journal_writer import shown
from tests.support.shard.mirrored import Scene, replayed, stream


def test_queues_that_were_made_are_made_anew_where_they_changed() -> None:
    scene = Scene(segment_bytes=1 << 20)
    for queue in range(2, 9):
        scene.writer.run([("send", queue, 3, 20)])
    stream(scene.owner, [scene.mirror])
    standby = replayed(scene)
    while standby.make():
        pass
    scene.writer.run(
        [
            ("settle", 2, 0, 1),
            ("settle", 3, 1, 1, Outcome.MODIFIED),
            ("send", 4, 1, 20),
            ("declare", 5, '{"other":1}'),
            ("delete", 6),
            ("change", 7, 1),
        ]
    )
    stream(scene.owner, [scene.mirror])
    replay = standby._replay
    before = {queue: live.made for queue, live in replay.live.items()}
    scene.mirror.close()
    journal = Journal(scene.files, "test", 0, segment_bytes=700)
    recovered = journal.recover(0, 1, 2, standby)
    assert {each.queue for each in recovered.queues if each is before[each.queue]} == {1, 8}
    assert shown(recovered, journal) == scene.writer.states[-1]


def test_a_call_makes_a_bounded_number_of_queues() -> None:
    scene = Scene(segment_bytes=1 << 20)
    for queue in range(2, MADE_QUEUES + 3):
        scene.writer.run([("declare", queue)])
    stream(scene.owner, [scene.mirror])
    standby = replayed(scene)
    assert standby.make()
    assert sum(live.made is not None for live in standby._replay.live.values()) == MADE_QUEUES
    assert not standby.make()
    assert all(live.made is not None for live in standby._replay.live.values())
