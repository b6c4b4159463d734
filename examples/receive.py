"""Receive messages of a queue until none has come for a while: ``python examples/receive.py hello``."""

import argparse

from proton import Timeout
from proton.utils import BlockingConnection

parser = argparse.ArgumentParser(description="Receive messages of a queue and print them.")
parser.add_argument("queue", help="name of the queue, such as hello or myapp/orders")
parser.add_argument("--wait", type=float, default=1.0, metavar="SECONDS", help="end after this much silence")
parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
options = parser.parse_args()

connection = BlockingConnection(options.url)
receiver = connection.create_receiver(options.queue)
while True:
    try:
        message = receiver.receive(timeout=options.wait)
    except Timeout:
        break
    print(message.body)
    # Only now does the broker forget the message; without this it comes again.
    receiver.accept()
connection.close()
