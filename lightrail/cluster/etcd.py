"""EtcdCoordinator: the key space of a cluster in etcd, below ``/lightrail/CLUSTER/``.

Imported only where etcd is used: the etcd3 package, gRPC and protobuf cost memory. Never fork after it was
opened.

One thread lists and watches (etcd_client.py) and hands what it hears to the loop, where the view is
(etcd_view.py): `news`, `entry` and `entries` are answered from it, also while etcd is away. Writes run in a
few threads, and end when the view has seen them. A task keeps the lease of this process's registrations, and
asks etcd for a sign of life where there is none: so `counts` tells soon that etcd is away.
"""

import asyncio
import base64
import heapq
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from lightrail.cluster.coordinator import (
    WRITES_MAX,
    Conflict,
    CoordinatorError,
    CoordinatorFull,
    CoordinatorRefused,
    Entry,
    News,
    NotSetBack,
    PutBack,
    SetBack,
    Write,
)
from lightrail.cluster.etcd_channels import EtcdSettings, EtcdTimes, LeaseLost, NotAsked
from lightrail.cluster.etcd_client import EtcdClient, WatchEnded, WatchLost
from lightrail.cluster.etcd_view import Change, View
from lightrail.cluster.history import HISTORY, History, doubt, restoring
from lightrail.cluster.keyed import KeyedCoordinator
from lightrail.model import limits

__all__ = ["EtcdCoordinator", "EtcdSettings", "EtcdTimes"]

log = logging.getLogger("lightrail.cluster.etcd")
IDENTITY: Final = "identity"
_ANOTHER: Final = "holds another cluster"
_NO_REVISION: Final = 1
"""Of an entry: etcd is at this revision before anything is written to it."""
Answer = TypeVar("Answer")


