"""Losses: ranges of a journal that can't be read. They are an error, or on request logged and skipped."""

import json
import logging
from dataclasses import asdict, dataclass

from lightrail.spark.journals.archives import file_system

_LOG = logging.getLogger("lightrail.spark")


@dataclass(frozen=True, slots=True)
class Loss:
    """Unreadable records of a journal, from first_lsn to before next_lsn."""

    journal: str
    shard: int
    first_lsn: int
    next_lsn: int
    reason: str

    def __str__(self) -> str:
        return (
            f"journal {self.journal} of shard {self.shard}: records {self.first_lsn} to before "
            f"{self.next_lsn} can't be read: {self.reason}"
        )


class DataLossError(Exception):
    """Records of the range are missing or damaged."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(
            f"{loss}. Restore them (a copy of the archive, or the journal's own repair), or set "
            "failOnDataLoss=false (--allow-loss of lightrail-spark) to continue without them"
        )
        self.loss = loss


@dataclass(eq=False, repr=False)
class Losses:
    """Handling of losses: an error, or a log line, and a file if a folder is named."""

    _fail: bool
    _folder: str | None = None

    def say(self, loss: Loss) -> None:
        """Reports lost records.

        Raises:
            DataLossError: losses are not allowed.
        """
        if self._fail:
            raise DataLossError(loss)
        _LOG.warning("%s", loss)
        if self._folder is None:
            return
        system, folder = file_system(self._folder)
        system.create_dir(folder, recursive=True)
        # Named after the lost range, so that a repeated task counts nothing twice.
        name = f"{folder}/{loss.journal}-{loss.first_lsn:020d}-{loss.next_lsn:020d}.json"
        with system.open_output_stream(name) as stream:
            stream.write(json.dumps(asdict(loss)).encode() + b"\n")
