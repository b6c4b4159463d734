"""Sends one message by AMQP and receives it: python round_trip.py HOST:PORT QUEUE.

LIGHTRAIL_USER and LIGHTRAIL_PASSWORD_FILE are the credentials; LIGHTRAIL_CA is the file of the authority, or
`none` for AMQP without TLS; if that file does not exist, the system's authorities are used. Exit status 1 if
the message is not received.
"""

import os
import sys
import time
import uuid

from proton import Message, ProtonException, SSLDomain
from proton.utils import BlockingConnection

TIMEOUT_S = 30
OTHERS_MAX = 10_000
"""Largest number of messages of earlier, failed tests that are removed."""


def connect(address: str) -> BlockingConnection:
    """A connection as that user. Raises ProtonException."""
    with open(os.environ["LIGHTRAIL_PASSWORD_FILE"], encoding="utf-8") as file:
        password = file.readline().rstrip("\r\n")
    authority = os.environ["LIGHTRAIL_CA"]
    domain = None
    if authority != "none":
        domain = SSLDomain(SSLDomain.MODE_CLIENT)
        if os.path.exists(authority):
            domain.set_trusted_ca_db(authority)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    return BlockingConnection(
        f"{'amqp' if domain is None else 'amqps'}://{address}",
        timeout=TIMEOUT_S,
        ssl_domain=domain,
        user=os.environ["LIGHTRAIL_USER"],
        password=password,
        allowed_mechs="PLAIN",
        sasl_enabled=True,
        allow_insecure_mechs=True,
    )


def main(address: str, queue: str) -> int:
    """The exit status."""
    mark = str(uuid.uuid4())
    started = time.monotonic()
    try:
        connection = connect(address)
        connection.create_sender(queue).send(Message(body=mark, durable=True))
        receiver = connection.create_receiver(queue, credit=1)
        for _ in range(OTHERS_MAX):
            found = receiver.receive(timeout=TIMEOUT_S).body
            receiver.accept()
            if found == mark:
                print(f"sent and received by AMQP in {time.monotonic() - started:.3f} s")
                connection.close()
                return 0
    except (ProtonException, OSError) as error:
        print(f"{address}: {error or type(error).__name__}", file=sys.stderr)
        return 1
    print(f"{queue} holds more than {OTHERS_MAX} other messages", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
