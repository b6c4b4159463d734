"""A receiver that takes its time: `python -m tests.benchmarks.taker URL ADDRESS RATE`, until its input ends.

Prints one line of JSON: how many messages it has taken, and the longest time between two in milliseconds.
"""

import json
import select
import sys
import time

from proton.utils import BlockingConnection


def main(url: str, address: str, rate: float) -> None:
    connection = BlockingConnection(url, timeout=60)
    receiver = connection.create_receiver(address, credit=50)
    received = 0
    longest = 0.0
    last = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        receiver.receive(timeout=60)
        receiver.accept()
        now = time.monotonic()
        longest = max(longest, now - last)
        last = now
        received += 1
        time.sleep(1 / rate)
    receiver.close()
    connection.close()
    print(json.dumps({"received": received, "longest_ms": longest * 1e3}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
