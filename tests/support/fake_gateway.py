"""A gateway of canned answers on a real socket, which notes what it was asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class FakeGateway:
    """`answers[METHOD, PATH]` is `(status, headers, body)`, or a list of them, used up to its last one."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Any] = {}
        self.ends_after: int | None = None
        """Requests that are answered; then connections are closed without an answer. None for all."""
        self.asked: list[tuple[str, str, bytes, dict[str, str]]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                path, _, _query = self.path.partition("?")
                gateway.asked.append((self.command, self.path, body, dict(self.headers)))
                if gateway.ends_after is not None and len(gateway.asked) > gateway.ends_after:
                    self.close_connection = True
                    return
                found = gateway.answers.get((self.command, path), (404, {}, {"detail": f"no {path}"}))
                if isinstance(found, list):
                    found = found.pop(0) if len(found) > 1 else found[0]
                status, headers, value = found
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                if status != 204:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if status != 204:
                    self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - named by http.server

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