class EtcdCoordinator(KeyedCoordinator):
    """See the port for what its methods promise. Make one by ``await EtcdCoordinator.open(settings)``."""

    def __init__(self, settings: EtcdSettings, loop: asyncio.AbstractEventLoop, times: EtcdTimes) -> None:
        super().__init__()
        self._settings = settings
        self._times = times
        self._loop = loop
        self._client = EtcdClient(settings, times)
        self._threads = ThreadPoolExecutor(limits.ETCD_THREADS, thread_name_prefix="etcd-write")
        # Of its own: a registration must not wait behind writes.
        self._lease_thread = ThreadPoolExecutor(1, thread_name_prefix="etcd-lease")
        self._identity: tuple[str, bytes] = ("", b"")
        self._waiting = 0

        self._view = View()
        self._listed = asyncio.Event()
        self._problem = ""
        self._set_back: SetBack | None = None
        self._full: str | None = None
        self._doubted_at = 0
        """Revision of the last list that was not believed; of the thread that follows."""
        self._behind: list[tuple[int, int, asyncio.Future[None]]] = []
        self._behind_count = 0
        self._stale: list[tuple[str, int, asyncio.Future[None]]] = []

        self._ended = threading.Event()
        self._following = EtcdClient(settings, times)
        self._follower = threading.Thread(target=self._follow, name="etcd-watch", daemon=True)

        self._lease = 0
        self._began = 0
        """Revision at which the history began that was accepted last: older registrations are of former
        times.
        """
        self._unregistered = False
        """The lease was lost, and not all that hung on it is registered again."""
        self._registering = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        settings: EtcdSettings,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        wait_s: float = 10.0,
        times: EtcdTimes | None = None,
    ) -> "EtcdCoordinator":
        """Reads everything; the first process makes the identity of the cluster.

        Raises:
            CoordinatorError: etcd did not answer within `wait_s` seconds, or it refused.
        """
        coordinator = cls(settings, loop or asyncio.get_running_loop(), times or EtcdTimes())
        try:
            until = time.monotonic() + wait_s
            coordinator._identity = await coordinator._call(lambda: coordinator._identify(until))
            coordinator._follower.start()
            try:
                async with asyncio.timeout(max(0.1, until - time.monotonic())):
                    await coordinator._listed.wait()
            except TimeoutError:
                where = ", ".join(settings.endpoints)
                raise CoordinatorError(f"etcd at {where} can't be read: {coordinator._problem}") from None
            coordinator._keeper = coordinator._loop.create_task(coordinator._keep())
        except BaseException:
            await coordinator.close()
            raise
        return coordinator

    async def close(self) -> None:
        """Takes the registrations away where etcd answers; else their lease runs out."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        lease, self._lease = self._lease, 0
        self._registered.clear()
        if lease:
            try:
                until = time.monotonic() + self._times.attempt
                await self._loop.run_in_executor(
                    self._lease_thread, lambda: self._client.revoke(lease, until)
                )
            except CoordinatorError as error:
                log.info("the lease of this process runs out by itself: %s", error)
        self._ended.set()
        self._client.close()
        self._following.close()
        await self._loop.run_in_executor(None, self._stop_threads)

    def _stop_threads(self) -> None:
        self._threads.shutdown()
        self._lease_thread.shutdown()
        if self._follower.ident is not None:
            self._follower.join()

    # --- identity -----------------------------------------------------------------------------------------

    async def cluster_id(self) -> str:
        return self._identity[0]

    async def secret(self) -> bytes:
        return self._identity[1]

    def _identify(self, until: float) -> tuple[str, bytes]:
        found = self._client.get(IDENTITY, until)
        if found is None:
            secret = base64.b64encode(secrets.token_bytes(32)).decode()
            made = json.dumps({"cluster": secrets.token_hex(16), "secret": secret}, separators=(",", ":"))
            try:
                self._client.transact([Write(IDENTITY, made, 0)], until)
            except Conflict:
                log.debug("another process was faster to make the identity of the cluster")
            found = self._client.get(IDENTITY, until)
        return self._read_identity(found)

    def _read_identity(self, found: Entry | None) -> tuple[str, bytes]:
        try:
            fields = json.loads(found.value or "" if found is not None else "")
            return str(fields["cluster"]), base64.b64decode(fields["secret"], validate=True)
        except (ValueError, KeyError, TypeError) as error:
            raise CoordinatorError(
                f"the entry {self._settings.prefix}{IDENTITY} in etcd can't be read: {error!r}"
            ) from None

    # --- the key space ------------------------------------------------------------------------------------

    async def _commit(self, writes: Sequence[Write]) -> int:
        return await self._transact(writes, 0)

    async def _transact(self, writes: Sequence[Write], lease: int, *, putting_back: bool = False) -> int:
        if self._set_back is not None and not putting_back:
            raise CoordinatorError(f"nothing was written: {told(self._set_back)}")
        started = time.monotonic()
        until = started + self._times.call
        try:
            revision, changed = await self._call(lambda: self._client.transact(writes, until, lease))
        except Conflict as conflict:
            # Who looks again shall see what it conflicted with.
            guard = next(each.guard for each in writes if each.key == conflict.key)
            await self._seen_another(conflict.key, guard or 0)
            raise
        self.counts.wrote(time.monotonic() - started)
        self._has_space()
        if changed:
            await self._seen(revision)
        return revision

    async def _call(self, work: Callable[[], Answer]) -> Answer:
        if self._waiting >= limits.ETCD_CALLS_WAITING:
            raise CoordinatorError(f"{self._waiting} writes wait for etcd already: nothing was written")
        self._waiting += 1
        try:
            return await self._counted(self._threads, work)
        finally:
            self._waiting -= 1

    async def _counted(self, threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
        """Runs what asks etcd, and tells `counts` whether it has answered."""
        try:
            answer = await self._loop.run_in_executor(threads, work)
        except NotAsked:
            raise
        except CoordinatorFull as error:
            self.counts.heard()
            self._has_no_space(str(error))
            raise
        except (Conflict, CoordinatorRefused, LeaseLost):
            # These are answers.
            self.counts.heard()
            raise
        except CoordinatorError:
            self.counts.failed()
            raise
        self.counts.heard()
        return answer

    async def entry(self, key: str) -> Entry | None:
        return self._view.entries.get(key)

    async def entries(self, prefix: str) -> list[Entry]:
        return sorted(entry for key, entry in self._view.entries.items() if key.startswith(prefix))

    def _changes(self, since: int) -> News | None:
        return self._view.news(since)

    # --- an etcd without space ----------------------------------------------------------------------------

    @property
    def full(self) -> str | None:
        return self._full

    def _has_no_space(self, reason: str) -> None:
        if self._full is None:
            log.error("%s; what is known goes on, and what this process has to write waits", reason)
        self._full = reason
        self.counts.full = 1

    def _has_space(self) -> None:
        if self._full is not None:
            log.info("etcd takes writes again")
        self._full = None
        self.counts.full = 0

    async def _look_for_space(self, within_s: float) -> None:
        """Asks etcd for a write that changes nothing, which is refused until there is space again."""
        until = time.monotonic() + within_s
        # No entry has the revision 1, at which etcd begins: the answer is a conflict, or no space.
        never = Write(IDENTITY, "", _NO_REVISION)
        with suppress(Conflict):
            await self._counted(self._lease_thread, lambda: self._client.transact([never], until, 0))
        self._has_space()

    # --- an etcd that was set back ------------------------------------------------------------------------

    @property
    def set_back(self) -> SetBack | None:
        return self._set_back

    async def put_back(self) -> PutBack:
        if self._set_back is None:
            raise NotSetBack(
                "nothing is to be put back: etcd continues what this process knows of it. A process "
                "that was started "
                "after etcd was set back does not know what was lost"
            )
        known = dict(self._view.entries)
        follows = History.decode(known.get(HISTORY))
        written: dict[str, Write] = {}
        while True:
            until = time.monotonic() + self._times.call
            listed, _ = await self._call(partial(self._client.everything, until))
            there = [each for each in listed if each.key != IDENTITY]
            plan = restoring(known, there)
            found = next((each for each in there if each.key == HISTORY), None)
            made = History(secrets.token_hex(8), follows.id, True)
            last = Write(HISTORY, made.encode(), found.revision if found is not None else 0)
            try:
                for start in range(0, len(plan.writes), WRITES_MAX):
                    batch = plan.writes[start : start + WRITES_MAX]
                    await self._transact(batch, 0, putting_back=True)
                    written |= {each.key: each for each in batch}
                # The last one tells everybody to go on with it.
                await self._transact([last], 0, putting_back=True)
            except Conflict as conflict:
                # Processes that were started since write as well.
                log.info("etcd is looked at again: %s", conflict)
                continue
            again = [key for key in plan.again if key not in written]
            log.warning("etcd was given back %d entries that it had lost", len(written))
            return PutBack(list(written.values()), plan.kept, again)

    def _doubt(self, found: SetBack) -> None:
        """On the loop: what etcd lists is not believed."""
        self.counts.heard()
        if self._set_back is None:
            log.error("%s", told(found))
        self._set_back = found
        self.counts.set_back = 1

    def _believe(self) -> None:
        if self._set_back is not None:
            log.warning("etcd is believed again")
        self._set_back = None
        self.counts.set_back = 0

    # --- the view, on the loop ----------------------------------------------------------------------------

    def _list(self, entries: list[Entry], revision: int, new_history: bool) -> None:
        self.counts.heard()
        if self._listed.is_set():
            self.counts.watch_restarted()
        self._believe()
        if new_history:
            # What stands under our keys is older than we are; only what comes from here on may take our
            # place.
            for key, registration in self._registered.items():
                self._registered[key] = registration._replace(revision=revision)
            self._unregistered = True
            self._began = revision
        there = [each for each in entries if each.key != IDENTITY]
        self._took(self._view.take_list(there, revision, new_history=new_history))
        self._listed.set()

    def _change(self, changes: list[Change], revision: int) -> None:
        self.counts.heard()
        self._took(self._view.take_changes([each for each in changes if each[0] != IDENTITY], revision))

    def _not_followed(self, lost: bool) -> None:
        self.counts.watch_ended()
        if lost:
            self.counts.failed()

    def _took(self, changed: list[Entry]) -> None:
        for entry in changed if self._registered else ():
            self._look_for_another(entry)
            if entry.value is None and entry.key in self._registered:
                # The lease may live all the same, where etcd has lost the entry alone.
                self._unregistered = True
        while self._behind and self._behind[0][0] <= self._view.revision:
            _, _, future = heapq.heappop(self._behind)
            if not future.done():
                future.set_result(None)
        for key, guard, future in self._stale:
            if self._revision_of(key) != guard and not future.done():
                future.set_result(None)
        if changed:
            self._tell_news()

    def _revision_of(self, key: str) -> int:
        found = self._view.entries.get(key)
        return found.revision if found is not None else 0

    async def _seen(self, revision: int) -> None:
        """Until the view has reached a revision; not for ever."""
        if self._view.revision >= revision:
            return
        future = self._loop.create_future()
        self._behind_count += 1
        heapq.heappush(self._behind, (revision, self._behind_count, future))
        await self._wait_for_view(future)

    async def _seen_another(self, key: str, guard: int) -> None:
        """Until the view has another revision of a key than the one that was taken for the newest."""
        if self._revision_of(key) != guard:
            return
        waiting = (key, guard, self._loop.create_future())
        self._stale.append(waiting)
        try:
            await self._wait_for_view(waiting[2])
        finally:
            self._stale.remove(waiting)

    async def _wait_for_view(self, future: "asyncio.Future[None]") -> None:
        try:
            async with asyncio.timeout(self._times.behind):
                await future
        except TimeoutError:
            log.warning("what was written to etcd is not seen here yet: %s", self._problem or "etcd is slow")

    # --- in the thread that follows -----------------------------------------------------------------------

    def _follow(self) -> None:
        pause = self._times.pause
        while not self._ended.is_set():
            began = time.monotonic()
            lost = False
            try:
                if self._is_doubted_still():
                    self._ended.wait(self._times.pause_max)
                    continue
                self._following.follow(self._hand_list, self._hand_changes, self._ended)
                problem = "etcd ended the watch"
            except (WatchEnded, CoordinatorError) as error:
                problem = str(error)
                lost = isinstance(error, WatchLost)
            except Exception as error:
                # This thread must not end: without it the process would never hear of anything again.
                log.exception("following etcd failed; it begins anew")
                problem = repr(error)
            if self._ended.is_set():
                return
            if not self._problem or (_ANOTHER in problem and _ANOTHER not in self._problem):
                log.warning("etcd is not followed now, what is known goes on: %s", problem)
            self._problem = problem
            self._hand(partial(self._not_followed, lost))
            if time.monotonic() - began > self._times.pause_max:
                pause = self._times.pause
            self._ended.wait(pause)
            pause = min(2 * pause, self._times.pause_max)

    def _hand_list(self, entries: list[Entry], revision: int) -> None:
        identity = next((each for each in entries if each.key == IDENTITY), None)
        if identity is None or self._read_identity(identity) != self._identity:
            # Its entries would say that all our queues are gone.
            raise CoordinatorError(
                f"etcd {_ANOTHER} below {self._settings.prefix} than {self._identity[0]}, which "
                "was there when this process started: bring that one back, or start all processes anew"
            )
        new_history = self._check(entries, revision)
        if self._problem:
            log.info("etcd is followed again, from revision %d", revision)
        self._problem = ""
        self._doubted_at = 0
        self._hand(lambda: self._list(entries, revision, new_history))

    def _check(self, entries: list[Entry], revision: int) -> bool:
        """Whether a list begins a new history that was accepted. Raises CoordinatorError where it is
        doubted.
        """
        if not self._listed.is_set():
            return False
        self._wait_for_loop()
        view = self._view
        there = [each for each in entries if each.key != IDENTITY]
        now = History.decode(next((each for each in there if each.key == HISTORY), None))
        if now.continues(History.decode(view.entries.get(HISTORY))):
            return True
        then, known_at = None, view.known_at
        if revision < view.revision:
            known_at = view.revision
        elif (versions := self._following.versions(known_at)) is not None:
            then = [each for each in versions if each[0] != IDENTITY]
        reason = doubt(view.entries, known_at, there, revision, then)
        if not reason:
            return False
        found = SetBack(known_at, revision, reason)
        self._doubted_at = revision
        self._hand(partial(self._doubt, found))
        raise CoordinatorError(told(found))

    def _wait_for_loop(self) -> None:
        """Until the loop has taken in all that it was handed; nobody but this thread changes the view
        after that.
        """
        reached = threading.Event()
        self._hand(reached.set)
        while not reached.wait(self._times.pause):
            if self._ended.is_set():
                raise WatchEnded("the coordinator is closed")

    def _is_doubted_still(self) -> bool:
        """Whether etcd is as it was when it was not believed: then nothing is listed again."""
        if not self._doubted_at:
            return False
        return self._following.revision(time.monotonic() + self._times.attempt) == self._doubted_at

    def _hand_changes(self, changes: list[Change], revision: int) -> None:
        self._hand(lambda: self._change(changes, revision))

    def _hand(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop was closed without `close`: nobody listens any more.
            self._ended.set()

    # --- registrations ------------------------------------------------------------------------------------

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], *, guard: int | None = None
    ) -> None:
        async with self._registering:
            await super().register(key, value, displaced, guard=guard)

    async def _write_registration(self, key: str, value: str, guard: int | None) -> int:
        if not self._lease:
            self._lease = await self._grant()
        try:
            return await self._transact([Write(key, value, guard)], self._lease)
        except LeaseLost:
            # What else hangs on it is registered again at the next refresh.
            self._unregistered = True
            self._lease = await self._grant()
            return await self._transact([Write(key, value, guard)], self._lease)

    async def unregister(self, key: str) -> None:
        async with self._registering:
            await super().unregister(key)

    async def _grant(self) -> int:
        until = time.monotonic() + self._times.call
        return await self._counted(self._lease_thread, lambda: self._client.grant(self._times.lease, until))

    async def _refresh(self, within_s: float) -> bool:
        lease, until = self._lease, time.monotonic() + within_s
        if not lease:
            await self._counted(self._lease_thread, lambda: self._client.get(IDENTITY, until))
            return True
        return await self._counted(self._lease_thread, lambda: self._client.refresh(lease, until))

    async def _keep(self) -> None:
        """Refreshes the lease; makes a new one, and registers again, when it is lost.

        Who has registered nothing asks for something small instead.
        """
        third = self._times.lease / 3
        reached = True
        while True:
            soon = not reached or self._full is not None
            await asyncio.sleep(min(third, self._times.pause_max) if soon else third)
            try:
                if not await self._refresh(third):
                    log.warning("the lease of this process was lost; it registers again")
                    self._unregistered = True
                    async with self._registering:
                        self._lease = await self._grant()
                if self._unregistered:
                    async with self._registering:
                        await self._register_again()
                if self._full is not None:
                    with suppress(CoordinatorFull):
                        await self._look_for_space(third)
            except CoordinatorError as error:
                if reached and self._lease:
                    log.warning("the registration of this process can't be kept: %s", error)
                reached = False
            else:
                if not reached and self._lease:
                    log.info("etcd answers again; this process is registered")
                reached = True

    async def _register_again(self) -> None:
        for key, registration in list(self._registered.items()):
            there = await self._ask(key)
            if self._registered.get(key) is not registration:
                continue
            if (
                there is not None
                and there.value != registration.value
                and not (self._began and there.revision <= self._began)
            ):
                self._look_for_another(
                    there._replace(revision=max(there.revision, registration.revision + 1))
                )
                continue
            guard = there.revision if there is not None else 0
            revision = await self._transact([Write(key, registration.value, guard)], self._lease)
            self._registered[key] = registration._replace(revision=revision)
        self._unregistered = False

    async def remaining_ms(self, key: str) -> int | None:
        until = time.monotonic() + self._times.call
        return await self._call(lambda: self._client.remaining_ms(key, until))

    async def _ask(self, key: str) -> Entry | None:
        """As etcd has it now, whatever the view has seen."""
        until = time.monotonic() + self._times.call
        return await self._call(lambda: self._client.get(key, until))


def told(found: SetBack) -> str:
    """What a person is told of an etcd that was set back, and what to do."""
    return (
        f"etcd was set back, as by a restored snapshot: {found.reason}. What was known at revision "
        f"{found.known_at} "
        "goes on, and nothing is deleted or written. Bring back the etcd that has it, or have "
        "`lightrail-admin "
        "coordinator put-back` write what this one has lost (docs/operate/backup.md)"
    )
