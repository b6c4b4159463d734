"""In flight: the deliveries of one consumer that are not settled, by delivery number."""

from lightrail.shard.queue.line import Line
from lightrail.shard.queue.merging import parted
from lightrail.shard.queue.runs import Place, Run


class InFlight(Line):
    """Runs under the delivery number of their first message.

    Each is locked by the link it went to, until that settles or detaches; locks by a timer would be a
    deadline beside the key.
    """

    __slots__ = ()

    def everything(self) -> list[Run]:
        """Takes out all of them, in order of delivery."""
        runs = self.runs[self.head :]
        self.keys.clear()
        self.runs.clear()
        self.head = 0
        return runs

    def relocate(self, run: Run, segment: int, place: Place) -> None:
        """Gives those messages of `run` that are here, with a place in `segment`, their new place."""
        keys: list[int] = []
        runs: list[Run] = []
        for key, each in zip(self.keys[self.head :], self.runs[self.head :], strict=True):
            here = each.batch.place
            apart = each.sequence >= run.end or run.sequence >= each.end
            parts = [each] if apart or here is None or here.segment != segment else parted(each, run, place)
            for part in parts:
                keys.append(key + part.sequence - each.sequence)
                runs.append(part)
        if runs:
            self.replace(self.head, len(self.runs), keys, runs)
