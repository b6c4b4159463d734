"""The command line: flags become settings, and what can't be used is said without a traceback."""

import argparse
import re
from dataclasses import fields
from typing import Any

import pytest

from lightrail.cli import main as cli
from lightrail.model.settings import Settings, names


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``serve`` was called with."""
    calls: list[Any] = []

    def serve(settings: Settings, *, as_json: bool) -> int:
        calls.append((settings, as_json))
        return 0

    monkeypatch.setattr("lightrail.cli.serve.serve", serve)
    for name in names():
        monkeypatch.delenv("LIGHTRAIL_" + name.upper(), raising=False)
    return calls


def test_flags_become_settings(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTRAIL_SHARDS", "3")
    arguments = ["serve", "--data", "/d", "--amqp", "127.0.0.1:0", "--frontends", "2", "--insecure-no-users"]
    assert cli.main(arguments) == 0
    ((settings, as_json),) = served
    assert (settings.data, settings.frontends, settings.shards) == ("/d", 2, 3)
    assert settings.insecure_no_users
    assert not as_json
    assert cli.main(["serve", "--json"]) == 0
    assert served[1][1]


def test_every_setting_has_a_flag() -> None:
    parser = argparse.ArgumentParser()
    cli.add_settings(parser)
    text = parser.format_help()
    for name in names():
        assert f"--{name.replace('_', '-')} " in text


def test_a_bad_flag(served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--amqp", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("lightrail serve: --amqp is 'nowhere'; expected HOST:PORT")
    assert served == []


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["shard", "--help"], ["--version"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 0
    assert "lightrail" in capsys.readouterr().out


def test_what_the_help_names_as_default_is_the_default_as_a_flag() -> None:
    parser = argparse.ArgumentParser()
    cli.add_settings(parser)
    shown = {
        action.dest: match[1]
        for action in parser._actions
        if (match := re.search(r"\(default ([^ )]+)\)$", (action.help or "").replace("%%", "%")))
    }
    assert {"archive_hours", "shard_wait", "auto_create", "idle_timeout", "memory_mark"} <= shown.keys()
    for item in fields(Settings):
        if item.name in shown:
            assert item.metadata["parse"](shown[item.name]) == item.default, item.name
