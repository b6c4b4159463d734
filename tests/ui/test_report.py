"""The report of `lightrail-spark analyse` in a real browser, opened as a file."""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from lightrail.spark.analysis import report
from tests.support.spark.figures import EVIL, shown
from tests.ui import browser
from tests.ui.browser import complaints


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    folder = tmp_path_factory.mktemp("report")
    report.write(report.page(shown(queues=12), title=EVIL), str(folder / "report.html"))
    driver = browser.start(folder / "profile")
    driver.get((folder / "report.html").as_uri())
    yield driver
    driver.quit()


def test_it_opens_without_a_complaint_and_loads_nothing(chrome: Chrome) -> None:
    assert complaints(chrome) == []
    assert chrome.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert chrome.find_element(By.TAG_NAME, "h1").text.startswith("</title><script>alert(1)</script>")
    assert chrome.find_elements(By.TAG_NAME, "script") == []


def test_each_chart_is_drawn_named_and_there_as_a_table(chrome: Chrome) -> None:
    charts = chrome.find_elements(By.CSS_SELECTOR, "section.chart")
    assert len(charts) == 8
    for each in charts:
        svg = each.find_element(By.CSS_SELECTOR, "svg.plot")
        assert svg.accessible_name
        assert svg.size["height"] > 50
        details = each.find_element(By.TAG_NAME, "details")
        table = each.find_element(By.CSS_SELECTOR, "details table")
        assert not table.is_displayed()
        details.find_element(By.TAG_NAME, "summary").click()
        assert table.is_displayed()
        assert len(table.find_elements(By.TAG_NAME, "tr")) > 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_line_and_text_stands_out_from_its_ground(chrome: Chrome, scheme: str) -> None:
    """Contrasts of WCAG 2.2: 4.5 to 1 for text (1.4.3), 3 to 1 for lines of charts (1.4.11)."""
    chrome.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    style = "const style = getComputedStyle(document.documentElement);"
    colours = chrome.execute_script(
        style + "return Object.fromEntries(['--panel','--ink','--soft','--accent','--good','--bad','--warn',"
        "'--violet','--teal'].map((name) => [name, style.getPropertyValue(name).trim()]))"
    )
    ground = colours.pop("--panel")
    for name, colour in colours.items():
        wanted = 4.5 if name in ("--ink", "--soft", "--accent") else 3.0
        assert contrast(colour, ground) >= wanted, (scheme, name)


def test_it_is_no_wider_than_a_narrow_screen(chrome: Chrome) -> None:
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 360


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2, definitions)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
