"""GatewayClient: the gateways of a broker as tasks of Spark see them, with credentials and retries.

Where a gateway is and who asks is an `Access`, which holds the paths of secrets and never a secret: it
travels to executors in plans and logs. The files are read where the request is made.
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
from typing import Any, Final, Self
from urllib.parse import quote, urlencode, urlsplit

from lightrail.model import limits

log = logging.getLogger("lightrail.spark.http")

AGAIN_STATUSES: Final = frozenset({429, 502, 503, 504})
"""What a gateway, or a proxy before it, says when the same request may succeed later."""
VARIABLES: Final = {
    "gateway": "LIGHTRAIL_URL",
    "user": "LIGHTRAIL_USER",
    "passwordfile": "LIGHTRAIL_PASSWORD_FILE",
    "tokenfile": "LIGHTRAIL_TOKEN_FILE",
    "cafile": "LIGHTRAIL_CA_FILE",
}
"""Where an option comes from that is not given. Variables of executors are their own."""
PASSWORD: Final = "LIGHTRAIL_PASSWORD"
TOKEN: Final = "LIGHTRAIL_TOKEN"
"""Secrets themselves, where no file is named: variables of the process that asks."""
_SECRET_BYTES_MAX: Final = 65_536


class GatewayError(Exception):
    """A request that came to nothing; the message says what was asked, what came, and what to do."""


class GatewayRefused(GatewayError):
    """The gateway answered with an error that the same request will meet again.

    Attributes:
        status: of HTTP.
        problem: the members of the answer's problem details (RFC 9457), empty where it had none.
    """

    def __init__(self, text: str, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.status = status
        self.problem = dict(problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.status, self.problem)


class GatewayAway(GatewayError):
    """Nobody answered, or only that it is to be tried again, until the time for it was over."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where gateways are and who asks there; without any secret.

    Attributes:
        gateways: URLs, `http://HOST:PORT` or `https://HOST:PORT`; the next one is asked when one fails.
        user: with `password_file`, whose first line is the password.
        token_file: its first line is a bearer token; instead of a user.
        ca_file: certificates, PEM, that the gateway's is checked against; empty for the system's.
    """

    gateways: tuple[str, ...]
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    ca_file: str = ""

    @classmethod
    def of_options(cls, options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Self:
        """The options gateway (several with commas between), user, passwordFile, tokenFile, caFile.

        In any case of letters; what is not given comes from the environment. Raises ValueError.
        """
        given = {name.lower(): value for name, value in options.items()}
        said = {name: given.get(name) or environ.get(variable, "") for name, variable in VARIABLES.items()}
        if given.get("tokenfile"):
            # An option counts more than a variable of the other kind.
            said["user"] = said["passwordfile"] = ""
        elif given.get("user"):
            said["tokenfile"] = ""
        gateways = tuple(url.strip().rstrip("/") for url in said["gateway"].split(",") if url.strip())
        if not gateways:
            raise ValueError("expected the option gateway, http://HOST:PORT or https://HOST:PORT; none came")
        for url in gateways:
            _parts(url)
        if "password" in given:
            raise ValueError("a password is no option: it would stand in plans and logs; use passwordFile")
        return cls(gateways, said["user"], said["passwordfile"], said["tokenfile"], said["cafile"])

    def authorization(self) -> str:
        """The Authorization header, or empty. Raises GatewayError when a secret is not here."""
        if self.user and not self.token_file:
            pair = f"{self.user}:{_secret(self.password_file, PASSWORD, 'passwordFile')}"
            return "Basic " + base64.b64encode(pair.encode()).decode()
        if self.token_file or TOKEN in os.environ:
            return "Bearer " + _secret(self.token_file, TOKEN, "tokenFile")
        return ""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back.

    Attributes:
        headers: by name in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON. Raises GatewayError where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise GatewayError(f"expected JSON from the gateway, got {self.body[:80]!a}") from None


class GatewayClient:
    """One kept-alive connection to one of the gateways; for one thread. It is made where it is used.

    Args:
        retry_ms: so long a request is tried again that failed for now; then GatewayAway is raised.
        monotonic: seconds of a clock that only goes forward; with `sleep`, injected by tests.
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
        """Which of the gateways is asked."""
        self._authorization: str | None = None
        self.attempts_again = 0
        """Requests that had to be said once more."""

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
        """One request, said again as long as it fails for now: it must be one that may be said twice.

        Args:
            path: percent-encoded already, see `path_of`.
            query: parameters; those that are None are left out.
            good: statuses from 400 on that are an answer all the same.

        Raises:
            GatewayRefused: the answer is an error that will not pass by itself.
            GatewayAway: nothing better than "try again" came in time.
        """
        wanted = {key: value for key, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(wanted)}" if wanted else "")
        sent = dict(headers or {})
        if self._authorization is None:
            self._authorization = self._access.authorization()
        if self._authorization:
            sent["Authorization"] = self._authorization
        until = self._monotonic() + self._retry_ms / 1000
        pause_s = limits.SPARK_RETRY_PAUSE_MS / 1000
        silent = True
        while True:
            fresh = self._connection is None
            try:
                response = self._exchange(method, target, body, sent)
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise GatewayError(
                    f"the certificate of {self._url} can't be trusted: {error}; see the option caFile"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                failure = f"no answer ({str(error) or type(error).__name__})"
                wait_s = 0.0
                if fresh:
                    if silent:
                        # Who waits, for minutes where the address is wrong, hears what for.
                        log.warning("%s: %s; trying for %g s", self._url, failure, self._retry_ms / 1000)
                        silent = False
                    wait_s = pause_s
                    self._at += 1
            else:
                if response.status < 400 or response.status in good:
                    return response
                failure = _said(response)
                if response.status not in AGAIN_STATUSES:
                    raise GatewayRefused(
                        f"{method} {path} at {self._url}: {failure}{self._advice(response.status)}",
                        response.status,
                        _problem(response),
                    )
                wait_s = max(pause_s, _retry_after(response))
                if response.status != 429:
                    # Another gateway may reach what this one does not.
                    self.close()
                    self._at += 1
            if self._monotonic() + wait_s > until:
                raise GatewayAway(
                    f"{method} {path} at {', '.join(self._access.gateways)}: {failure}; tried for "
                    f"{self._retry_ms / 1000:g} s. Is the broker running, and is this its HTTP address?"
                )
            self.attempts_again += 1
            if wait_s:
                self._sleep(wait_s)
                pause_s = min(2 * pause_s, limits.SPARK_RETRY_PAUSE_MS_MAX / 1000)

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
        data = answer.read(limits.SPARK_ANSWER_BYTES_MAX + 1)
        if len(data) > limits.SPARK_ANSWER_BYTES_MAX:
            self.close()
            raise GatewayError(
                f"{method} {target}: the answer has more than {limits.SPARK_ANSWER_BYTES_MAX} bytes"
            )
        return Response(answer.status, {key.lower(): value for key, value in answer.getheaders()}, data)

    def _connect(self) -> http.client.HTTPConnection:
        scheme, host, port = _parts(self._url)
        wait_s = limits.SPARK_ANSWER_MS / 1000
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
    """The path of a name, or of something below it: path_of("a b", "!policy") is /a%20b/!policy."""
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
            f"expected the option {option} or the environment variable {variable}; neither came"
        )
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.readline(_SECRET_BYTES_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise GatewayError(
            f"{path} can't be read on {socket.gethostname()}: {error}; the file has to be where tasks run"
        ) from None


def _problem(response: Response) -> dict[str, Any]:
    try:
        problem = json.loads(response.body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _said(response: Response) -> str:
    problem = _problem(response)
    text = str(problem.get("detail") or problem.get("title") or "")
    return f"{response.status} {text or response.body[:300].decode(errors='replace').strip()}".strip()


def _retry_after(response: Response) -> float:
    """Seconds that the answer asks to wait, within bounds."""
    text = response.headers.get("retry-after", "")
    return min(float(text), limits.SPARK_RETRY_PAUSE_MS_MAX / 1000) if text.isdigit() else 0.0
