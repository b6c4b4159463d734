"""lightrail.bench.options and url: what is taken, and that each refusal says what is allowed."""

import os
from pathlib import Path

import pytest

from lightrail.bench.numbered import PLAIN, NumberedSections
from lightrail.bench.options import parse_options
from lightrail.bench.plan import parse_url

SLOW = "--slow 1 --senders 3 --receivers 3"


def test_defaults_run_without_a_word() -> None:
    options = parse_options([])
    assert (options.url.host, options.url.port, options.url.address) == ("127.0.0.1", 5672, "bench")
    assert (options.senders, options.receivers, options.size, options.count) == (1, 1, 100, None)
    assert options.numbered == PLAIN
    assert (options.target_of(0), options.selector) == ("bench", None)


def test_everything_that_can_be_said() -> None:
    options = parse_options(
        "--url amqp://me:p%40ss@[::1]:1234//queue/a%20b --senders 3 --receivers 4 --connections 2 --queues 4 "
        "--count 1_000 --rate 12.5 --size 24 --durable --credit 7 --warm-up 0s --drain-time 2s --processes 2 "
        "--priorities 3 --message-ids --groups 5 --property colour=1000 --selector true --target router "
        f"--backlog 9 --unsettled 8 --pids {os.getpid()} --json --quiet".split()
    )
    url = options.url
    assert (url.host, url.port, url.user, url.password, url.address) == (
        "::1",
        1234,
        "me",
        "p@ss",
        "/queue/a b",
    )
    assert "p@ss" not in url.shown
    assert options.pids == (os.getpid(),)
    assert [options.count_of(i) for i in range(3)] == [334, 333, 333]
    assert options.numbered == NumberedSections(3, True, 5, ("colour", 1_000))
    assert (options.target_of(2), options.selector) == ("router", "true")
    assert [options.address_of(i) for i in (0, 3, 4)] == ["/queue/a b-1", "/queue/a b-4", "/queue/a b-1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--slow", "1", "--senders", "2"],
            "--slow 1 needs more senders and more receivers than that, found 2",
        ),
        (["--requests", "--application"], "choose one"),
        (["--requests", "--send-only"], "answered one by one for each requester: not with --send-only"),
        (["--requests", "--drain-only"], "not with --drain-only"),
        (["--requests", "--backlog", "5"], "not with --backlog"),
        (["--requests", "--unsettled", "5"], "not with --unsettled"),
        (["--requests", *SLOW.split()], "not with --slow"),
        (["--slow-rate", "1"], "--slow-rate is for the links of --slow, found none"),
        (["--slow-time", "1s"], "--slow-time is for the links of --slow, found none"),
        (f"{SLOW} --slow-rate 0".split(), "expected messages per second, above 0"),
        (f"{SLOW} --count 5".split(), "not with --count"),
        (f"{SLOW} --send-only".split(), "not with --send-only"),
        (f"{SLOW} --drain-only".split(), "not with --drain-only"),
        (f"{SLOW} --target r".split(), "not with --target"),
        (f"{SLOW} --queues 3".split(), "--queues 3 needs as many receivers, found 2 that are not slow"),
        (["--size", "23"], "expected a whole number from 24"),
        (["--size", "many"], "found 'many'"),
        (["--count", "-1"], "found '-1'"),
        (["--senders", "0"], "--senders and --receivers are at least 1"),
        (["--rate", "0"], "expected messages per second, above 0, found '0'"),
        (["--rate", "nan"], "found 'nan'"),
        (["--duration", "soon"], "expected a time"),
        (["--queues", "2"], "--queues 2 needs as many receivers, found 1"),
        (["--send-only", "--drain-only"], "exclude each other"),
        (["--drain-only", "--rate", "5"], "--drain-only does not send"),
        (["--pre-settled", "--unsettled", "5"], "no outcome"),
        (["--drain-only", "--target", "r"], "--drain-only does not send"),
        (["--list32"], "--list32 is for messages of --application"),
        (["--ttl", "1h"], "--ttl is for messages of --application"),
        (["--jms"], "--jms is for messages of --application"),
        (["--application", "--groups", "3"], "properties of their own"),
        (["--property", "colour"], "expected NAME=N"),
        (["--property", "=3"], "found '=3'"),
        (["--property", "colour=0"], "a number from 1 to 1000000000"),
        (["--property", "colour=many"], "found 'colour=many'"),
        (["--priorities", "11"], "expected a whole number from 0 to 10"),
        (["--groups", "few"], "expected a whole number from 0"),
        (["--pids", "999999999"], "expected ids of running processes"),
        (["--system-calls"], "counts those of the processes of --pids, found none"),
        (["--url", "http://x/y"], "expected amqp://"),
        (["--user", "alice"], "--user and --password-file go together"),
        (["--user", "alice", "--password-file", "/nowhere"], "expected a file that can be read"),
        (["--url", "amqp://x:99999/y"], "expected a port from 1 to 65535"),
    ],
)
def test_refusals_say_what_is_allowed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments)
    assert caught.value.code == 2
    # argparse wraps and quotes on its own terms
    said = " ".join(capsys.readouterr().err.split())
    if message.startswith("expected a time"):
        assert "a time from" in said
    else:
        assert message in said


def test_requesters_have_queues_of_their_own_for_replies() -> None:
    options = parse_options(["--requests", "--senders", "2", "--queues", "2", "--receivers", "2"])
    assert options.numbered == NumberedSections(message_ids=True)
    assert [options.reply_address_of(requester) for requester in range(2)] == [
        "bench-reply-1",
        "bench-reply-2",
    ]
    assert [options.target_of(requester) for requester in range(2)] == ["bench-1", "bench-2"]


def test_slow_pairs_have_queues_of_their_own() -> None:
    options = parse_options(["--slow", "2", "--senders", "5", "--receivers", "4", "--queues", "2"])
    assert (options.slow, options.slow_rate, options.slow_time_s) == (2, 5.0, 0.1)
    addresses = [options.address_of(link) for link in range(5)]
    assert addresses == ["bench-slow-1", "bench-slow-2", "bench-1", "bench-2", "bench-1"]
    options = parse_options([*SLOW.split(), "--slow-rate", "0.5", "--slow-time", "2s"])
    assert (options.slow_rate, options.slow_time_s) == (0.5, 2.0)


def test_a_password_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("very secret\nnot this\n")
    options = parse_options(
        ["--url", "amqp://x/y", "--user", "alice", "--password-file", str(tmp_path / "password")]
    )
    assert (options.url.user, options.url.password) == ("alice", "very secret")
    assert "secret" not in options.url.shown


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(["--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_a_bare_address_is_a_host() -> None:
    assert parse_url("example.org/q").host == "example.org"
    assert parse_url("amqp://h").address == "bench"
