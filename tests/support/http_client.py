"""Plain HTTP as curl would do it: one kept connection, requests by method and path."""

import base64
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass
class Response:
    """What came back; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def properties(self) -> dict[str, Any]:
        """BrokerProperties."""
        found: dict[str, Any] = json.loads(self.headers["brokerproperties"])
        return found


class Http:
    """One connection to a gateway; `user` and `password` go along with every request."""

    def __init__(self, address: str, user: str = "", password: str = "", deadline_s: float = 20.0) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=deadline_s)
        self._headers: dict[str, str] = {}
        if user:
            secret = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {secret}"

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Response:
        """A body of bytes or text goes as text/plain, an iterator in chunks, any other as JSON."""
        sent = dict(self._headers)
        data: Any = None
        if isinstance(body, bytes | str):
            data = body.encode() if isinstance(body, str) else body
            sent["Content-Type"] = "text/plain"
        elif isinstance(body, Iterator):
            data = body
        elif body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        self._connection.request(method, path, data, sent | (headers or {}))
        return self.answer()

    def ask(self, method: str, path: str) -> None:
        """A request whose answer nobody waits for yet."""
        self._connection.request(method, path, headers=self._headers)

    def answer(self) -> Response:
        got = self._connection.getresponse()
        return Response(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
