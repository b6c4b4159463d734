"""A gateway as a place: what shards hold, sealed or not, by HTTP (docs/operate/http.md).

Secrets are read from files, or from the environment, in the process that asks; they are never among the
options that Spark shows.
"""

import base64
import http.client
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import BadIndex, SegmentIndex, decode_index
from lightrail.model import limits
from lightrail.spark.places.sources import Gone, PlaceError

_AGAIN: Final = frozenset({429, 502, 503, 504})
PASSWORD: Final = "LIGHTRAIL_PASSWORD"
TOKEN: Final = "LIGHTRAIL_TOKEN"


@dataclass(frozen=True, slots=True)
class Access:
    """A gateway and who asks it: nothing secret, and therefore sent to executors as it is."""

    url: str
    """http://HOST:PORT or https://HOST:PORT, without a path."""
    user: str | None = None
    password_file: str | None = None
    token_file: str | None = None
    ca_file: str | None = None

    def headers(self) -> dict[str, str]:
        """Who asks.

        Raises:
            PlaceError: a secret is not where it should be.
        """
        if self.user is not None:
            secret = _secret(self.password_file, PASSWORD, "passwordFile")
            pair = base64.b64encode(f"{self.user}:{secret}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        if self.token_file is not None or TOKEN in os.environ:
            return {"Authorization": f"Bearer {_secret(self.token_file, TOKEN, 'tokenFile')}"}
        return {}


def _secret(path: str | None, variable: str, option: str) -> str:
    if path is None:
        if variable in os.environ:
            return os.environ[variable]
        raise PlaceError(
            f"expected the option {option} or the environment variable {variable}, found neither"
        )
    try:
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PlaceError(
            f"{option} {path} can't be read here: {error}: the file must be at this path on the driver and "
            "on every executor"
        ) from error


class Refused(PlaceError):
    """The gateway answered, and not with what was asked for."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Connection:
    """A connection to a gateway that is made again where it breaks."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._headers = access.headers()
        self._open: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The body of the answer. What may pass is waited for, with pauses that double, within a bound.

        Raises:
            Gone: 404 or 410.
            Refused: any other answer that is no success.
            PlaceError: the gateway can't be reached.
        """
        pause_s = limits.SPARK_AGAIN_S
        until = time.monotonic() + limits.SPARK_AWAY_S
        while True:
            try:
                return self._once(method, path, body, headers)
            except (Gone, PlaceError) as error:
                if not isinstance(error, Refused) or error.status not in _AGAIN:
                    raise
                problem: Exception = error
            except ssl.SSLCertVerificationError as error:
                raise PlaceError(f"{self._access.url}: {error}: name its authority by caFile") from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                problem = error
            if time.monotonic() + pause_s > until:
                raise PlaceError(
                    f"{self._access.url} has not answered for {limits.SPARK_AWAY_S} s: {problem}"
                ) from problem
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, limits.SPARK_AGAIN_S_MAX)

    def _once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> bytes:
        if self._open is None:
            self._open = self._connected()
        self._open.request(method, path, body, {**self._headers, **(headers or {})})
        with self._open.getresponse() as answer:
            data = answer.read()
            if answer.will_close:
                self.close()
        if 200 <= answer.status < 300:
            return data
        text = data[:500].decode(errors="replace")
        if answer.status in (404, 410):
            raise Gone(f"{self._access.url}{path}: {text}")
        raise Refused(answer.status, f"{method} {self._access.url}{path}: {answer.status}: {text}")

    def _connected(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self._access.url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=self._access.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise PlaceError(f"caFile {self._access.ca_file} can't be read here: {error}") from error
            return http.client.HTTPSConnection(
                host, parts.port, timeout=limits.SPARK_ANSWER_S, context=context
            )
        return http.client.HTTPConnection(host, parts.port, timeout=limits.SPARK_ANSWER_S)

    def close(self) -> None:
        """The next question opens another."""
        if self._open is not None:
            self._open.close()
            self._open = None


class GatewayFile:
    """A segment's bytes by ranges."""

    def __init__(self, access: Access, path: str) -> None:
        self._connection = Connection(access)
        self._path = path

    def read(self, offset: int, length: int) -> bytes:
        """See `File.read`."""
        pieces = []
        while length:
            count = min(length, limits.SPARK_RANGE_BYTES)
            try:
                piece = self._connection.ask("GET", f"{self._path}?from={offset}&to={offset + count}")
            except Refused as error:
                if error.status == 416:
                    break
                raise
            pieces.append(piece)
            if len(piece) < count:
                break
            offset, length = offset + count, length - count
        return b"".join(pieces)

    def close(self) -> None:
        """See `File.close`."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class GatewaySource:
    """A segment that a shard holds."""

    access: Access
    disk: str
    number: int

    @property
    def _path(self) -> str:
        return f"/!journals/{self.disk}/{self.number}"

    def open(self) -> GatewayFile:
        """See `Source.open`."""
        return GatewayFile(self.access, self._path)

    def index(self) -> SegmentIndex:
        """See `Source.index`."""
        connection = Connection(self.access)
        try:
            text = connection.ask("GET", f"{self._path}/index").decode(errors="replace")
        finally:
            connection.close()
        try:
            return decode_index(text)
        except BadIndex as error:
            raise PlaceError(f"{self.access.url}{self._path}/index: {error}") from error


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment as a gateway lists it."""

    number: int
    first_lsn: int
    next_lsn: int
    source: GatewaySource


def find(access: Access) -> list[tuple[Incarnation, list[Listed] | None]]:
    """The journals that a gateway knows; None for the segments where the shard is away.

    Raises:
        PlaceError: the gateway can't be reached, refuses, or answers otherwise.
    """
    answer = _asked(access, "GET", "/!journals")
    try:
        found: list[tuple[Incarnation, list[Listed] | None]] = []
        for entry in answer["journals"] if isinstance(answer, dict) else answer:
            disk = str(entry["journal"])
            incarnation = Incarnation(str(entry.get("cluster", "")), int(entry["shard"]), disk)
            if entry.get("away"):
                found.append((incarnation, None))
                continue
            segments = [
                Listed(
                    number, int(each["first_lsn"]), int(each["next_lsn"]), GatewaySource(access, disk, number)
                )
                for each in entry["segments"]
                for number in [int(each["segment"])]
            ]
            found.append((incarnation, sorted(segments, key=lambda each: each.number)))
    except (KeyError, TypeError, ValueError) as error:
        raise PlaceError(f"{access.url}/!journals answers with no list of journals: {error!r}") from error
    return found


def move_reader(access: Access, name: str, body: Mapping[str, Any]) -> None:
    """Makes a reader, or moves its pin forward: what it has not read yet is held back from deletion.

    Raises:
        PlaceError: the gateway can't be reached, or refuses.
    """
    _asked(access, "PUT", f"/!readers/{urllib.parse.quote(name, safe='')}", body)


def _asked(access: Access, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    connection = Connection(access)
    try:
        data = connection.ask(
            method,
            path,
            None if body is None else json.dumps(body).encode(),
            {} if body is None else {"Content-Type": "application/json"},
        )
    except Gone as error:
        raise PlaceError(f"{error}: is this the gateway of a LightRail of this version?") from error
    finally:
        connection.close()
    try:
        return json.loads(data) if data else None
    except ValueError as error:
        raise PlaceError(f"{access.url}{path}: expected JSON, found {data[:100]!r}") from error
