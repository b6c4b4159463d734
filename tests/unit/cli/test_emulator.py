"""`lightrail emulator`: its defaults, and the variables of the emulator's image."""

from pathlib import Path
from typing import Any

import pytest

from lightrail.cli import emulator, main
from lightrail.cli.emulator import UP, greeting, settings_of
from lightrail.cli.serve import Variant
from lightrail.model.endpoint import Endpoint
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings


def test_it_has_the_ports_of_the_emulator_and_no_names_but_those_that_were_made() -> None:
    settings = settings_of({}, {})
    assert (settings.amqp, settings.http) == (Endpoint("127.0.0.1", 5672), Endpoint("127.0.0.1", 5300))
    assert not settings.auto_create
    assert not settings.insecure_no_users
    assert settings.service_bus_config is None


def test_flags_variables_and_a_file_of_settings_win_over_its_defaults(tmp_path: Path) -> None:
    file = tmp_path / "lightrail.toml"
    file.write_text('auto_create = true\nhttp = "127.0.0.1:1"\nshards = 3\n')
    config = tmp_path / "Config.json"
    config.write_text("{}")
    given = {"settings": str(file), "config": str(config), "amqp": "127.0.0.1:2"}
    settings = settings_of(given, {"LIGHTRAIL_HTTP": "127.0.0.1:3"})
    assert (settings.amqp.port, settings.http.port, settings.shards) == (2, 3, 3)
    assert settings.auto_create
    assert settings.service_bus_config == str(config)


def test_accept_eula_lets_everybody_in_and_nothing_else_does() -> None:
    for value, is_open in (("Y", True), ("y", True), ("N", False), ("", False), ("true", False)):
        settings = settings_of({}, {"ACCEPT_EULA": value})
        assert (settings.insecure_no_users, settings.plain_without_tls) == (is_open, is_open)
        assert settings.amqp.loopback, "where it listens is said elsewhere"
    closed = settings_of({"insecure_no_users": "false"}, {"ACCEPT_EULA": "Y"})
    assert not closed.insecure_no_users


def test_the_port_of_http_may_be_a_variable_of_the_emulator() -> None:
    assert settings_of({}, {"EMULATOR_HTTP_PORT": "5301"}).http == Endpoint("127.0.0.1", 5301)
    image = {"EMULATOR_HTTP_PORT": "5301", "LIGHTRAIL_HTTP": "0.0.0.0:5300"}
    assert settings_of({}, image).http == Endpoint("0.0.0.0", 5301)
    assert settings_of({"http": "127.0.0.1:7"}, image).http.port == 7
    for wrong in ("x", "0", "65536", "-1"):
        with pytest.raises(SettingsError, match="EMULATOR_HTTP_PORT"):
            settings_of({}, {"EMULATOR_HTTP_PORT": wrong})


def test_the_file_of_the_image_is_taken_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    monkeypatch.setattr(emulator, "CONFIG_OF_IMAGE", str(config))
    assert settings_of({}, {}).service_bus_config is None
    config.write_text("{}")
    assert settings_of({}, {}).service_bus_config == str(config)
    with pytest.raises(SettingsError, match=r"service_bus_config is 'missing\.json'"):
        settings_of({"config": "missing.json"}, {})


def test_the_greeting_has_the_line_that_others_wait_for_and_connection_strings() -> None:
    settings = Settings(amqp=Endpoint("0.0.0.0", 5672), http=Endpoint("127.0.0.1", 5300))
    said = greeting(settings, False)
    assert said.splitlines()[0] == UP
    by_key = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    assert f"Endpoint=sb://127.0.0.1;{by_key}UseDevelopmentEmulator=true;" in said
    assert f"Endpoint=sb://127.0.0.1:5300;{by_key}" in said
    with_users = greeting(settings, True)
    assert "SAS_KEY_VALUE" not in with_users
    assert "lightrail-admin key make" in with_users


def test_the_command_passes_what_it_says_in_the_place_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []

    def serve(settings: Settings, *, as_json: bool, variant: Variant) -> int:
        served.append((settings.http.port, as_json, variant.command, variant.ready))
        return 0

    monkeypatch.setattr(emulator, "serve", serve)
    for name in ("LIGHTRAIL_HTTP", "EMULATOR_HTTP_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert main.main(["emulator", "--json", "--shards", "1"]) == 0
    assert served == [(5300, True, "emulator", UP)]
