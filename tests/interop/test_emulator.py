"""`lightrail emulator`: programs for the emulator of Azure Service Bus run with its connection string."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from lightrail.service_bus.development import KEY, KEY_NAME
from tests.interop.azure_scene import connection_string, key_of
from tests.interop.programs import in_csharp
from tests.support import wait
from tests.support.broker import ROOT, Broker
from tests.support.certificates import Authority
from tests.support.namespace import with_service

# A program may have to wait for csrun to unpack itself.
pytestmark = pytest.mark.timeout(240)
CONFIG = ROOT / "examples" / "emulator" / "Config.json"
COMMAND = ("-m", "lightrail.cli.main", "emulator")
BY_KEY = f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"


def emulator(data: Path, config: Path = CONFIG, *flags: str) -> Broker:
    return Broker(data, "--config", str(config), *flags, command=COMMAND)


def got(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_programs_in_csharp_for_the_emulator_run_and_what_they_changed_stays(tmp_path: Path) -> None:
    def deliveries(broker: Broker) -> Any:
        async def read(service: Any) -> Any:
            return service.directory.get("queue.1").policy["max_delivery_count"]

        return with_service(broker.data, read)

    with emulator(tmp_path / "data") as broker:
        administration = f"Endpoint=sb://{broker.http};{BY_KEY};UseDevelopmentEmulator=true"
        found = in_csharp("Emulator", connection_string(broker, BY_KEY), administration)
        assert found.scenarios == {
            "queue": ["Message 1", "Message 2", "Message 3"],
            "subscription.1": ["all"],
            "subscription.2": ["one"],
            "subscription.3": ["all", "one", "sql"],
            "subscription.4": "sql to Entity",
            "missing": "MessagingEntityNotFound",
            "lock": 60,
            "deliveries": 3,
        }
        assert "Emulator Service is Successfully Up!" in broker.said()
    with emulator(tmp_path / "data") as broker, client(broker) as again:
        assert deliveries(broker) == 7
        with again.get_queue_receiver("queue.1") as receiver:
            (kept,) = receiver.receive_messages(1, max_wait_time=10)
            assert str(kept) == "kept"


def client(broker: Broker) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(connection_string(broker, BY_KEY), retry_total=0)


def test_one_connection_string_is_for_messages_and_administration(tmp_path: Path) -> None:
    with emulator(tmp_path / "data") as broker:
        # Both at the port of AMQP.
        one = connection_string(broker, BY_KEY)
        found = in_csharp("Emulator", one, one)
        assert found["lock"] == 60
        assert found["queue"] == ["Message 1", "Message 2", "Message 3"]


def test_administration_at_the_port_of_amqp_over_tls_is_by_key_and_for_its_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")
    tls = ("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    key = key_of(tmp_path / "data", "shop", "--prefix", "shop", "--rights", "send,listen,manage")
    with Broker(tmp_path / "data", *tls) as broker:
        text = f"Endpoint=sb://{broker.ready['amqps']};{key}"
        with ServiceBusAdministrationClient.from_connection_string(
            text, connection_verify=authority.path, retry_total=0
        ) as client:
            assert client.create_queue("shop/orders").name == "shop/orders"
            # Several requests of one connection, one after the other.
            for number in range(3):
                client.create_queue(f"shop/{number}")
            assert [each.name for each in client.list_queues()] == [
                "shop/0",
                "shop/1",
                "shop/2",
                "shop/orders",
            ]
            with pytest.raises(ClientAuthenticationError):
                client.create_queue("another")


def test_health_is_that_of_the_emulator_unless_a_name_has_this_path(tmp_path: Path) -> None:
    healthy = '{"status":"healthy","message":"Service is healthy."}'
    with emulator(tmp_path / "data") as broker:
        # Until the frontends have found their shards it is 503.
        wait.until(lambda: got(f"http://{broker.http}/health") == (200, healthy), "health")
        policy = urllib.request.Request(
            f"http://{broker.http}/health", b'{"role": "queue"}', {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(policy, timeout=10).close()
        assert got(f"http://{broker.http}/health") != (200, healthy)


def test_a_file_that_can_not_be_used_ends_the_start_and_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "good"}]}]}})
    )
    with emulator(tmp_path / "data", config):
        pass
    config.write_text(config.read_text().replace('"good"', '"new"}, {"Name": "bad", "Propertie": 1'))
    broker = emulator(tmp_path / "data", config)
    try:
        assert broker.process.wait(60) == 78
        place = "UserConfig.Namespaces[0].Queues[1].Propertie: expected one of Name, Properties"
        assert place in broker.said()
    finally:
        broker.stop()

    async def names(service: Any) -> list[str]:
        return [each.name for each in service.directory.below("")]

    assert with_service(tmp_path / "data", names) == ["good"]


def test_what_the_file_has_no_more_ends_when_it_is_empty_and_no_start_deletes_a_message(
    tmp_path: Path,
) -> None:
    config = tmp_path / "Config.json"

    def write(*queues: str, topics: tuple[str, ...] = ()) -> None:
        made = {
            "Name": "n",
            "Queues": [{"Name": name} for name in queues],
            "Topics": [{"Name": name, "Subscriptions": [{"Name": "s"}]} for name in topics],
        }
        config.write_text(json.dumps({"UserConfig": {"Namespaces": [made]}}))

    async def names(service: Any) -> set[str]:
        return {each.name for each in service.directory.below("")}

    write("kept", "empty", "full", topics=("t", "full.t"))
    with emulator(tmp_path / "data", config) as broker, client(broker) as by_key:
        for name in ("full", "full.t"):
            with by_key.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage("kept"))
    write("kept")
    with emulator(tmp_path / "data", config) as broker, client(broker) as by_key:
        assert with_service(broker.data, names) == {"kept", "full", "full.t", "full.t/Subscriptions/s"}
        assert "full is no longer in the configuration file; it stays: full has messages" in broker.said()
        with by_key.get_queue_receiver("full") as receiver:
            (kept,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.complete_message(kept)
    with emulator(tmp_path / "data", config) as broker, client(broker) as by_key:
        assert with_service(broker.data, names) == {"kept", "full.t", "full.t/Subscriptions/s"}
        with by_key.get_subscription_receiver("full.t", "s") as receiver:
            assert [str(each) for each in receiver.receive_messages(1, max_wait_time=10)] == ["kept"]
