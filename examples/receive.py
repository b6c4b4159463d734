"""Receive messages of a queue until none has come for a while: ``python examples/receive.py hello``."""

import argparse

import lightrail.client.sync

parser = argparse.ArgumentParser(description="Receive messages of a queue and print them.")
parser.add_argument("queue", help="name of the queue, such as hello or myapp/orders")
parser.add_argument("--wait", type=float, default=1.0, metavar="SECONDS", help="end after this much silence")
parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
options = parser.parse_args()

with lightrail.client.sync.connect(options.url) as connection, connection.receiver(options.queue) as receiver:
    while deliveries := receiver.receive(timeout=options.wait):
        for delivery in deliveries:
            print(delivery.body)
            # Only now does the broker delete the message; without this it comes again.
            delivery.accept()
