"""Client: requests of a command to the gateway, over one kept-alive HTTP connection."""

import base64
import getpass
import http.client
import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from lightrail.model.names import InvalidNameError

URL_DEFAULT: Final = "http://127.0.0.1:8080"
ANSWER_TIME_MAX_S: Final = 90.0
"""Longer than the longest timeout of a receive."""
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
SECRET_BYTES_MAX: Final = 65_536


class AnswerError(Exception):
    """The gateway answered with an error, which the message quotes."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class UnreachableError(Exception):
    """No gateway answered; the message has its address and a remedy."""


class UsageError(Exception):
    """The command line is wrong; the message has what was expected."""


class CommandError(Exception):
    """The command failed, or needs a confirmation; the message has the next step."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON. Raises AnswerError if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise AnswerError(
                self.status, f"expected JSON from the gateway, got {self.body[:80]!a}"
            ) from None


@dataclass(slots=True)
class Client:
    """One gateway.

    Args:
        url: `http://HOST:PORT` or `https://HOST:PORT`.
        authorization: value of the header, or empty.
        ca: path of a PEM file that the gateway's certificate is checked against, or None for the system's.
    """

    url: str = URL_DEFAULT
    authorization: str = ""
    ca: str | None = None
    _connection: http.client.HTTPConnection | None = field(default=None, init=False)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        json_body: Any = None,
        headers: Mapping[str, str] | None = None,
        missing_ok: bool = False,
    ) -> Response:
        """One request; `path` is quoted already. Raises AnswerError for 4xx and 5xx, UnreachableError."""
        sent = dict(headers or {})
        if self.authorization:
            sent["Authorization"] = self.authorization
        if json_body is not None:
            body = json.dumps(json_body).encode()
            sent.setdefault("Content-Type", "application/json")
        wanted = {key: value for key, value in (query or {}).items() if value is not None}
        target = path + (f"?{urlencode(wanted)}" if wanted else "")
        response = self._exchange(method, target, body, sent)
        if response.status >= 400 and not (missing_ok and response.status == 404):
            raise AnswerError(response.status, self._error(response))
        return response

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a GET."""
        return self.request("GET", path, query=query, headers={"Accept": "application/json"}).json()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Response:
        # The gateway may have closed a kept connection: idempotent requests are sent once more.
        for kept in (self._connection is not None and method in ("GET", "PUT"), False):
            connection = self._connection or self._connect()
            self._connection = connection
            try:
                connection.request(method, target, body, dict(headers))
                answer = connection.getresponse()
                data = answer.read(ANSWER_BYTES_MAX)
                return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, data)
            except ssl.SSLError as error:
                self.close()
                raise UnreachableError(
                    f"the certificate of {self.url} can't be trusted: {error}; see --ca"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not kept:
                    raise UnreachableError(
                        f"no gateway answers at {self.url} ({error or type(error).__name__}); is the broker "
                        "running, and is --url (or LIGHTRAIL_URL) its HTTP address?"
                    ) from None
        raise AssertionError("the second try either answers or raises")

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise UnreachableError(f"--url is {self.url!a}; expected http://HOST:PORT or https://HOST:PORT")
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=self.ca)
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=ANSWER_TIME_MAX_S, context=context
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=ANSWER_TIME_MAX_S)

    def _error(self, response: Response) -> str:
        try:
            problem = json.loads(response.body)
            text = str(problem.get("detail") or problem.get("title") or "")
        except (ValueError, AttributeError):
            text = response.body[:300].decode(errors="replace").strip()
        if response.status == 401 and not self.authorization:
            return "the broker requires a user: add --user NAME (and --password-file FILE)"
        return text or f"the gateway answered {response.status}"


def authorization(user: str | None, password_file: str | None, token_file: str | None) -> str:
    """The Authorization header, with a password from a file or a prompt, never from an argument.

    Raises UnreachableError for a file that can't be read.
    """
    if token_file:
        return "Bearer " + _secret(token_file)
    if not user:
        return ""
    if password_file:
        password = _secret(password_file)
    elif sys.stdin.isatty():
        password = getpass.getpass(f"Password of {user}: ")
    else:
        raise UnreachableError(
            f"the password of {user} is needed: --password-file FILE, or LIGHTRAIL_PASSWORD_FILE"
        )
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def path_of(name: str, *below: str) -> str:
    """The path of a name, or of a part of it: path_of("a b", "!policy") is /a%20b/!policy.

    Raises InvalidNameError for the empty name, whose path is that of the whole installation.
    """
    if not name.strip("/"):
        raise InvalidNameError("the name is empty; expected a path such as myapp/orders")
    name = name.removeprefix("/")  # as in an AMQP address
    return "/" + "/".join([quote(name, safe="/!$"), *(quote(each, safe="!$") for each in below)])


def _secret(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.readline(SECRET_BYTES_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreachableError(f"{path} can't be read: {error}") from None
