"""Settings: where they come from, which source wins, and what is said when one can't be used."""

from pathlib import Path

import pytest

from lightrail.model.endpoint import Endpoint, endpoint, is_loopback
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings


def test_defaults() -> None:
    settings = Settings.load()
    assert (str(settings.amqp), str(settings.http)) == ("127.0.0.1:5672", "127.0.0.1:8080")
    assert settings.data == "./data"
    assert settings.amqps is None


def test_flags_win_over_variables_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "lightrail.toml"
    file.write_text('memory_mark = "64MB"\nshards = 3\nfrontends = 3\nallow_anonymous = true\n')
    settings = Settings.load(
        config=str(file),
        environ={"LIGHTRAIL_SHARDS": "2", "LIGHTRAIL_FRONTENDS": "2", "LIGHTRAIL_PORT": "tcp://10.0.0.1:1"},
        flags={"frontends": "1"},
    )
    assert settings.memory_mark == 64_000_000
    assert (settings.frontends, settings.shards) == (1, 2)
    assert settings.allow_anonymous is True


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("amqp", "[::1]:0", Endpoint("::1", 0)),
        ("memory_mark", "1.5GiB", 3 << 29),
        ("memory_mark", "2000000", 2_000_000),
        ("idle_timeout", "1500ms", 1_500),
        ("idle_timeout", "30", 30_000),
        ("store", "Memory", "memory"),
        ("sasl_mechanisms", "plain, scram-sha-256", ("SCRAM-SHA-256", "PLAIN")),
        ("insecure_no_users", "yes", True),
        ("proxy_protocol_from", "10.0.0.7, fd00::/8,", ("10.0.0.7/32", "fd00::/8")),
        ("amqps", "", None),
        ("max_delivery_count", "0", 0),
    ],
)
def test_spellings(name: str, text: str, value: object) -> None:
    assert getattr(Settings.load(flags={name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("amqp", "localhost", "HOST:PORT"),
        ("amqp", "::1:5672", r"\[::1\]:5672"),
        ("amqp", "h:65536", "0 to 65535"),
        ("amqp", ":5672", "HOST:PORT"),
        ("shards", "-1", "from 0 to 256"),
        ("proxy_protocol_from", "balancer", "addresses or networks"),
        ("proxy_protocol_from", "10.0.0.7/8", "addresses or networks"),
        ("shards", "٣", "from 0 to 256"),
        ("shards", "257", "from 0 to 256"),
        ("memory_mark", "64 parsecs", "such as 64MB"),
        ("memory_mark", "1kB", "from 1MB"),
        ("idle_timeout", "1ms", "from 1s to 24h"),
        ("store", "tape", "journal, memory, sqlite"),
        ("sasl_mechanisms", "CRAM-MD5", "SCRAM-SHA-512"),
        ("insecure_no_users", "perhaps", "true or false"),
        ("metrics", "127.0.0.1/x", "without a port"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(SettingsError, match=allowed) as error:
        Settings.load(flags={name: text})
    assert "--" + name.replace("_", "-") in str(error.value)
    assert repr(text) in str(error.value)


def test_the_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="LIGHTRAIL_SHARDS is 'x'"):
        Settings.load(environ={"LIGHTRAIL_SHARDS": "x"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 'red'", "'colour', which is no setting"),
        ("shards = [1]", "expected a string, a number"),
        ("shards = ", "is not TOML"),
        ("shards = 1.5", "from 0 to 256"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "lightrail.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said) as error:
        Settings.load(config=str(file))
    assert str(file) in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can't be read"):
        Settings.load(config=str(tmp_path / "absent.toml"))


def test_lists_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "lightrail.toml"
    file.write_text('sasl_mechanisms = ["PLAIN"]')
    assert Settings.load(config=str(file)).sasl_mechanisms == ("PLAIN",)


def test_tls_needs_certificate_and_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tls_certificate and tls_key"):
        Settings.load(flags={"amqps": "127.0.0.1:5671"})
    pem = tmp_path / "server.pem"
    pem.write_text("")
    with pytest.raises(SettingsError, match="neither amqps nor https is set"):
        Settings.load(flags={"tls_certificate": str(pem)})
    with pytest.raises(SettingsError, match="tls_key is '/absent'"):
        Settings.load(flags={"amqps": "h:1", "tls_certificate": str(pem), "tls_key": "/absent"})


def test_children_read_what_the_supervisor_wrote(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    pem.write_text("")
    settings = Settings.load(
        flags={"amqps": "[::]:5671", "tls_certificate": str(pem), "tls_key": str(pem), "shards": "4"}
    )
    assert Settings.from_json(settings.to_json()) == settings
    assert "\n" not in settings.to_json()


def test_resolved_fills_in_numbers_and_remembers_shards() -> None:
    assert Settings().resolved().frontends >= 1
    assert Settings().resolved(7).shards == 7
    assert Settings(shards=2).resolved(7).shards == 2
    assert Settings(data="x").resolved().data.startswith("/")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "::ffff:10.0.0.1", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_what_a_client_on_this_machine_uses() -> None:
    assert str(endpoint("0.0.0.0:1").reachable) == "127.0.0.1:1"
    assert str(endpoint("[::]:1").reachable) == "[::1]:1"
    assert str(endpoint("example.org:1").reachable) == "example.org:1"


def test_an_address_of_metrics_may_have_a_port() -> None:
    assert Settings.load(flags={"metrics": "0.0.0.0"}).metrics == ("0.0.0.0", 0)
    assert Settings.load(flags={"metrics": "0.0.0.0:9100"}).metrics == ("0.0.0.0", 9100)
    assert Settings.load(flags={"metrics": "::1"}).metrics == ("::1", 0)
    assert Settings.load(flags={"metrics": "[::1]"}).metrics == ("::1", 0)
    assert Settings.load(flags={"metrics": "[::1]:9100"}).metrics == ("::1", 9100)
    with pytest.raises(SettingsError, match="--metrics"):
        Settings.load(flags={"metrics": "host:port"})


def test_etcd_is_a_list_of_members() -> None:
    found = Settings.load(flags={"etcd": "10.0.0.1:2379, [::1]:2379"}).etcd
    assert [str(each) for each in found] == ["10.0.0.1:2379", "[::1]:2379"]
    assert Settings.load(flags={"etcd": ""}).etcd == ()
    for wrong in ("http://10.0.0.1:2379", "10.0.0.1", "10.0.0.1:0"):
        with pytest.raises(SettingsError, match="--etcd is"):
            Settings.load(flags={"etcd": wrong})
    with pytest.raises(SettingsError, match="--cluster is 'a/b'"):
        Settings.load(flags={"cluster": "a/b"})


def test_settings_of_etcd_go_together(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    etcd = {"etcd": "127.0.0.1:2379"}
    with pytest.raises(SettingsError, match="etcd_user is 'u', but etcd is not set"):
        Settings.load(flags={"etcd_user": "u", "etcd_password_file": str(file)})
    with pytest.raises(SettingsError, match="etcd_user is set, but etcd_password_file is not"):
        Settings.load(flags=etcd | {"etcd_user": "u"})
    with pytest.raises(SettingsError, match="etcd_password_file is '/absent': expected a file"):
        Settings.load(flags=etcd | {"etcd_user": "u", "etcd_password_file": "/absent"})
    with pytest.raises(SettingsError, match="etcd_key is set, but etcd_certificate is not"):
        Settings.load(flags=etcd | {"etcd_ca": str(file), "etcd_key": str(file)})
    with pytest.raises(SettingsError, match="etcd_certificate is set, but etcd_ca is not"):
        Settings.load(flags=etcd | {"etcd_certificate": str(file), "etcd_key": str(file)})


def test_a_wire_that_others_reach_needs_a_key(tmp_path: Path) -> None:
    key = tmp_path / "wire.key"
    with pytest.raises(SettingsError, match="lightrail wire-key"):
        Settings.load(flags={"wire": "0.0.0.0:5680"})
    with pytest.raises(SettingsError, match="wire_key is"):
        Settings.load(flags={"wire": "0.0.0.0:5680", "wire_key": str(key)})
    key.write_text("")
    Settings.load(flags={"wire": "0.0.0.0:5680", "wire_key": str(key)})
    Settings.load(flags={"wire": "0.0.0.0:5680", "insecure_wire": "true"})
    Settings.load(flags={"wire": "127.0.0.1:5680"})


def test_children_read_where_etcd_and_the_wire_are() -> None:
    flags = {"etcd": "10.0.0.1:2379,[::1]:2379", "wire": "[::1]:5680", "metrics": "::1", "zone": "a"}
    settings = Settings.load(flags=flags)
    assert Settings.from_json(settings.to_json()) == settings


def test_more_members_in_sync_than_there_are_is_refused() -> None:
    with pytest.raises(SettingsError, match="min_in_sync is 3, but replicas is 2"):
        Settings.load(flags={"replicas": "2", "min_in_sync": "3"})
    assert Settings.load(flags={"replicas": "3", "min_in_sync": "3"}).min_in_sync == 3
