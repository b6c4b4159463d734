"""GatewayClient: requests of Spark's tasks to the gateways of a broker, with credentials and retries.

An `Access` has the addresses and the paths of secrets. It never contains a secret, because plans and logs
show it. Each task reads the files where it runs.
"""

import base64
import http.client
import json
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

from lightrail.model import limits

SPARK_RETRY_PAUSE_MS: Final[int] = 100
"""Pause before the first of these attempts; it doubles up to SPARK_RETRY_PAUSE_MS_MAX."""
SPARK_ANSWER_MS: Final[int] = 90_000
"""How long a gateway may be silent; longer than a gateway waits for a shard."""
SPARK_ANSWER_BYTES_MAX: Final[int] = 256 * 1024 * 1024
"""Largest answer of a gateway that a task reads."""

log = logging.getLogger("lightrail.spark.http")

AGAIN_STATUSES: Final = frozenset({429, 502, 503, 504})
"""Statuses of a gateway, or of a proxy in front of it, after which a request may succeed later."""
VARIABLES: Final = {
    "gateway": "LIGHTRAIL_URL",
    "user": "LIGHTRAIL_USER",
    "passwordfile": "LIGHTRAIL_PASSWORD_FILE",
    "tokenfile": "LIGHTRAIL_TOKEN_FILE",
    "cafile": "LIGHTRAIL_CA_FILE",
}
"""The environment variable that replaces each missing option; executors may have other values."""
PASSWORD: Final = "LIGHTRAIL_PASSWORD"
TOKEN: Final = "LIGHTRAIL_TOKEN"
"""Variables with the secrets themselves, used if no file is named."""
_SECRET_BYTES_MAX: Final = 65_536


class GatewayError(Exception):
    """A request that failed; the message has the request, the answer, and what to do."""


