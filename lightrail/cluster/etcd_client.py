"""EtcdClient: the calls to etcd that the coordinator makes, each on one of several endpoints.

Its methods block and belong into threads. The only module that knows the etcd3 package (0.12.0) and gRPC. Of
the package it uses the protocol, the channel with its certificates, and the login. It does not use its
watcher, which starts a thread per attempt without pause once etcd is away, and delivers nothing afterwards
(measured: 11,700 threads in 5 s). One channel goes to one endpoint, and the next one is taken after a
failure, so that each server is checked against its own name in its certificate.
"""

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lightrail.cluster.coordinator import Conflict, CoordinatorError, CoordinatorRefused, Entry, Write
from lightrail.cluster.etcd_view import Change
from lightrail.model import limits

# The code that etcd3 brings was generated for an older protobuf and works with its Python implementation
# only, which is chosen when protobuf is imported. Processes that this one starts need not know.
_IMPLEMENTATION: Final = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_before = os.environ.get(_IMPLEMENTATION)
os.environ[_IMPLEMENTATION] = "python"
# What gRPC's core says by itself on the standard error output has no place in a log of lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import etcd3
        import grpc
        from etcd3 import etcdrpc as rpc
finally:
    if _before is None:
        del os.environ[_IMPLEMENTATION]
    else:
        os.environ[_IMPLEMENTATION] = _before

log = logging.getLogger("lightrail.cluster.etcd")
Answer = TypeVar("Answer")
_PAGE: Final = 1_000
_NOT_SENT: Final = ("failed to connect to all addresses", "connections to all backends failing")
_ELSEWHERE: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        # A token that ran out, or that a server which was started again does not know: log in anew.
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Failures after which another endpoint, or a new channel to the same one, may do it."""


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where etcd is, and who we are there. Files are paths."""

    endpoints: tuple[str, ...]
    """``HOST:PORT`` each."""
    cluster: str = "lightrail"
    """Keys are below ``/lightrail/CLUSTER/``."""
    ca: str = ""
    """Certificates that servers are checked against; without it TLS is not used."""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password: str = ""

    @property
    def prefix(self) -> str:
        return f"/lightrail/{self.cluster}/"


@dataclass(frozen=True, slots=True)
class EtcdTimes:
    """How long things take, in seconds; others than these are for tests."""

    call: float = limits.ETCD_CALL_MS / 1000
    attempt: float = limits.ETCD_ATTEMPT_MS / 1000
    lease: float = limits.ETCD_LEASE_MS / 1000
    behind: float = limits.ETCD_BEHIND_MS / 1000
    pause: float = limits.ETCD_PAUSE_MS / 1000
    pause_max: float = limits.ETCD_PAUSE_MS_MAX / 1000
    ping: float = limits.ETCD_PING_MS / 1000
    """Silence of the watch after which its server is asked for a sign of life."""
    ping_answer: float = limits.ETCD_PING_ANSWER_MS / 1000


class WatchEnded(Exception):
    """Nothing more is heard; the text says why. Begin again, after a pause, with a new list."""


class LeaseLost(CoordinatorError):
    """The lease that an entry was to hang on is not there any more."""


