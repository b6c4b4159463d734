"""Looking into messages: what reads one field of an encoded message, for queue machines that need it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from lightrail.filters.message import extract
from lightrail.filters.path import parse_path


def look(path: str) -> Callable[[bytes], Any]:
    """What reads the field `path` of an encoded message; None where it is not there or can't be read.

    Raises FilterError for a path that names no field (`lightrail/filters/path.py`).
    """
    return partial(extract, path=parse_path(path))
