"""Pipe: the end of a command whose output is read by another program, which may stop reading (`| head`)."""

import os
import select
import sys
from collections.abc import Callable


def piped(command: Callable[[], int]) -> int:
    """Runs a command; returns its exit status, and 0 where the reader of its output has closed the pipe."""
    try:
        try:
            return command()
        finally:
            # What Python writes at its own exit would be reported there as an error that nobody can handle.
            sys.stdout.flush()
    except BrokenPipeError:
        output = sys.stdout.fileno()
        poll = select.poll()
        poll.register(output, 0)
        if not any(events & select.POLLERR for _, events in poll.poll(0)):
            # The pipe or socket of something else.
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        return 0
