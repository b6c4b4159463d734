"""Ranges: the offsets of a read, from options and existing journals."""

from collections.abc import Mapping

from lightrail.spark.journals.journal import Journal
from lightrail.spark.reading.losses import Loss, Losses
from lightrail.spark.reading.options import EARLIEST, LATEST, Offsets, Options, Wish, ordered
from lightrail.spark.reading.planning import first_since

NOWHERE = "no archive or gateway has this journal any longer"


def starting(options: Options, journals: Mapping[str, Journal]) -> Offsets:
    """Begin of a read in each existing or named journal.

    Raises:
        SourceError: an archive or gateway does not answer.
    """
    if options.starting_ms is not None:
        since = options.starting_ms
        return ordered({disk: first_since(journal, since) for disk, journal in there(journals).items()})
    return _resolved(options.starting, journals, EARLIEST)


def resolve(options: Options, journals: Mapping[str, Journal]) -> tuple[Offsets, Offsets]:
    """Begin and end of a batch in each journal that it reads.

    Raises:
        DataLossError: no archive or gateway has a journal of the offsets, and losses are not allowed.
        SourceError: an archive or gateway does not answer.
    """
    start = starting(options, journals)
    end = (
        _resolved("latest", journals, LATEST)
        if isinstance(options.ending, str)
        else _resolved(options.ending, journals, None)
    )
    losses = Losses(options.fail_on_loss, options.loss_path)
    for disk, next_lsn in end.items():
        first = start.setdefault(disk, next_lsn if disk not in journals else journals[disk].earliest or 0)
        if disk not in journals and first < next_lsn:
            losses.say(Loss(disk, -1, first, next_lsn, NOWHERE))
    return start, end


def there(journals: Mapping[str, Journal]) -> dict[str, Journal]:
    """Journals that have records to read."""
    return {disk: journal for disk, journal in journals.items() if journal.earliest is not None}


def _resolved(wish: Wish, journals: Mapping[str, Journal], others: int | None) -> Offsets:
    """Positions in journals; `others` is the position in unnamed journals, None to omit them."""
    found: Offsets = {}
    for disk, journal in there(journals).items():
        if isinstance(wish, str):
            position: int | None = EARLIEST if wish == "earliest" else LATEST
        else:
            position = wish.get(disk, others)
        if position == EARLIEST:
            position = journal.earliest
        elif position == LATEST:
            position = journal.latest
        if position is not None:
            found[disk] = position
    if not isinstance(wish, str):
        for disk, position in wish.items():
            if disk not in found and position >= 0:
                found[disk] = position
    return ordered(found)
