"""lightrail.bench.report and progress: figures are divided by what they should be, and lines stay plain."""

import io
import json

from lightrail.bench.kernel import Spent
from lightrail.bench.options import parse_options
from lightrail.bench.plan import RunProgress
from lightrail.bench.report import as_text, as_value
from lightrail.bench.run import RunResult, Window


def outcome() -> RunResult:
    spent = Spent(3.0, [(7, "lightrail.frontend.main", 2.0), (8, "lightrail.shard.main", 1.0)])
    window = Window(2.0, 1_000_000, 1_000_000, spent, 1.5, 1.2, switches=250_000)
    result = RunResult(
        window, sent=1_100_000, accepted=1_099_999, not_accepted={"rejected": 1}, received=1_099_999
    )
    for value in range(1, 101):
        result.latency.record(value * 1_000_000)
    return result


def test_values() -> None:
    value = json.loads(json.dumps(as_value(parse_options(["--rate", "5"]), outcome())))
    assert value["received_per_s"] == 500_000
    assert value["server_cpu_us"] == 3.0
    assert [process["cpu_us"] for process in value["server_processes"]] == [2.0, 1.0]
    assert (value["server_switches"], "server_system_calls" in value) == (0.25, False)
    assert (value["sender_cpu_us"], value["receiver_cpu_us"]) == (1.5, 1.2)
    assert value["latency_us"]["max"] == 100_000
    assert abs(value["latency_us"]["p50"] - 50_000) < 500
    assert value["accepted_after_us"] is None


def test_text_says_what_was_not_accepted_and_what_is_wrong() -> None:
    result = outcome()
    result.lost, result.lost_examples = 2, ["lost: 5 to 6 of 0x1"]
    text = as_text(parse_options([]), result)
    assert "rejected 1" in text
    assert "lost 2" in text
    assert "lost: 5 to 6" in text
    assert "3.00 µs per message: lightrail.frontend.main (7) 2.00" in text
    assert result.faults == 2


def test_system_calls_are_shown_where_they_were_counted() -> None:
    result = outcome()
    result.window.system_calls = 9_500_000
    assert as_value(parse_options([]), result)["server_system_calls"] == 9.5
    shown = "0.25 voluntary context switches, 9.50 system calls per message"
    assert shown in as_text(parse_options([]), result)


def test_messages_of_applications_have_no_size_of_their_own() -> None:
    options = parse_options(["--application", "--list32", "--ttl", "1h", "--jms"])
    kind = "messages of applications as list32 with a ttl of 3600 s and annotations of JMS, 50 to 750 bytes"
    assert f"{kind}, transient" in as_text(options, outcome())
    value = as_value(options, outcome())
    assert (value["size"], value["application"], value["list32"]) == (None, True, True)


def test_round_trips_are_called_so_and_replies_have_a_line() -> None:
    result = outcome()
    result.replies_not_accepted = {"released": 3}
    result.arrivals.misdirected = 2
    options = parse_options(["--requests", "--senders", "20"])
    text = as_text(options, result)
    assert "20 requesters, 1 responders" in text
    assert "1,000,000 round trips" in text
    assert "3.00 µs per round trip" in text
    assert "replies      misdirected 2, released 3" in text
    value = as_value(options, result)
    assert (value["requests"], value["misdirected"]) == (True, 2)
    assert value["replies_not_accepted"] == {"released": 3}
    assert result.faults == 2


def test_messages_of_slow_links_are_counted_apart_and_cost_as_much() -> None:
    result = outcome()
    result.window.slow_sent = result.window.slow_received = 500_000
    result.slow_latency.record(7_000_000)
    options = parse_options(["--senders", "4", "--receivers", "4", "--slow", "3"])
    value = as_value(options, result)
    assert (value["received_per_s"], value["slow_received_per_s"]) == (500_000, 250_000)
    assert (value["server_cpu_us"], value["measured_messages"]) == (2.0, 1_500_000)
    assert value["slow_latency_us"]["max"] == 7_000
    assert "slow         3 of the senders" in as_text(options, result)


def test_progress_without_a_terminal_is_a_plain_line_a_second() -> None:
    out = io.StringIO()
    progress = RunProgress(parse_options(["--count", "100"]), out)
    for tenth in range(25):
        progress.update(tenth / 10, tenth, tenth)
    progress.finish()
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "\r" not in out.getvalue()


def test_progress_on_a_terminal_is_a_bar_that_goes_away() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = RunProgress(parse_options(["--count", "100"]), out)
    progress.update(1.0, 60, 50)
    assert " 50% " in out.getvalue()
    progress.finish()
    assert out.getvalue().endswith("\r\x1b[K")
