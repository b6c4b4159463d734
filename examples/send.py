"""Send messages to a queue: ``python examples/send.py hello "first message" "second message"``."""

import argparse

from proton import Message
from proton.utils import BlockingConnection

parser = argparse.ArgumentParser(description="Send messages to a queue; it comes into being by itself.")
parser.add_argument("queue", help="name of the queue, such as hello or myapp/orders")
parser.add_argument("texts", nargs="+", metavar="text", help="one message each")
parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
options = parser.parse_args()

connection = BlockingConnection(options.url)
sender = connection.create_sender(options.queue)
for text in options.texts:
    # Durable: when send returns, the broker has the message on disk.
    sender.send(Message(body=text, durable=True))
connection.close()