class EtcdClient:
    """Calls under one prefix; safe to be used by several threads."""

    def __init__(self, settings: EtcdSettings, times: EtcdTimes) -> None:
        self._settings = settings
        self._times = times
        self._prefix = settings.prefix
        self._lock = threading.Lock()
        self._channel: Any = None
        self._next = 0
        self._closed = False

    def close(self) -> None:
        """Ends what is going on, with an error."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    # --- channels -----------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        """The channel, with its login; a new one after a failure."""
        with self._lock:
            if self._closed:
                raise CoordinatorError("the coordinator is closed")
            if self._channel is None:
                endpoint = self._settings.endpoints[self._next % len(self._settings.endpoints)]
                self._channel = self._open(endpoint)
            return self._channel

    def _open(self, endpoint: str) -> Any:
        host, _, port = endpoint.rpartition(":")
        times, settings = self._times, self._settings
        options = (
            ("grpc.keepalive_time_ms", int(times.ping * 1000)),
            ("grpc.keepalive_timeout_ms", int(times.ping_answer * 1000)),
            ("grpc.http2.ping_timeout_ms", int(times.ping_answer * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", int(times.pause * 1000)),
            ("grpc.min_reconnect_backoff_ms", int(times.attempt * 1000)),
            ("grpc.max_reconnect_backoff_ms", int(times.pause_max * 1000)),
            # A new channel is to try anew, and not to wait for what an older one has learned.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", limits.ETCD_ANSWER_BYTES),
        )
        try:
            return etcd3.client(
                host=host,
                port=int(port),
                ca_cert=settings.ca or None,
                cert_key=settings.key or None,
                cert_cert=settings.certificate or None,
                user=settings.user or None,
                password=settings.password or None,
                timeout=times.attempt,
                grpc_options=options,
            )
        except OSError as error:
            raise CoordinatorError(f"a certificate for etcd can't be read: {error}") from None

    def _leave(self, channel: Any) -> None:
        """After a failure: the next call goes to the next endpoint."""
        with self._lock:
            if channel is None or channel is self._channel:
                self._next += 1
                self._channel = None
        if channel is not None:
            channel.close()

    # --- calls --------------------------------------------------------------------------------------------

    def _read(self, ask: Callable[[Any, float], Answer], until: float) -> Answer:
        """Asks until somebody answers, at most until a time of the monotonic clock."""
        pause = self._times.pause
        while True:
            answer, problem = self._attempt(ask, until)
            if answer is not None:
                return answer
            assert problem is not None
            if time.monotonic() + pause >= until:
                raise CoordinatorError(self._away(problem))
            time.sleep(pause)
            pause = min(2 * pause, self._times.pause_max)

    def _attempt(
        self, ask: Callable[[Any, float], Answer], until: float
    ) -> tuple[Answer | None, "grpc.RpcError | None"]:
        """One call at one endpoint: its answer, or what went wrong there."""
        timeout = min(self._times.attempt, until - time.monotonic())
        channel = None
        try:
            channel = self._connect()
            return ask(channel, max(timeout, 0.01)), None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise LeaseLost(f"etcd refuses: {error.details()}") from None
            if error.code() not in _ELSEWHERE:
                raise CoordinatorRefused(f"etcd refuses: {error.details()}") from None
            self._leave(channel)
            return None, error
        except ValueError as error:
            if not _channel_closed(error):
                raise
            return None, _Left()

    def _away(self, problem: Any) -> str:
        where = ", ".join(self._settings.endpoints)
        return f"etcd at {where} does not answer ({problem.details()}): look whether it runs"

    def transact(self, writes: Sequence[Write], until: float, lease: int = 0) -> tuple[int, bool]:
        """All writes or none, see `Coordinator.write`; with a lease the entries hang on it.

        Returns:
            The revision, and whether anything was changed.

        Raises:
            Conflict, CoordinatorError.
        """
        if time.monotonic() >= until:
            raise CoordinatorError("etcd is too slow: nothing was written")
        request = self._request(writes, lease)

        def ask(channel: Any, timeout: float) -> Any:
            return channel.kvstub.Txn(request, timeout, metadata=channel.metadata)

        lost = False
        pause = self._times.pause
        while True:
            answer, problem = self._attempt(ask, until)
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
                if not _not_sent(problem):
                    lost = True
                    found = self._found_out(writes, until)
                    if found:
                        return found, True
                # Not written so far. Should it be on its way still, only one of the two can go through.
                if time.monotonic() + pause >= until:
                    raise CoordinatorError(self._away(problem))
            except CoordinatorError as error:
                said = "it is not known whether this was written" if lost else "nothing was written"
                raise CoordinatorError(f"{error}; {said}") from None
            time.sleep(pause)
            pause = min(2 * pause, self._times.pause_max)

    def _request(self, writes: Sequence[Write], lease: int) -> Any:
        request = rpc.TxnRequest()
        for key, value, guard in writes:
            bytes_key = (self._prefix + key).encode()
            if guard is not None:
                request.compare.add(
                    key=bytes_key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=guard
                )
                request.failure.add().request_range.key = bytes_key
            if value is None:
                request.success.add().request_delete_range.key = bytes_key
            else:
                put = request.success.add().request_put
                put.key, put.value, put.lease = bytes_key, value.encode(), lease
        return request

    def _conflict(self, writes: Sequence[Write], answer: Any) -> Conflict:
        guarded = [each for each in writes if each.guard is not None]
        for write, response in zip(guarded, answer.responses, strict=True):
            found = response.response_range.kvs
            if (found[0].mod_revision if found else 0) != write.guard:
                return Conflict(write.key)
        raise AssertionError("etcd refused a transaction whose guards hold")

    def _found_out(self, writes: Sequence[Write], until: float) -> int:
        """Whether a transaction without an answer went through: its revision, or 0.

        It did when all its entries are there with one revision, newer than their guards, and nothing is left
        of what it deleted. Entries that somebody has written since then hide it: the next attempt conflicts.
        """
        request = rpc.TxnRequest()
        for each in writes:
            request.success.add().request_range.key = (self._prefix + each.key).encode()
        answer = self._read(
            lambda channel, timeout: channel.kvstub.Txn(request, timeout, metadata=channel.metadata), until
        )
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
            # Who only deletes has what it wants when nothing is there.
            return 0 if made else int(answer.header.revision)
        if len(revisions) != 1:
            return 0
        (revision,) = revisions
        return revision if all(each > revision for each in made) else 0

    def get(self, key: str, until: float) -> Entry | None:
        """The entry of a key, as it is now."""
        request = rpc.RangeRequest(key=(self._prefix + key).encode())
        answer = self._read(
            lambda channel, timeout: channel.kvstub.Range(request, timeout, metadata=channel.metadata), until
        )
        return self._entry(answer.kvs[0]) if answer.kvs else None

    # --- leases -------------------------------------------------------------------------------------------

    def grant(self, seconds: float, until: float) -> int:
        """A new lease; its number."""
        request = rpc.LeaseGrantRequest(TTL=max(1, round(seconds)), ID=0)
        answer = self._read(
            lambda channel, timeout: channel.leasestub.LeaseGrant(
                request, timeout, metadata=channel.metadata
            ),
            until,
        )
        return int(answer.ID)

    def refresh(self, lease: int, until: float) -> bool:
        """Keeps a lease alive; False when it is lost."""

        def ask(channel: Any, timeout: float) -> Any:
            request = rpc.LeaseKeepAliveRequest(ID=lease)
            answers = channel.leasestub.LeaseKeepAlive(iter([request]), timeout, metadata=channel.metadata)
            return next(answers)

        # etcd says of a lease that it does not know that it has no time left, and raises nothing.
        return bool(self._read(ask, until).TTL > 0)

    def revoke(self, lease: int, until: float) -> None:
        """Ends a lease, and deletes what hangs on it."""
        request = rpc.LeaseRevokeRequest(ID=lease)
        self._attempt(
            lambda channel, timeout: channel.leasestub.LeaseRevoke(
                request, timeout, metadata=channel.metadata
            ),
            until,
        )

    # --- following ----------------------------------------------------------------------------------------

    def follow(
        self,
        listed: Callable[[list[Entry], int], None],
        changed: Callable[[list[Change], int], None],
        ended: threading.Event,
    ) -> None:
        """List all entries at a revision, then watch what changes after it, until `ended`.

        Raises:
            WatchEnded, CoordinatorError.
        """
        channel = None
        try:
            channel = self._connect()
            entries, revision = self._list(channel)
            listed(entries, revision)
            self._watch(channel, revision + 1, changed, ended)
        except grpc.RpcError as error:
            raise WatchEnded(f"{error.details()}") from None
        except ValueError as error:
            if not _channel_closed(error):
                raise
            raise WatchEnded("the coordinator is closed") from None
        finally:
            self._leave(channel)

    def _list(self, channel: Any) -> tuple[list[Entry], int]:
        """Page by page, all as they were when the first page was asked for."""
        entries: list[Entry] = []
        start = self._prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        revision = 0
        while True:
            request = rpc.RangeRequest(key=start, range_end=end, limit=_PAGE, revision=revision)
            page = channel.kvstub.Range(request, self._times.call, metadata=channel.metadata)
            revision = revision or int(page.header.revision)
            entries.extend(self._entry(each) for each in page.kvs)
            if not page.more:
                return entries, revision
            start = page.kvs[-1].key + b"\0"

    def _entry(self, pair: Any) -> Entry:
        return Entry(self._key(pair), pair.value.decode(), pair.create_revision, pair.mod_revision)

    def _key(self, pair: Any) -> str:
        return str(pair.key.decode()).removeprefix(self._prefix)

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

        # A member that has lost the others would say nothing; so asked, it ends the stream.
        metadata = (*(channel.metadata or ()), ("hasleader", "true"))
        stub = rpc.WatchStub(channel.channel)
        try:
            for answer in stub.Watch(requests(), metadata=metadata):
                if ended.is_set():
                    return
                if answer.compact_revision:
                    raise WatchEnded("etcd has forgotten changes that were not seen here")
                if answer.canceled:
                    raise WatchEnded(f"etcd ended the watch: {answer.cancel_reason}")
                if answer.events:
                    changed([self._change(each) for each in answer.events], int(answer.header.revision))
        finally:
            over.set()

    def _change(self, event: Any) -> Change:
        pair = event.kv
        deleted = event.type != 0
        value = None if deleted else pair.value.decode()
        return self._key(pair), value, pair.create_revision, pair.mod_revision


class _Left(grpc.RpcError):  # type: ignore[misc]
    """Another thread has closed the channel before the call began."""

    def details(self) -> str:
        return _NOT_SENT[0]


def _channel_closed(error: ValueError) -> bool:
    """Whether another thread has left the channel; gRPC raises ValueError then."""
    said = str(error).lower()
    return "channel" in said and "closed" in said


def _not_sent(problem: Any) -> bool:
    return str(problem.details()).startswith(_NOT_SENT)
