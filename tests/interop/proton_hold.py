"""A client that receives one message and holds it: ``proton_hold.py HOST:PORT QUEUE [CREDIT]``.

Prints the body when it has come, then the condition with which the broker ends the connection.
"""

import sys

from proton.utils import BlockingConnection, ConnectionClosed


def main(address: str, queue: str, credit: str = "1") -> None:
    connection = BlockingConnection(f"amqp://{address}", timeout=60)
    print(connection.create_receiver(queue, credit=int(credit)).receive().body, flush=True)
    try:
        connection.wait(lambda: False)
    except ConnectionClosed as closed:
        print(closed.condition, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
