"""What is analysed: the words that say it go together, and only files of wanted days are opened."""

import argparse
from datetime import UTC, datetime

import pytest

from lightrail.spark.analysis.events import _on_days, add_events, check_events
from lightrail.spark.command import UsageError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_events(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("TABLE", "--from", "ARCHIVE"),
        ("TABLE", "--gateway", "http://127.0.0.1:1"),
        ("TABLE", "--since", "2026-11-22", "--until", "2026-11-21"),
        ("TABLE", "--since", "2026-11-22", "--last", "3"),
        ("TABLE", "--last", "-1"),
        ("TABLE", "--last", "nan"),
    ],
)
def test_words_that_do_not_go_together_are_wrong_use(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"expected|not before"):
        check_events(parsed(*words))


def test_a_plan_needs_the_gateway_beside_the_table() -> None:
    check_events(parsed("TABLE", "--gateway", "http://127.0.0.1:1"), gateway_is_asked=True)
    with pytest.raises(UsageError, match="--gateway URL"):
        check_events(parsed("TABLE"), gateway_is_asked=True)


def test_times_without_a_zone_are_utc_and_those_with_one_are_kept() -> None:
    args = parsed("TABLE", "--since", "2026-11-21", "--until", "2026-11-21T08:30+02:00")
    assert args.since == datetime(2026, 11, 21, tzinfo=UTC)
    assert args.until == datetime(2026, 11, 21, 6, 30, tzinfo=UTC)


def test_only_files_of_wanted_days_are_opened() -> None:
    days = [f"/lake/queue_slug=q/date=2026-11-{day}/hour=3/a.parquet" for day in range(19, 24)]
    args = parsed("TABLE", "--since", "2026-11-20T23:00Z", "--until", "2026-11-22T01:00Z")
    assert [uri for uri in days if _on_days(uri, args)] == days[1:4]
    assert [uri for uri in days if _on_days(uri, parsed("TABLE"))] == days
    assert _on_days("/lake/a.parquet", args)
