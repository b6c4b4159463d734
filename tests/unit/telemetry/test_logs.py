"""Logs: one line per record, whatever is in it."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from lightrail.telemetry import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_plain_lines() -> None:
    stream = io.StringIO()
    logs.configure("shard-0", "info", "plain", stream)
    logging.getLogger("x").info("recovered %d queues", 3, extra={"lsn": 7})
    logging.getLogger("x").debug("not shown")
    time, rest = stream.getvalue().split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == "info    shard-0 recovered 3 queues lsn=7\n"


def test_nobody_can_write_a_line_that_looks_like_another() -> None:
    stream = io.StringIO()
    logs.configure("frontend-0", "info", "plain", stream)
    logging.getLogger("x").warning("peer said %s", "bye\n2026-11-20 error all is lost\x1b[2J")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert "bye\\n2026" in stream.getvalue()


def test_json_lines() -> None:
    stream = io.StringIO()
    logs.configure("shard-0", "warning", "json", stream)
    try:
        raise ValueError("boom\n")
    except ValueError:
        logging.getLogger("x").exception("failed", extra={"queue": "a"})
    logging.getLogger("x").info("not shown")
    (text,) = stream.getvalue().splitlines()
    line = json.loads(text)
    assert (line["level"], line["process"], line["logger"]) == ("error", "shard-0", "x")
    assert (line["message"], line["queue"]) == ("failed", "a")
    assert "ValueError: boom" in line["error"]
