"""The page of settings in the documentation says what the settings say."""

from scripts.settings_page import PAGE, page


def test_the_documented_settings_are_the_settings() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python scripts/settings_page.py"
