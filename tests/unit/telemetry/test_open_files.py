"""The warning about file descriptors that are nearly used up."""

import errno
import logging
import os
import resource
from types import SimpleNamespace

import pytest

from lightrail.telemetry.open_files import FILES_LEFT, PAUSE_S, OpenFiles

LIMIT = 1_024
log = logging.getLogger("test")


def numbered(descriptor: int) -> SimpleNamespace:
    """A socket with this file descriptor."""
    return SimpleNamespace(fileno=lambda: descriptor)


def test_the_first_connection_near_the_limit_is_logged_and_none_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = OpenFiles(log, lambda: 0.0, lambda: LIMIT)
    near = LIMIT - FILES_LEFT
    files.accepted(numbered(near - 1))
    files.accepted(None)
    assert caplog.messages == []
    files.accepted(numbered(near))
    (line,) = caplog.messages
    assert line.startswith(f"{near + 1} of {LIMIT} file descriptors are in use")
    assert "ulimit -n" in line


def test_there_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimpleNamespace(now_s=5.0)
    files = OpenFiles(log, lambda: clock.now_s, lambda: LIMIT)
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for clock.now_s in (5.0, 5.1, 5 + PAUSE_S - 0.1):
        files.lacking(error)
        files.accepted(numbered(LIMIT - 1))
    assert [each.partition("; ")[0] for each in caplog.messages] == [
        "a connection can't be accepted now: Too many open files"
    ]
    clock.now_s = 5 + PAUSE_S
    files.accepted(numbered(LIMIT - 1))
    assert [each.partition(" file")[0] for each in caplog.messages[1:]] == ["1024 of 1024"]


def test_without_a_limit_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    OpenFiles(log, lambda: 0.0, lambda: resource.RLIM_INFINITY).accepted(numbered(1_000_000))
    assert caplog.messages == []
