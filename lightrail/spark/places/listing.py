"""One listing of all places that an option names: each journal with all of its segments."""

from lightrail.journal.index import SegmentIndex
from lightrail.spark.http import Access
from lightrail.spark.places import archives, gateways
from lightrail.spark.places.journals import Held, IndexKey, Journal


class Places:
    """Archive folders and a gateway; what both have is read from the archive."""

    def __init__(self, paths: tuple[str, ...], access: Access | None) -> None:
        self._paths = paths
        self._access = access
        self._indexes: dict[IndexKey, SegmentIndex] = {}

    def journals(self) -> dict[str, Journal]:
        """By disk, what is there now.

        Shards are asked before archives: a segment that a shard has no more is in the archive by then.

        Raises:
            PlaceError: a place does not answer.
        """
        found: dict[str, tuple[Journal, dict[int, Held]]] = {}
        for incarnation, listed, away in gateways.find(self._access) if self._access else ():
            live = {
                each.number: Held(each.number, [each.source], each.next_lsn, each.first_lsn)
                for each in listed
            }
            found[incarnation.disk] = Journal(incarnation, [], self._indexes, away), live
        for path in self._paths:
            for incarnation, archived in archives.find(path):
                journal, held = found.setdefault(
                    incarnation.disk, (Journal(incarnation, [], self._indexes), {})
                )
                for number, source in archived:
                    held.setdefault(number, Held(number)).sources.insert(0, source)
        for journal, held in found.values():
            journal.segments = [held[number] for number in sorted(held)]
        self._forget({(disk, number) for disk, (_, held) in found.items() for number in held})
        return {disk: journal for disk, (journal, _) in sorted(found.items())}

    def _forget(self, there: set[IndexKey]) -> None:
        for key in self._indexes.keys() - there:
            del self._indexes[key]
