"""EtcdClient: the calls to etcd that the coordinator makes: transactions, leases, list and watch.

Its methods block: call them in threads. Times are readings of the monotonic clock, in seconds.

Identity: id and secret of a cluster, in the entry ``identity`` that its first process writes.
"""

import base64
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.etcd.channels import (
    EtcdChannels,
    EtcdSettings,
    EtcdTimes,
    NotAskedError,
    channel_closed,
    elsewhere,
    grpc,
    not_sent,
    rpc,
)
from lightrail.cluster.etcd.view import Change
from lightrail.cluster.history import Version

_PAGE: Final = 1_000
"""Entries in one answer to a list."""


class WatchEndedError(Exception):
    """The watch has ended; the text has the reason. Begin again, after a pause, with a new list."""


class WatchLostError(WatchEndedError):
    """The watch has ended because etcd can't be reached."""


def _asking(call: str, request: Any) -> Callable[[Any, float], Any]:
    """Sends a request by a call of a channel, such as `kvstub.Range`, within a time in seconds."""
    return lambda channel, timeout: attrgetter(call)(channel)(request, timeout, metadata=channel.metadata)


class EtcdClient:
    """Calls under one prefix; thread-safe."""

    def __init__(self, settings: EtcdSettings, times: EtcdTimes) -> None:
        self._times = times
        self._prefix = settings.prefix
        self._channels = EtcdChannels(settings, times)

    def close(self) -> None:
        """Ends calls in progress with an error."""
        self._channels.close()

    # --- calls --------------------------------------------------------------------------------------------

    def transact(self, writes: Sequence[Write], until: float, lease: int = 0) -> tuple[int, bool]:
        """All writes or none, see `Coordinator.write`; with a lease the entries end with it.

        Returns:
            The revision, and whether an entry changed.

        Raises:
            ConflictError, CoordinatorError.
        """
        if time.monotonic() >= until:
            raise NotAskedError("etcd is too slow: nothing was written")
        ask = _asking("kvstub.Txn", self._request(writes, lease))
        lost = False
        pause = self._times.pause
        while True:
            try:
                answer, problem = self._channels.attempt(ask, until)
            except CoordinatorError as error:
                # A former attempt may still be in progress.
                error.may_be_written = lost
                raise
            if answer is not None and answer.succeeded:
                changed = any(
                    each.WhichOneof("response") == "response_put" or each.response_delete_range.deleted
                    for each in answer.responses
                )
                return int(answer.header.revision), changed
            if answer is not None:
                if lost and (found := self._found_out(writes, until)):
                    return found, True
                raise self._conflict(writes, answer)
            assert problem is not None
            try:
                if not not_sent(problem):
                    lost = True
                    found = self._found_out(writes, until)
                    if found:
                        return found, True
                # Not written so far. If the former attempt is still in progress, only one of them can
                # succeed.
                if time.monotonic() + pause >= until:
                    raise CoordinatorError(self._channels.away(problem))
            except CoordinatorError as error:
                result = "it is not known whether this was written" if lost else "nothing was written"
                failure = CoordinatorError(f"{error}; {result}")
                failure.may_be_written = lost
                raise failure from None
            time.sleep(pause)
            pause = min(2 * pause, self._times.pause_max)

    def _request(self, writes: Sequence[Write], lease: int) -> Any:
        request = rpc.TxnRequest()
        for key, value, guard, is_check, was in writes:
            bytes_key = (self._prefix + key).encode()
            if guard is not None:
                request.compare.add(
                    key=bytes_key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=guard
                )
                if guard and was is not None:
                    request.compare.add(
                        key=bytes_key, target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=was.encode()
                    )
                request.failure.add().request_range.key = bytes_key
            if is_check:
                continue
            if value is None:
                request.success.add().request_delete_range.key = bytes_key
            else:
                put = request.success.add().request_put
                put.key, put.value, put.lease = bytes_key, value.encode(), lease
        return request

    def _conflict(self, writes: Sequence[Write], answer: Any) -> ConflictError:
        guarded = [each for each in writes if each.guard is not None]
        changed = []
        for write, response in zip(guarded, answer.responses, strict=True):
            found = response.response_range.kvs
            if (found[0].mod_revision if found else 0) != write.guard or (
                found and write.was is not None and found[0].value != write.was.encode()
            ):
                changed.append(write.key)
        assert changed, "etcd refused a transaction whose guards hold"
        return ConflictError(*changed)

    def _found_out(self, writes: Sequence[Write], until: float) -> int:
        """The revision of a transaction without an answer, or 0 if it was not carried out.

        It was carried out if all its entries have one revision, newer than their guards, and all entries that
        it deletes are absent. A later write to one of them hides this, and the next attempt conflicts.
        """
        writes = [each for each in writes if not each.is_check]
        answer = self._ranges([each.key for each in writes], until)
        revisions: set[int] = set()
        made: list[int] = []
        for write, response in zip(writes, answer.responses, strict=True):
            found = next(iter(response.response_range.kvs), None)
            guard = write.guard or 0
            if write.value is None:
                if found is not None:
                    made.append(found.create_revision)
            elif found is None or found.value.decode() != write.value or found.mod_revision <= guard:
                return 0
            else:
                revisions.add(found.mod_revision)
        if not revisions:
            # A deletion is done when there is no entry.
            return 0 if made else int(answer.header.revision)
        if len(revisions) != 1:
            return 0
        (revision,) = revisions
        return revision if all(each > revision for each in made) else 0

    def get(self, key: str, until: float) -> Entry | None:
        """The entry of a key, as it is now."""
        answer = self._range(key, until)
        return self._entry(answer.kvs[0]) if answer.kvs else None

    def get_all(self, keys: Sequence[str], until: float) -> list[Entry | None]:
        """The entries of different keys, as they are now."""
        answer = self._ranges(keys, until)
        found = (next(iter(each.response_range.kvs), None) for each in answer.responses)
        return [None if pair is None else self._entry(pair) for pair in found]

    def revision(self, until: float) -> int:
        """Etcd's newest revision."""
        return int(self._range("", until).header.revision)

    def remaining_ms(self, key: str, until: float) -> int | None:
        """Remaining time of an entry's lease; None for an entry without a lease, 0 without an entry."""
        answer = self._range(key, until)
        if not answer.kvs:
            return 0
        if not answer.kvs[0].lease:
            return None
        request = rpc.LeaseTimeToLiveRequest(ID=answer.kvs[0].lease)
        found = self._channels.read(_asking("leasestub.LeaseTimeToLive", request), until)
        # -1 for a lease that has just expired: its entries are about to be deleted.
        return max(0, int(found.TTL)) * 1000

    def members(self, until: float) -> int:
        """Number of members of etcd's cluster."""
        request = rpc.MemberListRequest()
        return len(self._channels.read(_asking("clusterstub.MemberList", request), until).members)

    def _range(self, key: str, until: float) -> Any:
        request = rpc.RangeRequest(key=(self._prefix + key).encode())
        return self._channels.read(_asking("kvstub.Range", request), until)

    def _ranges(self, keys: Sequence[str], until: float) -> Any:
        request = rpc.TxnRequest()
        for key in keys:
            request.success.add().request_range.key = (self._prefix + key).encode()
        return self._channels.read(_asking("kvstub.Txn", request), until)

    # --- leases -------------------------------------------------------------------------------------------

    def grant(self, seconds: float, until: float) -> int:
        """Creates a lease; returns its number."""
        request = rpc.LeaseGrantRequest(TTL=max(1, round(seconds)), ID=0)
        return int(self._channels.read(_asking("leasestub.LeaseGrant", request), until).ID)

    def refresh(self, lease: int, until: float) -> bool:
        """Refreshes a lease; returns False if it was lost."""

        def ask(channel: Any, timeout: float) -> Any:
            request = rpc.LeaseKeepAliveRequest(ID=lease)
            answers = channel.leasestub.LeaseKeepAlive(iter([request]), timeout, metadata=channel.metadata)
            answer = next(answers, None)
            if answer is None:
                raise CoordinatorError("etcd ended the call without an answer")
            return answer

        # For an unknown lease etcd answers that it has no time left, without an error.
        return bool(self._channels.read(ask, until).TTL > 0)

    def revoke(self, lease: int, until: float) -> None:
        """Ends a lease, and deletes its entries."""
        request = rpc.LeaseRevokeRequest(ID=lease)
        self._channels.attempt(_asking("leasestub.LeaseRevoke", request), until)

    # --- following ----------------------------------------------------------------------------------------

    def follow(
        self,
        listed: Callable[[list[Entry], int], None],
        changed: Callable[[list[Change], int], None],
        ended: threading.Event,
    ) -> None:
        """List all entries at a revision, then watch the changes after it, until `ended`.

        Raises:
            WatchEndedError, WatchLostError, CoordinatorError.
        """
        channel = None
        try:
            channel = self._channels.connect()
            entries, revision = self._list(channel)
            listed(entries, revision)
            self._watch(channel, revision + 1, changed, ended)
        except grpc.RpcError as error:
            ended_by = WatchLostError if elsewhere(error) else WatchEndedError
            raise ended_by(f"{error.details()}") from None
        except ValueError as error:
            if not channel_closed(error):
                raise
            raise WatchEndedError("the coordinator is closed") from None
        finally:
            self._channels.leave(channel)

    def versions(self, revision: int) -> list[Version] | None:
        """All entries at a revision; None if etcd has compacted that revision, or never had it.

        Raises:
            WatchEndedError, WatchLostError, CoordinatorError.
        """
        channel = None
        try:
            channel = self._channels.connect()
            entries, _ = self._list(channel, revision, keys_only=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                return None
            self._channels.leave(channel)
            raise (WatchLostError if elsewhere(error) else WatchEndedError)(f"{error.details()}") from None
        return [(each.key, each.created, each.revision) for each in entries]

    def everything(self, until: float) -> tuple[list[Entry], int]:
        """All entries, and the revision that they belong to."""
        return self._channels.read(lambda channel, _: self._list(channel), until)

    def _list(self, channel: Any, revision: int = 0, *, keys_only: bool = False) -> tuple[list[Entry], int]:
        """Reads page by page, all at one revision: `revision`, or that of the first page."""
        entries: list[Entry] = []
        start = self._prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        while True:
            request = rpc.RangeRequest(
                key=start, range_end=end, limit=_PAGE, revision=revision, keys_only=keys_only
            )
            page = channel.kvstub.Range(request, self._times.call, metadata=channel.metadata)
            revision = revision or int(page.header.revision)
            entries.extend(self._entry(each) for each in page.kvs)
            if not page.more:
                return entries, revision
            start = page.kvs[-1].key + b"\0"

    def _entry(self, pair: Any) -> Entry:
        return Entry(
            self._key(pair), pair.value.decode(errors="replace"), pair.create_revision, pair.mod_revision
        )

    def _key(self, pair: Any) -> str:
        # An entry of another program in another encoding must not end the watch.
        return str(pair.key.decode(errors="replace")).removeprefix(self._prefix)

    def _watch(
        self, channel: Any, first: int, changed: Callable[[list[Change], int], None], ended: threading.Event
    ) -> None:
        over = threading.Event()
        start = self._prefix.encode()
        create = rpc.WatchCreateRequest(
            key=start, range_end=start[:-1] + bytes([start[-1] + 1]), start_revision=first
        )

        def requests() -> Iterator[Any]:
            yield rpc.WatchRequest(create_request=create)
            # The stream is open for as long as this generator runs, in a thread of gRPC.
            over.wait()

        # A member without a leader would be silent; with this option it ends the stream.
        metadata = (*(channel.metadata or ()), ("hasleader", "true"))
        stub = rpc.WatchStub(channel.channel)
        try:
            for answer in stub.Watch(requests(), metadata=metadata):
                if ended.is_set():
                    return
                if int(answer.header.revision) < first - 1:
                    raise WatchEndedError("etcd has lost revisions that it had before")
                if answer.compact_revision:
                    raise WatchEndedError("etcd has compacted changes that were not seen here")
                if answer.canceled:
                    raise WatchEndedError(f"etcd ended the watch: {answer.cancel_reason}")
                if answer.events:
                    changed([self._change(each) for each in answer.events], int(answer.header.revision))
        finally:
            over.set()

    def _change(self, event: Any) -> Change:
        pair = event.kv
        deleted = event.type != 0
        value = None if deleted else pair.value.decode(errors="replace")
        return self._key(pair), value, pair.create_revision, pair.mod_revision


log = logging.getLogger("lightrail.cluster.etcd.client")

IDENTITY: Final = "identity"


class Identity(NamedTuple):
    """See Coordinator.cluster_id and Coordinator.secret."""

    cluster: str
    secret: bytes

    @classmethod
    def decode(cls, found: Entry | None, prefix: str) -> "Identity":
        """Decodes the entry below `prefix`. Raises CoordinatorError."""
        try:
            fields = json.loads(found.value or "" if found is not None else "")
            return cls(str(fields["cluster"]), base64.b64decode(fields["secret"], validate=True))
        except (ValueError, KeyError, TypeError) as error:
            raise CoordinatorError(f"the entry {prefix}{IDENTITY} in etcd can't be read: {error!r}") from None


def identify(client: EtcdClient, prefix: str, until: float) -> Identity:
    """Reads the identity, or makes one if etcd has none. Blocks. Raises CoordinatorError."""
    found = client.get(IDENTITY, until)
    if found is None:
        secret = base64.b64encode(secrets.token_bytes(32)).decode()
        made = json.dumps({"cluster": secrets.token_hex(16), "secret": secret}, separators=(",", ":"))
        try:
            client.transact([Write(IDENTITY, made, 0)], until)
        except ConflictError:
            log.debug("another process was faster to make the identity of the cluster")
        found = client.get(IDENTITY, until)
    return Identity.decode(found, prefix)
