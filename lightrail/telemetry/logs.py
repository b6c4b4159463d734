"""Logs: one line per record on stderr, plain for people or JSON for collectors.

Logs never contain a password, a SASL response or the content of a message. Control characters in text from a
peer are escaped, so that a peer can't forge a line.
"""

import json
import logging
import sys
import time
from typing import Final, TextIO

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class PlainFormatter(logging.Formatter):
    """``2026-11-20T10:00:00.000Z info  frontend-0 text``; a traceback follows on lines of its own."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _extra(record).items())
        line = (
            f"{_time(record.created)} {record.levelname.lower():<7} {self.process} "
            f"{escaped(record.getMessage() + fields)}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, process, logger, message, error, and the fields of ``extra``."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "process": self.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line | _extra(record), default=str)


def configure(process: str, level: str, form: str, stream: TextIO | None = None) -> None:
    """Send all logs of this process to ``stream`` (stderr); ``process`` is such as ``shard-0``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else PlainFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    logging.getLogger("asyncio").setLevel(max(LEVELS[level], logging.WARNING))
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def escaped(text: str) -> str:
    """The text with control characters and line breaks written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}
