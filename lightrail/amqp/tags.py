"""Delivery-tags of a link's unsettled deliveries: none may come a second time before it is settled (2.6.12).

Theory. Most clients number their deliveries: a big-endian number of 1 to 8 bytes, or decimal digits. As long
as each tag is the one after the last, no tag of the link is stored: an unsettled delivery's tag is its id
less the `shift` of its range (unsettled.py), a run begins with the tag that follows, and a reader of a run
(scanner.py, shapes.py) compares one number per message. The first other tag (a random one, or a number that
came before) turns the numbers of unsettled deliveries into entries of a dict, and from there on each tag is
one. Entries of settled deliveries stay until they are many, so that a settlement costs nothing; an entry
counts only while its delivery is unsettled. A link has numbers again once its session has nothing unsettled
and two tags followed each other.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from lightrail.amqp.compiled import transfers
from lightrail.amqp.errors import LinkProtocolError
from lightrail.amqp.link import SETTLE_SETTLED, Link
from lightrail.amqp.transfers import TAG_DECIMAL, TAG_NUMBER_BYTES_MAX
from lightrail.amqp.unsettled import Unsettled
from lightrail.model import conditions

LINK_TAGS_MAX: Final[int] = 16_384
"""Unsettled deliveries of a link whose delivery-tags are not consecutive numbers, so that each tag is kept.
Unsettled tags are counted again when half more tags are kept than after the last count."""
PRUNE_AT: Final = 1_024
"""Entries, at least, when those of settled deliveries are removed."""


def number_of(tag: bytes, form: int) -> int:
    """The number of a tag in this form; -1 where it is none."""
    number: int = transfers.tag_number(tag, 0, len(tag), form)
    return number


def form_of(tag: bytes) -> int:
    """The form of a tag that is a number: its width in bytes, or TAG_DECIMAL; 0 for any other tag."""
    if number_of(tag, TAG_DECIMAL) >= 0:
        return TAG_DECIMAL
    size = len(tag)
    return size if size <= TAG_NUMBER_BYTES_MAX and number_of(tag, size) >= 0 else 0


def tag_of(form: int, number: int) -> bytes:
    """The tag of this number; one too long for its form is the tag of no delivery."""
    if form == TAG_DECIMAL:
        return b"%d" % number
    return number.to_bytes(max(form, (number.bit_length() + 7) >> 3), "big")


def _first_repeated(tags: Sequence[bytes]) -> int:
    """The index of the first tag that is among those before it."""
    seen: set[bytes] = set()
    for index, tag in enumerate(tags):
        if tag in seen:
            return index
        seen.add(tag)
    raise ValueError("expected a tag that comes twice, found none")


class Tags:
    """The delivery-tags that are in use on one link."""

    __slots__ = ("_known", "_last", "_link", "_prune_at", "_unsettled", "following", "form")

    def __init__(self, link: Link, unsettled: Unsettled[Any]) -> None:
        self._link = link
        self._unsettled = unsettled
        self.form = 0
        """Form of the numbers, while all tags in use are neighbouring ones; 0 while they are in the dict."""
        self.following = 0
        """The number that comes next."""
        self._known: dict[bytes, int] = {}
        """Unwrapped delivery-ids by tag."""
        self._last: bytes | None = None
        """The latest tag in the dict."""
        self._prune_at = PRUNE_AT

    def is_used(self, tag: bytes) -> bool:
        """Whether a delivery with this tag is unsettled."""
        if not self.form:
            known = self._known.get(tag)
            return known is not None and self._unsettled.has(self._link, known)
        number = number_of(tag, self.form)
        if not 0 <= number < self.following:
            return False
        return any(
            each.first <= number + each.shift <= each.last
            for each in self._unsettled.ranges
            if each.link is self._link
        )

    def check(self, tag: bytes) -> None:
        """Raise LinkProtocolError where a delivery with this tag is unsettled."""
        if self.is_used(tag):
            raise LinkProtocolError(
                conditions.NOT_ALLOWED,
                f"expected a delivery-tag that no unsettled delivery on link {self._link.name!r} has, found"
                f" {tag!r} again",
            )

    def add(self, tag: bytes, delivery_id: int, settled: bool) -> int:
        """Record one delivery whose tag is not used; returns the shift of its range. Raises as `admit`."""
        if self._link.snd_settle_mode == SETTLE_SETTLED:
            return 0
        self.admit([tag], delivery_id, settled)
        return self.shift(delivery_id + 1)

    def admit(self, tags: list[bytes], first: int, settled: bool) -> int:
        """Record the deliveries first, first + 1 … whose tags are not known to be the numbers that follow.

        Returns:
            How many: all of them, or those before the first whose tag is in use, and then none is recorded.

        Raises:
            LinkProtocolError: more tags are unsettled than are kept.
        """
        if self.form:
            if self._follow(tags):
                return len(tags)
            self._end_numbers()
        known = self._known
        count = len(tags)
        last = self._last
        self._last = tags[-1]
        # The first tags of the link, or nothing of the session is unsettled: no tag is in use (2.6.12). The
        # dict is emptied without looking at its entries, and numbers may begin.
        if last is None or not self._unsettled.ranges:
            known.clear()
            if self._begin_numbers(tags, last):
                return count
        # One set operation in C for the whole run. Only where a tag is known, perhaps of a delivery that is
        # settled by now, each is looked up.
        elif not known.keys().isdisjoint(tags):
            for index, tag in enumerate(tags):
                if self.is_used(tag):
                    return index
        if settled:
            return count
        before = len(known)
        known.update(zip(tags, range(first, first + count), strict=True))
        # Fewer entries than tags: either an entry of a settled delivery was replaced, which is right, or a
        # tag comes twice in this run.
        if len(known) - before != count and len(set(tags)) != count:
            return _first_repeated(tags)
        # Not at each settlement: dispositions settle ranges of ids, and finding the tags of a range would
        # cost as much as receiving it.
        if len(known) > self._prune_at:
            self._prune(first)
        return count

    def shift(self, following_id: int) -> int:
        """Delivery-id less number of the tag, given the id after the latest delivery; 0 in the dict."""
        return following_id - self.following if self.form else 0

    def _begin_numbers(self, tags: list[bytes], last: bytes | None) -> bool:
        """Whether these are numbers in order, the first on the link or next to the last tag."""
        form = form_of(tags[0])
        if not form:
            return False
        number = number_of(tags[0], form)
        if last is not None and number_of(last, form) != number - 1:
            return False
        self.form = form
        self.following = number
        if self._follow(tags):
            return True
        self.form = 0
        return False

    def _follow(self, tags: list[bytes]) -> bool:
        """Whether these are the numbers that follow; then they are recorded."""
        form = self.form
        number = self.following
        for tag in tags:
            if number_of(tag, form) != number:
                return False
            number += 1
        self.following = number
        return True

    def _end_numbers(self) -> None:
        """From here on, tags are in the dict."""
        form = self.form
        mine = [each for each in self._unsettled.ranges if each.link is self._link]
        # Before the dict grows: a peer could have millions of numbered deliveries, which take a few ranges,
        # become entries by one odd tag.
        self._check_room(sum(each.last - each.first + 1 for each in mine))
        for each in mine:
            numbers = range(each.first - each.shift, each.last - each.shift + 1)
            self._known.update((tag_of(form, number), number + each.shift) for number in numbers)
        self._last = tag_of(form, self.following - 1)
        self.form = 0

    def _prune(self, new: int) -> None:
        """Remove the entries of deliveries before `new` that are settled."""
        # First by one comparison for each entry: most are older than the oldest unsettled delivery. Only if
        # many stay, each is looked for among the ranges.
        oldest = self._unsettled.ranges[0].first if self._unsettled.ranges else new
        kept = {tag: number for tag, number in self._known.items() if number >= oldest}
        if 2 * len(kept) > self._prune_at:
            kept = dict(self._living(kept, new))
            self._check_room(len(kept))
        self._known = kept
        self._prune_at = max(PRUNE_AT, len(kept) + (len(kept) >> 1))

    def _living(self, known: dict[bytes, int], new: int) -> Iterator[tuple[bytes, int]]:
        for tag, number in known.items():
            if number >= new or self._unsettled.has(self._link, number):
                yield tag, number

    def _check_room(self, count: int) -> None:
        if count > LINK_TAGS_MAX:
            raise LinkProtocolError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"expected at most {LINK_TAGS_MAX} unsettled deliveries with delivery-tags that"
                f" are not numbered on link {self._link.name!r}, found {count}",
            )
