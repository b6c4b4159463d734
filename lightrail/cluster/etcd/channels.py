"""EtcdChannels: one channel at a time to one of etcd's endpoints; after a failure, one to the next.

The only module that imports the etcd3 package (0.12.0) and gRPC. It uses the package's protocol, channel with
certificates, and login, but not its watcher: while etcd is down the watcher starts a thread per attempt
without pause, and it delivers nothing afterwards (measured: 11,700 threads in 5 s). No channel has several
addresses, so that each server's certificate is checked against the name of this server.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from lightrail.cluster.coordinator import CoordinatorError, CoordinatorFullError, CoordinatorRefusedError
from lightrail.model import limits

ETCD_CALL_MS: Final[int] = 5_000
"""How long a read or write waits for etcd, all attempts together."""
ETCD_ATTEMPT_MS: Final[int] = 2_000
"""How long one endpoint may take for its answer before the next one is asked."""
ETCD_BEHIND_MS: Final[int] = 2_000
"""How long a write waits until it is visible in the process's own view."""
ETCD_PAUSE_MS: Final[int] = 100
"""Pause before another request to an unreachable etcd; it doubles up to ETCD_PAUSE_MS_MAX."""
ETCD_PAUSE_MS_MAX: Final[int] = 2_000
ETCD_PING_MS: Final[int] = 10_000
"""Silence of etcd after which gRPC pings it; servers refuse less than 5 s."""
ETCD_PING_ANSWER_MS: Final[int] = 3_000
"""How long etcd has to answer the ping."""
ETCD_ANSWER_BYTES: Final[int] = 256 * 1024 * 1024
"""Largest answer of etcd: a page of 1,000 entries, or the changes of one transaction."""

# The package's generated code is for an older protobuf and works with the pure Python implementation only,
# which is chosen when protobuf is imported. Child processes do not inherit this setting.
_IMPLEMENTATION: Final = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
_before = os.environ.get(_IMPLEMENTATION)
os.environ[_IMPLEMENTATION] = "python"
# gRPC's core prints to standard error, which would break the log's format of lines.
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

__all__ = [
    "EtcdChannels",
    "EtcdSettings",
    "EtcdTimes",
    "LeaseLostError",
    "NotAskedError",
    "channel_closed",
    "elsewhere",
    "grpc",
    "not_sent",
    "rpc",
]

Answer = TypeVar("Answer")
_NOT_SENT: Final = ("failed to connect to all addresses", "connections to all backends failing")
_ELSEWHERE: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        # The token expired, or a restarted server does not know it: log in again.
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Failures after which another endpoint, or a new channel to the same endpoint, may succeed."""


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Endpoints of etcd, and the credentials of this process. Files are paths."""

    endpoints: tuple[str, ...]
    """Endpoints as ``HOST:PORT``."""
    cluster: str = "lightrail"
    """Name of the cluster: keys are below ``/lightrail/CLUSTER/``."""
    ca: str = ""
    """Authorities for the servers' certificates; empty: no TLS."""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password: str = ""

    @property
    def prefix(self) -> str:
        return f"/lightrail/{self.cluster}/"


@dataclass(frozen=True, slots=True)
class EtcdTimes:
    """Times in seconds; only tests set other values."""

    call: float = ETCD_CALL_MS / 1000
    attempt: float = ETCD_ATTEMPT_MS / 1000
    lease: float = limits.ETCD_LEASE_MS / 1000
    behind: float = ETCD_BEHIND_MS / 1000
    pause: float = ETCD_PAUSE_MS / 1000
    pause_max: float = ETCD_PAUSE_MS_MAX / 1000
    ping: float = ETCD_PING_MS / 1000
    """Silence of the watch after which its server is pinged."""
    ping_answer: float = ETCD_PING_ANSWER_MS / 1000


class LeaseLostError(CoordinatorError):
    """The lease for an entry no longer exists."""


class NotAskedError(CoordinatorError):
    """A call waited for longer than its time limit; it was never sent to etcd."""

    may_be_written = False


@dataclass(eq=False, repr=False)
class EtcdChannels:
    """Its methods block and are thread-safe. A channel is a client object of etcd3."""

    _settings: EtcdSettings
    _times: EtcdTimes
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _channel: Any = None
    _next: int = 0
    _answered: float = 0.0
    """When etcd last answered a call."""
    _closed: bool = False

    def close(self) -> None:
        """Ends calls in progress with an error."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    # --- channels -----------------------------------------------------------------------------------------

    def connect(self) -> Any:
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
            # A new channel connects at once; an older channel would first wait for gRPC's back-off.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", ETCD_ANSWER_BYTES),
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

    def leave(self, channel: Any) -> None:
        """Closes the channel after a failure: the next call uses the next endpoint."""
        with self._lock:
            if channel is None or channel is self._channel:
                self._next += 1
                self._channel = None
        if channel is not None:
            channel.close()

    # --- calls --------------------------------------------------------------------------------------------

    def read(self, ask: Callable[[Any, float], Answer], until: float) -> Answer:
        """Tries endpoints until one answers, at most until a time of the monotonic clock."""
        pause = self._times.pause
        while True:
            answer, problem = self.attempt(ask, until)
            if answer is not None:
                return answer
            assert problem is not None
            if time.monotonic() + pause >= until:
                raise CoordinatorError(self.away(problem))
            time.sleep(pause)
            pause = min(2 * pause, self._times.pause_max)

    def attempt(
        self, ask: Callable[[Any, float], Answer], until: float
    ) -> tuple[Answer | None, "grpc.RpcError | None"]:
        """One call at one endpoint: its answer, or its error."""
        began = time.monotonic()
        timeout = min(self._times.attempt, until - began)
        channel = None
        try:
            channel = self.connect()
            answer = ask(channel, max(timeout, 0.01))
            self._answered = time.monotonic()
            return answer, None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise LeaseLostError(f"etcd refuses: {error.details()}") from None
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise CoordinatorFullError(_full(error)) from None
            if not elsewhere(error):
                raise CoordinatorRefusedError(f"etcd refuses: {error.details()}") from None
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or self._answered < began:
                self.leave(channel)
            # Otherwise the server answers others meanwhile: closing the channel would end their calls.
            return None, error
        except ValueError as error:
            if not channel_closed(error):
                raise
            return None, _LeftError()

    def away(self, problem: Any) -> str:
        where = ", ".join(self._settings.endpoints)
        return f"etcd at {where} does not answer ({problem.details()}): check whether it runs"


class _LeftError(grpc.RpcError):  # type: ignore[misc]
    """Another thread closed the channel before the call began."""

    def details(self) -> str:
        return _NOT_SENT[0]


def _full(error: Any) -> str:
    details = str(error.details())
    if "space" not in details:
        return f"etcd can't accept more requests now: {details}"
    return (
        f"etcd has no space left and takes no writes ({details}): compact and defragment it, or raise its "
        "--quota-backend-bytes, then `etcdctl alarm disarm`"
    )


def elsewhere(error: Any) -> bool:
    """Whether the call may succeed at another endpoint, or after a new login."""
    return error.code() in _ELSEWHERE or _login_is_old(error)


def _login_is_old(error: Any) -> bool:
    """Whether users or rights were changed in etcd since the login; the error is INVALID_ARGUMENT then."""
    return "revision of auth store is old" in str(error.details())


def channel_closed(error: ValueError) -> bool:
    """Whether another thread has closed the channel; gRPC then raises ValueError."""
    text = str(error).lower()
    return "channel" in text and "closed" in text


def not_sent(problem: Any) -> bool:
    return str(problem.details()).startswith(_NOT_SENT)
