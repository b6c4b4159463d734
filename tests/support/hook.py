"""A web hook on a port of its own: answers as it is told, and keeps what it got."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

Answer = tuple[int, dict[str, str], bytes]


class Got(NamedTuple):
    """One request; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class Hook:
    """Serves until the ``with`` block is left. ``answer`` is asked for each request."""

    def __init__(self, answer: Callable[[Got], Answer] = lambda _: (200, {}, b"")) -> None:
        self.got: list[Got] = []
        self.answer = answer
        hook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got = Got(self.path, {key.lower(): value for key, value in self.headers.items()}, body)
                hook.got.append(got)
                status, headers, answer = hook.answer(got)
                self.send_response(status)
                for key, value in ({"Content-Length": str(len(answer))} | headers).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
