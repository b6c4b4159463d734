"""Submit jobs: ``python submit.py 100`` sends the jobs 1 to 100 to the router ``jobs``."""

import argparse

import lightrail.client.sync

parser = argparse.ArgumentParser(description="Send numbered jobs to the router jobs (see setup.sh).")
parser.add_argument("count", type=int)
parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="amqp[s]://[USER:PASSWORD@]HOST:PORT")
options = parser.parse_args()

with lightrail.client.sync.connect(options.url) as connection, connection.sender("jobs") as sender:
    for number in range(1, options.count + 1):
        # When send returns, the audit queue and the queue of one processor have the job on disk.
        sender.send(f"job {number}")
