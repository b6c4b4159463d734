"""Opens the files of a journal: checks its identity and extent, and reads its records."""

from collections.abc import Callable
from typing import NamedTuple

from lightrail.journal.archive import Incarnation
from lightrail.shard.journal import extent as extents
from lightrail.shard.journal import identity, recovery
from lightrail.shard.journal.extent import Extent
from lightrail.shard.journal.files import Files
from lightrail.shard.journal.loading import load_queues
from lightrail.shard.journal.recovery import Replay
from lightrail.shard.journal.store import RecoveredQueue


class Opened(NamedTuple):
    """The files of a journal, after their records were read."""

    salt: int
    incarnation: Incarnation
    extent: Extent
    """The extent that the extent file has."""
    replay: Replay
    queues: list[RecoveredQueue]


def open_files(
    files: Files,
    cluster: str,
    shard: int,
    producers_max: int,
    memory_bytes: int,
    judge: Callable[[Extent], None],
) -> Opened:
    """Reads all segments; cuts a torn tail.

    Args:
        memory_bytes: bound of the bytes of messages in memory.
        judge: called before a file is changed; raises StoreError if the journal is too short.
    """
    salt = None
    if identity.load(files) is None:
        salt = recovery.salt_of(files)
    found = identity.settle(files, cluster, shard, salt)
    known = extents.load(files, found.salt)

    def check(extent: Extent, end: int) -> None:
        extents.check(known, extent.segment, end, extent.next_lsn)
        judge(extent)

    replay = recovery.replay(files, found.salt, producers_max, check)
    try:
        queues = load_queues(replay, found.salt, memory_bytes)
    except BaseException:
        for segment in replay.segments:
            segment.close()
        raise
    return Opened(found.salt, Incarnation(found.cluster, found.shard, found.disk), known, replay, queues)
