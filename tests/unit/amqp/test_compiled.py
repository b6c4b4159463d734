"""Which scanner is chosen: the compiled one where all of it is there and fits, else the interpreted one."""

import importlib
import logging
from types import ModuleType

import pytest

from lightrail.amqp import compiled, redelivery, scanner, transfers

INTERPRETED = (transfers, scanner, redelivery)


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (ImportError("none is built"), False),
        (TypeError("C function has wrong signature"), True),
        (ValueError("TransferFrame size changed"), True),
    ],
)
def test_modules_that_do_not_fit_each_other_are_left_for_the_interpreted_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, logged: bool
) -> None:
    def importing(name: str) -> ModuleType:
        if name == "lightrail.amqp._scanner":
            raise error
        return ModuleType(name)

    monkeypatch.delenv("LIGHTRAIL_INTERPRETED", raising=False)
    monkeypatch.setattr(importlib, "import_module", importing)
    with caplog.at_level(logging.ERROR):
        assert compiled._chosen() == INTERPRETED
    assert [str(error) in record.getMessage() for record in caplog.records] == [True] * logged


def test_modules_that_were_built_without_their_types_are_left_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They call the interpreted functions of each other."""
    untyped = ModuleType("untyped")
    untyped.u32 = transfers.u32  # type: ignore[attr-defined]
    monkeypatch.delenv("LIGHTRAIL_INTERPRETED", raising=False)
    monkeypatch.setattr(importlib, "import_module", lambda _: untyped)
    with caplog.at_level(logging.ERROR):
        assert compiled._chosen() == INTERPRETED
    assert "has no types" in caplog.text


def test_what_fits_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTRAIL_INTERPRETED", raising=False)
    monkeypatch.setattr(importlib, "import_module", ModuleType)
    assert [found.__name__ for found in compiled._chosen()] == [
        f"lightrail.amqp._{name}" for name in compiled.NAMES
    ]
