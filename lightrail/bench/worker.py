"""A process of a run: connects, reports it, starts on command, and returns its result or its failure."""

import gc
import os
import signal
import threading
import time
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Final

from lightrail.bench.board import Board
from lightrail.bench.plan import Share

if TYPE_CHECKING:
    from lightrail.bench.receiving import Receiving
    from lightrail.bench.sending import Sending

PARENT_POLL_S: Final = 1.0


def work(kind: str, share: Share, board: Board, pipe: Pipe) -> None:
    """The body of the process; ``kind`` is "sender" or "receiver".

    On the pipe: ("ready", None), then the start from the parent (True, or False for: end), then
    ("done", result) or ("failed", text) in place of either.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    from lightrail.bench.engine import PeerError

    # There are no reference cycles, and the collector would walk long lists of deliveries repeatedly.
    gc.disable()
    try:
        side = _side(kind, share, board)
        pipe.send(("ready", None))
        if pipe.recv():
            pipe.send(("done", side.run()))
    except PeerError as error:
        pipe.send(("failed", f"{kind} process: {error}"))
    except EOFError:
        pass


def _side(kind: str, share: Share, board: Board) -> "Sending | Receiving":
    """The role of the process; its constructor connects."""
    from lightrail.bench.receiving import Receiving, SlowReceiving
    from lightrail.bench.requesting import Requesting, Responding
    from lightrail.bench.sending import Sending

    if kind == "sender":
        return Requesting(share, board) if share.options.requests else Sending(share, board)
    if share.options.requests:
        return Responding(share, board)
    return SlowReceiving(share, board) if share.slow else Receiving(share, board)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
