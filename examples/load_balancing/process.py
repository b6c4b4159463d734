"""Process jobs until none has come for a while: ``python process.py processors/1``."""

import argparse

import lightrail.client.sync

parser = argparse.ArgumentParser(description="Process the jobs of a queue and print them.")
parser.add_argument("queue", help="processors/1, processors/2 or audit")
parser.add_argument("--wait", type=float, default=1.0, metavar="SECONDS", help="end after this much silence")
parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
options = parser.parse_args()

with lightrail.client.sync.connect(options.url) as connection, connection.receiver(options.queue) as receiver:
    while jobs := receiver.receive(timeout=options.wait):
        for job in jobs:
            print(job.body)
            # The job is done; a processor that dies before this leaves it to the next one.
            job.accept()
