"""Process jobs until none has come for a while: ``python process.py processors/1``."""

import argparse

from proton import Timeout
from proton.utils import BlockingConnection

parser = argparse.ArgumentParser(description="Take jobs out of a queue and print them.")
parser.add_argument("queue", help="processors/1, processors/2 or audit")
parser.add_argument("--wait", type=float, default=1.0, metavar="SECONDS", help="end after this much silence")
parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
options = parser.parse_args()

connection = BlockingConnection(options.url)
receiver = connection.create_receiver(options.queue)
while True:
    try:
        job = receiver.receive(timeout=options.wait)
    except Timeout:
        break
    print(job.body)
    # The job is done; a processor that dies before this leaves it to whoever takes the queue over.
    receiver.accept()
connection.close()
