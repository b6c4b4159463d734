"""Receive what send.py or send.mjs sends, and write it to standard output: ``python receive.py > copy``."""

import argparse
import sys

from proton import Event
from proton.handlers import MessagingHandler
from proton.reactor import Container


class Receive(MessagingHandler):
    """Writes the body of each message; a message is accepted when on_message has returned."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(prefetch=500)
        self.url = url
        self.queue = queue

    def on_start(self, event: Event) -> None:
        connection = event.container.connect(self.url, reconnect=False)
        event.container.create_receiver(connection, self.queue)

    def on_message(self, event: Event) -> None:
        if event.message.subject == "end":
            sys.stdout.buffer.flush()
            event.connection.close()
        else:
            sys.stdout.buffer.write(event.message.body)

    def on_transport_error(self, event: Event) -> None:
        raise SystemExit(f"no connection to {self.url}: {event.transport.condition}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Receive the lines of a file and write them out.")
    parser.add_argument("--queue", default="examples/log-lines")
    parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
    options = parser.parse_args()
    Container(Receive(options.url, options.queue)).run()


if __name__ == "__main__":
    main()
