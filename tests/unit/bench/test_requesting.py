"""lightrail.bench.requesting: a reply ends the wait for it, and no other does."""

from typing import Any

from lightrail.bench.arrivals import Arrivals
from lightrail.bench.histogram import Histogram
from lightrail.bench.message import STAMP, build, origin_of, parse
from lightrail.bench.numbered import NumberedSections
from lightrail.bench.options import parse_options
from lightrail.bench.plan import Share
from lightrail.bench.requesting import Replies, reply_to

RUN = 5
ORIGIN, OTHER = origin_of(RUN, 0), origin_of(RUN, 1)


def replies() -> Replies:
    """Without a connection: what is received is put in by hand."""
    nothing: Any = None
    share = Share(parse_options(["--requests"]), 0, RUN, (0,), 1)
    made = Replies(nothing, nothing, share, Arrivals(), Histogram())
    made.origin, made.awaited = ORIGIN, 3
    return made


def reply(origin: int, sequence: int, stamped: int | None = None) -> bytearray:
    """A reply to one request; ``stamped`` is the number in its body where that is of another one."""
    template = build(100, False, NumberedSections(message_ids=True, reply_to="there"), origin)
    for digits in template.digits:
        digits.write(template.buffer, sequence)
    number = sequence if stamped is None else stamped
    STAMP.pack_into(template.buffer, template.stamp_at, origin, number, 1_000)
    return bytearray(reply_to(template.buffer, parse(template.buffer), False).octets)


def test_the_reply_ends_the_wait_and_is_measured() -> None:
    made = replies()
    made._rare(reply(ORIGIN, 3), 5_000, 1)
    assert made.awaited is None
    assert (made.histogram.count, made.histogram.max_ns) == (1, 4_000)
    assert made.arrivals.missing(ORIGIN, 4) == [(0, 2)]


def test_a_reply_that_comes_again_is_a_duplicate_and_ends_no_wait() -> None:
    made = replies()
    made._rare(reply(ORIGIN, 3), 5_000, 0)
    made.awaited = 4
    made._rare(reply(ORIGIN, 3), 6_000, 0)
    assert (made.awaited, made.arrivals.duplicates, made.histogram.count) == (4, 1, 0)


def test_replies_to_others_and_with_bodies_of_others_are_misdirected() -> None:
    made = replies()
    made._rare(reply(OTHER, 3), 5_000, 0)
    made._rare(reply(ORIGIN, 2, stamped=3), 5_000, 0)
    assert (made.awaited, made.arrivals.misdirected) == (3, 2)
    assert made.arrivals.examples[0] == f"misdirected: reply 3 of {OTHER:#x} went to {ORIGIN:#x}"
    merged = Arrivals()
    merged.merge(made.arrivals)
    assert merged.misdirected == 2


def test_replies_of_an_earlier_run_are_foreign() -> None:
    made = replies()
    made._rare(reply(origin_of(RUN + 1, 0), 3), 5_000, 0)
    made._rare(bytearray(b"no message"), 5_000, 0)
    assert (made.awaited, made.foreign, made.arrivals.misdirected) == (3, 2, 0)
