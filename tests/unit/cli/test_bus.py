"""`lightrail bus`: where it finds the broker."""

import pytest

from lightrail.cli.bus import _parser, main


def test_the_address_of_a_gateway_is_another_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTRAIL_URL", "http://gateway:8080")
    assert _parser().parse_args(["errors", "list"]).url == "amqp://localhost"
    monkeypatch.setenv("LIGHTRAIL_BUS_URL", "amqps://broker:5671")
    assert _parser().parse_args(["errors", "list"]).url == "amqps://broker:5671"


@pytest.mark.parametrize("variable", [True, False])
def test_an_address_that_cannot_be_used_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: bool
) -> None:
    url = "http://user:secret@gateway:8080"
    if variable:
        monkeypatch.setenv("LIGHTRAIL_BUS_URL", url)
    with pytest.raises(SystemExit) as ended:
        main(["errors", "list", *([] if variable else ["--url", url])])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "expected amqp://, amqps://, ws:// or wss:// and a host, found http://" in said
    assert "secret" not in said
