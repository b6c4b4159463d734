"""Send a file line by line: ``python send.py [FILE]``. Ends when the broker has all of it on disk."""

import argparse
from pathlib import Path

from proton import Event, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

FILES = ("/var/log/dpkg.log", "/var/log/syslog", "/usr/share/common-licenses/GPL-3")


class Send(MessagingHandler):
    """As many lines at a time as the broker gives credit for; a last message only says that it was all."""

    def __init__(self, url: str, queue: str, lines: list[bytes]) -> None:
        super().__init__()
        self.url = url
        self.queue = queue
        self.messages = [Message(body=line, inferred=True, durable=True) for line in lines]
        self.messages.append(Message(subject="end", durable=True))
        self.sent = 0
        self.accepted = 0

    def on_start(self, event: Event) -> None:
        connection = event.container.connect(self.url, reconnect=False)
        event.container.create_sender(connection, self.queue)

    def on_sendable(self, event: Event) -> None:
        while event.sender.credit and self.sent < len(self.messages):
            event.sender.send(self.messages[self.sent])
            self.sent += 1

    def on_accepted(self, event: Event) -> None:
        self.accepted += 1
        if self.accepted == len(self.messages):
            event.connection.close()

    def on_rejected(self, event: Event) -> None:
        raise SystemExit(f"the broker rejected a line: {event.delivery.remote.condition}")

    def on_transport_error(self, event: Event) -> None:
        raise SystemExit(f"no connection to {self.url}: {event.transport.condition}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Send a file through a queue, a message per line.")
    there = next((path for path in FILES if Path(path).is_file()), None)
    parser.add_argument("file", type=Path, nargs="?", default=there, help=f"default: {there}")
    parser.add_argument("--queue", default="examples/log-lines")
    parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
    options = parser.parse_args()
    if options.file is None:
        parser.error("name a file")
    # With their line ends, so that joining the lines gives the same bytes.
    lines = options.file.read_bytes().splitlines(keepends=True)
    Container(Send(options.url, options.queue, lines)).run()


if __name__ == "__main__":
    main()
