"""Send messages to a queue: ``python examples/send.py hello "first message" "second message"``."""

import argparse

import lightrail.client.sync

parser = argparse.ArgumentParser(description="Send messages to a queue; it comes into being by itself.")
parser.add_argument("queue", help="name of the queue, such as hello or myapp/orders")
parser.add_argument("texts", nargs="+", metavar="text", help="one message each")
parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
options = parser.parse_args()

with lightrail.client.sync.connect(options.url) as connection, connection.sender(options.queue) as sender:
    for text in options.texts:
        # When send returns, the broker has the message on disk.
        sender.send(text)
