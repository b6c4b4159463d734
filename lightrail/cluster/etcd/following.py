"""Following: the thread that lists and watches etcd, and passes entries to the loop.

A list that does not continue the known history (history.py) is not used; etcd is listed again when its
revision has changed.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from lightrail.cluster.coordinator import CoordinatorError, SetBack
from lightrail.cluster.entries import HISTORY, Entry
from lightrail.cluster.etcd.channels import EtcdSettings, EtcdTimes
from lightrail.cluster.etcd.client import IDENTITY, EtcdClient, Identity, WatchEndedError, WatchLostError
from lightrail.cluster.etcd.view import Change, View
from lightrail.cluster.history import History, doubt

if TYPE_CHECKING:
    from lightrail.cluster.etcd.coordinator import EtcdCoordinator

log = logging.getLogger("lightrail.cluster.etcd.following")

_ANOTHER: Final = "holds another cluster"


class Follower:
    """A thread that follows etcd until it is stopped."""

    def __init__(
        self,
        settings: EtcdSettings,
        times: EtcdTimes,
        loop: asyncio.AbstractEventLoop,
        view: View,
        listener: "EtcdCoordinator",
    ) -> None:
        self.problem = ""
        """Why etcd is not followed now; empty while it is."""
        self._prefix = settings.prefix
        self._times = times
        self._loop = loop
        self._view = view
        """The loop's view; the thread reads it only after `_wait_for_loop`."""
        self._listener = listener
        self._identity = Identity("", b"")
        self._client = EtcdClient(settings, times)
        self._has_listed = False
        self._doubted_at = 0
        """Revision of the last list that was not used."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="etcd-watch", daemon=True)

    def start(self, identity: Identity) -> None:
        """Starts the thread; entries are used only if etcd has this identity."""
        self._identity = identity
        self._thread.start()

    def end(self) -> None:
        """Interrupts calls in progress; `join` waits for the thread."""
        self._ended.set()
        self._client.close()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _follow(self) -> None:
        pause = self._times.pause
        while not self._ended.is_set():
            began = time.monotonic()
            lost = False
            try:
                if self._is_doubted_still():
                    self._ended.wait(self._times.pause_max)
                    continue
                self._client.follow(self._found_list, self._found_changes, self._ended)
                problem = "etcd ended the watch"
            except (WatchEndedError, CoordinatorError) as error:
                problem = str(error)
                lost = isinstance(error, WatchLostError)
            except Exception as error:
                # This thread must not end: without it the process would never see changes again.
                log.exception("following etcd failed; it starts again")
                problem = repr(error)
            if self._ended.is_set():
                return
            if not self.problem or (_ANOTHER in problem and _ANOTHER not in self.problem):
                log.warning("etcd is not followed now, the known state is used: %s", problem)
            self.problem = problem
            self._hand(partial(self._listener.unfollowed, lost))
            if time.monotonic() - began > self._times.pause_max:
                pause = self._times.pause
            self._ended.wait(pause)
            pause = min(2 * pause, self._times.pause_max)

    def _found_list(self, entries: list[Entry], revision: int) -> None:
        identity = next((each for each in entries if each.key == IDENTITY), None)
        if identity is None or Identity.decode(identity, self._prefix) != self._identity:
            # Its entries would delete all queues of this process.
            raise CoordinatorError(
                f"etcd {_ANOTHER} below {self._prefix} than {self._identity.cluster}, which "
                "was there when this process started: restore that one, or restart all processes"
            )
        there = [each for each in entries if each.key != IDENTITY]
        new_history = self._check(there, revision)
        if self.problem:
            log.info("etcd is followed again, from revision %d", revision)
        self.problem = ""
        self._doubted_at = 0
        self._hand(partial(self._listener.listed, there, revision, new_history))
        self._has_listed = True

    def _found_changes(self, changes: list[Change], revision: int) -> None:
        there = [each for each in changes if each[0] != IDENTITY]
        self._hand(partial(self._listener.changed, there, revision))

    def _check(self, there: list[Entry], revision: int) -> bool:
        """Whether a list begins a new history that was accepted. Raises CoordinatorError if it is doubted."""
        if not self._has_listed:
            return False
        self._wait_for_loop()
        view = self._view
        now = History.decode(next((each for each in there if each.key == HISTORY), None))
        if now.continues(History.decode(view.entries.get(HISTORY))):
            return True
        then, known_at = None, view.known_at
        if revision < view.revision:
            known_at = view.revision
        elif (versions := self._client.versions(known_at)) is not None:
            then = [each for each in versions if each[0] != IDENTITY]
        reason = doubt(view.entries, known_at, there, revision, then)
        if not reason:
            return False
        found = SetBack(known_at, revision, reason)
        self._doubted_at = revision
        self._hand(partial(self._listener.doubted, found))
        raise CoordinatorError(explained(found))

    def _wait_for_loop(self) -> None:
        """Waits until the loop has applied all entries; the view does not change until the next entries."""
        reached = threading.Event()
        self._hand(reached.set)
        while not reached.wait(self._times.pause):
            if self._ended.is_set():
                raise WatchEndedError("the coordinator is closed")

    def _is_doubted_still(self) -> bool:
        """Whether etcd still has the revision of the unused list: then it is not listed again."""
        if not self._doubted_at:
            return False
        return self._client.revision(time.monotonic() + self._times.attempt) == self._doubted_at

    def _hand(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop was closed without `close`: there is no listener any more.
            self._ended.set()


def explained(found: SetBack) -> str:
    """The evidence and the remedy, as text."""
    return (
        f"etcd was set back, as by a restored snapshot: {found.reason}. The state of revision "
        f"{found.known_at} is used, and nothing is deleted or written. Start the etcd that has it, "
        "or write the lost entries with `lightrail-admin coordinator put-back` (docs/operate/backup.md)"
    )