class GatewayRefusedError(GatewayError):
    """The gateway answered with a permanent error.

    Attributes:
        status: the status of HTTP.
        problem: the members of the answer's problem details (RFC 9457), empty if it has none.
    """

    def __init__(self, text: str, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.status = status
        self.problem = dict(problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.status, self.problem)


class GatewayAwayError(GatewayError):
    """No gateway answered within the time, or only with temporary errors."""


@dataclass(frozen=True, slots=True)
class Access:
    """Addresses of gateways and the credentials for them, without any secret.

    Attributes:
        gateways: URLs, `http://HOST:PORT` or `https://HOST:PORT`; requests go to the next one when one fails.
        user: name of the user; the first line of `password_file` is the password.
        token_file: file whose first line is a bearer token; instead of a user.
        ca_file: PEM file with the certificates that verify the gateway's; empty for those of the system.
    """

    gateways: tuple[str, ...]
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    ca_file: str = ""

    @classmethod
    def of_options(cls, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the options gateway (several separated by commas), user, passwordFile, tokenFile, caFile.

        The case of names is ignored; missing options come from the environment. Raises ValueError.
        """
        given = {name.lower(): value for name, value in options.items()}
        values = {name: given.get(name) or environ.get(variable, "") for name, variable in VARIABLES.items()}
        if given.get("tokenfile"):
            # An option takes precedence over a variable of the other kind.
            values["user"] = values["passwordfile"] = ""
        elif given.get("user"):
            values["tokenfile"] = ""
        gateways = tuple(url.strip().rstrip("/") for url in values["gateway"].split(",") if url.strip())
        if not gateways:
            raise ValueError("expected the option gateway, http://HOST:PORT or https://HOST:PORT; found none")
        for url in gateways:
            _parts(url)
        if "password" in given:
            raise ValueError("a password is no option: it would stand in plans and logs; use passwordFile")
        return cls(gateways, values["user"], values["passwordfile"], values["tokenfile"], values["cafile"])

    def authorization(self) -> str:
        """The Authorization header, or empty. Raises GatewayError for a secret that can't be read."""
        if self.user and not self.token_file:
            pair = f"{self.user}:{_secret(self.password_file, PASSWORD, 'passwordFile')}"
            return "Basic " + base64.b64encode(pair.encode()).decode()
        if self.token_file or TOKEN in os.environ:
            return "Bearer " + _secret(self.token_file, TOKEN, "tokenFile")
        return ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer.

    Attributes:
        headers: by name in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON. Raises GatewayError if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise GatewayError(f"expected JSON from the gateway, got {self.body[:80]!a}") from None


class _Failure(NamedTuple):
    """An attempt that may be repeated after `wait_s` seconds."""

    text: str
    wait_s: float
    is_unreachable: bool
    """Whether no gateway answered."""


class GatewayClient:
    """One kept-alive connection to one of the gateways, for one thread.

    Args:
        retry_ms: how long a request that fails temporarily is sent again before GatewayAwayError is raised.
        monotonic: monotonic clock in seconds; tests inject it and `sleep`.
    """

    def __init__(
        self,
        access: Access,
        *,
        retry_ms: int = limits.SPARK_RETRY_MS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._access = access
        self._retry_ms = retry_ms
        self._monotonic = monotonic
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None
        self._at = 0
        """Index of the gateway that gets the next request."""
        self._authorization: str | None = None
        self.attempts_again = 0
        """Number of requests that were sent again."""

    def get(self, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> Response:
        """See `request`."""
        return self.request("GET", path, query=query, **more)

    def put(self, path: str, body: bytes | None = None, **more: Any) -> Response:
        """See `request`."""
        return self.request("PUT", path, body=body, **more)

    def post(self, path: str, body: bytes | None = None, **more: Any) -> Response:
        """See `request`."""
        return self.request("POST", path, body=body, **more)

    def delete(self, path: str, **more: Any) -> Response:
        """See `request`."""
        return self.request("DELETE", path, **more)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        good: tuple[int, ...] = (),
    ) -> Response:
        """Sends a request, and sends it again while it fails temporarily. It must be safe to send it twice.

        Args:
            path: percent-encoded already, see `path_of`.
            query: parameters; those with the value None are omitted.
            good: statuses from 400 on that are returned as answers.

        Raises:
            GatewayRefusedError: the answer is a permanent error.
            GatewayAwayError: there was no answer within the time, or only temporary errors.
        """
        wanted = {key: value for key, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(wanted)}" if wanted else "")
        sent = dict(headers or {})
        if self._authorization is None:
            self._authorization = self._access.authorization()
        if self._authorization:
            sent["Authorization"] = self._authorization
        until = self._monotonic() + self._retry_ms / 1000
        pause_s = SPARK_RETRY_PAUSE_MS / 1000
        is_logged = False
        while True:
            url = self._url
            found = self._attempt(method, target, body, sent, good, pause_s)
            if isinstance(found, Response):
                return found
            if found.is_unreachable and not is_logged:
                # With a wrong address the caller waits for minutes; the log shows the reason.
                log.warning("%s: %s; trying for %g s", url, found.text, self._retry_ms / 1000)
                is_logged = True
            if self._monotonic() + found.wait_s > until:
                raise GatewayAwayError(
                    f"{method} {path} at {', '.join(self._access.gateways)}: {found.text}; tried for "
                    f"{self._retry_ms / 1000:g} s. Is the broker running, and is this its HTTP address?"
                )
            self.attempts_again += 1
            if found.wait_s:
                self._sleep(found.wait_s)
                pause_s = min(2 * pause_s, limits.SPARK_RETRY_PAUSE_MS_MAX / 1000)

    def _attempt(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        good: tuple[int, ...],
        pause_s: float,
    ) -> "Response | _Failure":
        """Sends the request once. Raises GatewayRefusedError, and GatewayError for an untrusted
        certificate."""
        is_fresh = self._connection is None
        try:
            response = self._exchange(method, target, body, headers)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise GatewayError(
                f"the certificate of {self._url} can't be trusted: {error}; see the option caFile"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            text = f"no answer ({str(error) or type(error).__name__})"
            if not is_fresh:
                # The gateway may have closed a connection that was idle: try a new one at once.
                return _Failure(text, 0.0, False)
            self._at += 1
            return _Failure(text, pause_s, True)
        if response.status < 400 or response.status in good:
            return response
        text = _described(response)
        if response.status not in AGAIN_STATUSES:
            path = target.partition("?")[0]
            raise GatewayRefusedError(
                f"{method} {path} at {self._url}: {text}{self._advice(response.status)}",
                response.status,
                _problem(response),
            )
        if response.status != 429:
            # Another gateway may reach the shard or etcd that this gateway does not reach.
            self.close()
            self._at += 1
        return _Failure(text, max(pause_s, _retry_after(response)), False)

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _url(self) -> str:
        return self._access.gateways[self._at % len(self._access.gateways)]

    def _exchange(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Response:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
        connection.request(method, target, body, dict(headers))
        answer = connection.getresponse()
        data = answer.read(SPARK_ANSWER_BYTES_MAX + 1)
        if len(data) > SPARK_ANSWER_BYTES_MAX:
            self.close()
            raise GatewayError(f"{method} {target}: the answer has more than {SPARK_ANSWER_BYTES_MAX} bytes")
        return Response(answer.status, {key.lower(): value for key, value in answer.getheaders()}, data)

    def _connect(self) -> http.client.HTTPConnection:
        scheme, host, port = _parts(self._url)
        wait_s = SPARK_ANSWER_MS / 1000
        connection: http.client.HTTPConnection
        if scheme == "https":
            try:
                context = ssl.create_default_context(cafile=self._access.ca_file or None)
            except OSError as error:
                raise GatewayError(f"caFile {self._access.ca_file!a} can't be used: {error}") from None
            connection = http.client.HTTPSConnection(host, port, timeout=wait_s, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=wait_s)
        connection.connect()
        # Head and body of a request are two writes: without this the second waits for an acknowledgement.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _advice(self, status: int) -> str:
        if status == 401 and not self._authorization:
            return "; give the options user and passwordFile, or tokenFile"
        return ""


def path_of(name: str, *below: str) -> str:
    """The path of a name, or of a resource below it: path_of("a b", "!policy") is /a%20b/!policy."""
    return "/" + "/".join([quote(name, safe="/!$"), *(quote(each, safe="!$") for each in below)])


def _parts(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and not parts.path.strip("/"):
            if parts.username is not None:
                raise ValueError(
                    "credentials in a gateway's URL would stand in plans and logs; use user and passwordFile"
                )
            return parts.scheme, parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"the option gateway can't be used: {error}") from None
    raise ValueError(f"gateway is {url!a}; expected http://HOST:PORT or https://HOST:PORT")


def _secret(path: str, variable: str, option: str) -> str:
    if not path:
        if variable in os.environ:
            return os.environ[variable]
        raise GatewayError(
            f"expected the option {option} or the environment variable {variable}; found neither"
        )
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.readline(_SECRET_BYTES_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise GatewayError(
            f"{path} can't be read on {socket.gethostname()}: {error}; the file must exist where tasks run"
        ) from None


def _problem(response: Response) -> dict[str, Any]:
    try:
        problem = json.loads(response.body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _described(response: Response) -> str:
    problem = _problem(response)
    text = str(problem.get("detail") or problem.get("title") or "")
    return f"{response.status} {text or response.body[:300].decode(errors='replace').strip()}".strip()


def _retry_after(response: Response) -> float:
    """Seconds to wait according to the answer, within bounds."""
    text = response.headers.get("retry-after", "")
    return min(float(text), limits.SPARK_RETRY_PAUSE_MS_MAX / 1000) if text.isdigit() else 0.0
