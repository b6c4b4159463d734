"""A headless Chromium for the tests of the pages; nothing of it reaches beyond this machine."""

import shutil
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.command import Command

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def start(profile: Path) -> Chrome:
    """A new browser with an empty profile; the caller quits it."""
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver, "chromedriver is not installed; scripts/setup.sh test installs it"
    assert browser, "chromium is not installed; scripts/setup.sh test installs it"
    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=Service(driver))


def complaints(chrome: Chrome) -> list[dict[str, Any]]:
    """What the console has said since the last call."""
    said: list[dict[str, Any]] = chrome.execute(Command.GET_LOG, {"type": "browser"})["value"]
    return said
