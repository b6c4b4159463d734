"""Segments of shards, sealed or not, read from a gateway over HTTP (docs/operate/http.md)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import BadIndexError, SegmentIndex, decode_index
from lightrail.spark.http import Access, GatewayClient, GatewayError, GatewayRefusedError
from lightrail.spark.journals.journal import SegmentMissingError, SourceError

SPARK_RANGE_BYTES: Final[int] = 4 * 1024 * 1024
"""Bytes of a journal in one request."""
SPARK_PIN_MS: Final[int] = 30_000
"""How long a query tries to move its pin; the next micro-batch tries again."""
_JSON: Final = {"Content-Type": "application/json"}


class GatewayFile:
    """Reads a segment's bytes by ranges."""

    def __init__(self, access: Access, path: str) -> None:
        self._client = GatewayClient(access)
        self._path = path

    def read(self, offset: int, length: int) -> bytes:
        """See `File.read`."""
        pieces = []
        while length:
            count = min(length, SPARK_RANGE_BYTES)
            piece = self._piece(offset, offset + count)
            pieces.append(piece)
            if len(piece) < count:
                break
            offset, length = offset + count, length - count
        return b"".join(pieces)

    def _piece(self, start: int, end: int) -> bytes:
        try:
            return _asked(self._client, "GET", self._path, query={"from": start, "to": end})
        except _BeyondCommittedError as error:
            # The range is beyond the committed end.
            if error.committed <= start:
                return b""
            return _asked(self._client, "GET", self._path, query={"from": start, "to": error.committed})

    def close(self) -> None:
        """See `File.close`."""
        self._client.close()


@dataclass(frozen=True, slots=True)
class GatewaySource:
    """A segment at a shard."""

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
        with GatewayClient(self.access) as client:
            text = _asked(client, "GET", f"{self._path}/index").decode(errors="replace")
        try:
            return decode_index(text)
        except BadIndexError as error:
            raise SourceError(f"{self._path}/index: {error}") from error


class Listed(NamedTuple):
    """A segment as a gateway lists it."""

    number: int
    first_lsn: int
    next_lsn: int


def find(access: Access) -> list[tuple[Incarnation, list[Listed], bool]]:
    """The journals of a gateway with their segments, and whether their shard is unreachable.

    Raises:
        SourceError: the gateway can't be reached, refuses, or gives another answer.
    """
    with GatewayClient(access) as client:
        answer = _json(client, "GET", "/!journals")
    try:
        return [
            (
                Incarnation(str(row["cluster"]), int(row["shard"]), str(row["journal"])),
                [
                    Listed(int(each["segment"]), int(each["first_lsn"]), int(each["next_lsn"]))
                    for each in row["segments"]
                ],
                bool(row.get("away")),
            )
            for row in answer["journals"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"/!journals: expected a list of journals, found something else ({error!r}): is the gateway that "
            " of a LightRail of this version?"
        ) from error


def move_reader(access: Access, name: str, body: Mapping[str, Any]) -> None:
    """Creates a reader, or moves its pin forward, which keeps unread segments from deletion.

    Raises:
        SourceError: the gateway can't be reached, or refuses.
    """
    with GatewayClient(access, retry_ms=SPARK_PIN_MS) as client:
        _json(client, "PUT", f"/!readers/{quote(name, safe='')}", body)


class _BeyondCommittedError(SourceError):
    """The requested bytes are not committed."""

    def __init__(self, text: str, committed: int) -> None:
        super().__init__(text)
        self.committed = committed


def _json(client: GatewayClient, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    data = _asked(
        client,
        method,
        path,
        body=None if body is None else json.dumps(body).encode(),
        headers=None if body is None else _JSON,
    )
    try:
        return json.loads(data)
    except ValueError as error:
        raise SourceError(f"{path}: expected JSON of the gateway, found {data[:100]!r}") from error


def _asked(client: GatewayClient, method: str, path: str, **more: Any) -> bytes:
    try:
        return client.request(method, path, **more).body
    except GatewayRefusedError as error:
        if error.status in (404, 410):
            raise SegmentMissingError(str(error)) from error
        if error.status == 416:
            raise _BeyondCommittedError(str(error), int(error.problem.get("committed", 0))) from error
        raise SourceError(str(error)) from error
    except GatewayError as error:
        raise SourceError(str(error)) from error
