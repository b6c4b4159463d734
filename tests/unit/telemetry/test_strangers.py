"""Strangers: one line of the log for many clients of one protocol."""

import logging

import pytest

from lightrail.telemetry.strangers import KINDS_MAX, PAUSE_MS, Strangers

log = logging.getLogger("test")


def test_a_protocol_is_told_once_a_minute_with_how_many_spoke_it(caplog: pytest.LogCaptureFixture) -> None:
    strangers = Strangers(log, "AMQP 1.0 is served here")
    for number in range(3):
        strangers.heard(b"GET / HTTP/1.1\r\n", f"10.0.0.1:{number}", number)
    strangers.heard(b"AMQP\x00\x00\x09\x01", "10.0.0.2:1", 3)
    strangers.heard(b"GET / HTTP/1.1\r\n", "10.0.0.3:1", PAUSE_MS)
    assert caplog.messages == [
        "the client 10.0.0.1:0 speaks HTTP; AMQP 1.0 is served here",
        "the client 10.0.0.2:1 speaks AMQP 0-9-1; AMQP 1.0 is served here",
        "the client 10.0.0.3:1 speaks HTTP (and 2 others since the last such line); AMQP 1.0 is served here",
    ]


def test_a_protocol_may_have_a_hint_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    strangers = Strangers(log, "AMQP 1.0 is served here", {"HTTP": "see --http"})
    strangers.heard(b"GET / HTTP/1.1\r\n", "10.0.0.1:1", 0)
    assert caplog.messages == ["the client 10.0.0.1:1 speaks HTTP; see --http"]


def test_whatever_comes_the_log_has_its_end(caplog: pytest.LogCaptureFixture) -> None:
    strangers = Strangers(log, "AMQP 1.0 is served here")
    for number in range(1_000):
        strangers.heard(b"%d" % number, "10.0.0.1:1", 0)
    assert len(caplog.messages) == KINDS_MAX
    strangers.heard(b"other", "10.0.0.1:1", PAUSE_MS)
    assert len(caplog.messages) == KINDS_MAX + 1
