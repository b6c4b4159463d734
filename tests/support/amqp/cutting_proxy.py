"""A TCP proxy that lets requests through and can lose the answers, and cut connections."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CuttingProxy:
    """Between clients and one server; its port is ``port``."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.losing = threading.Event()
        """While it is set, what the server says is lost."""
        self.lost = threading.Event()
        """Something was lost."""
        self._away = threading.Event()
        self.url = f"127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """Ends the connections that there are; others may come."""
        self._end(*self._sockets)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Ends the connections, and each new one, for as long as the block runs."""
        self._away.set()
        try:
            self.cut()
            yield
        finally:
            self._away.clear()

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end(self._listener, *self._sockets)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._away.is_set():
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                # The server is being started: its client sees a connection that ends.
                client.close()
                continue
            self._sockets += [client, server]
            for source, sink, answers in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, answers))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if answers and self.losing.is_set():
                    self.lost.set()
                else:
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
