"""Work of a call, counted and not timed: the same number on every machine, however busy it is."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines(call: Callable[[], object]) -> int:
    """Lines of Python that a call executes in this thread; a loop counts its lines in each round.

    Built-in functions count as the line that calls them, so their input needs a bound of its own. The garbage
    collector pauses: what it calls is in whichever call it happens to run.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
