"""What the tests of Azure's SDKs share: a broker with a shared access key, and connection strings for it."""

from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient

from tests.interop.test_proton_security import admin
from tests.support.broker import Broker
from tests.support.http_client import Http

TAKEN_AT_ONCE = 100


def key_of(data: Path | str, name: str, *options: str) -> str:
    """Makes a key of a user, and perhaps the user: SharedAccessKeyName=NAME;SharedAccessKey=KEY."""
    return admin(data, "key", "make", name, *options).strip().partition("\t")[2]


def connection_string(broker: Broker, key: str) -> str:
    """As for the emulator, without TLS."""
    return f"Endpoint=sb://{broker.amqp};{key};UseDevelopmentEmulator=true"


def administration_string(broker: Broker, key: str) -> str:
    """The same for administration clients, which ask the port of the gateway."""
    return f"Endpoint=sb://{broker.ready['http']};{key};UseDevelopmentEmulator=true"


def http_by(broker: Broker, connection_string: str) -> Http:
    """Requests of the user of a connection string."""
    parts = dict(each.split("=", 1) for each in connection_string.split(";") if each)
    return Http(broker.ready["http"], parts["SharedAccessKeyName"], parts["SharedAccessKey"])


def client_for(broker: Broker, key: str, **options: Any) -> ServiceBusClient:
    """A client by a connection string, which fails at once instead of trying for minutes."""
    return ServiceBusClient.from_connection_string(connection_string(broker, key), retry_total=0, **options)


def received(receiver: Any, count: int, wait_s: float = 10) -> list[Any]:
    """So many messages, in as many calls as it takes, each of which waits so long at most."""
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(count - len(found), max_wait_time=wait_s)
        assert more, f"expected {count} messages, found {[str(each) for each in found]}"
        found += more
    return found
