"""The pages in a real browser: what a person sees, clicks and types, on a wide and on a narrow screen."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from lightrail.gateway.messages.incoming import as_json
from lightrail.namespace.rights import Caller
from tests.ui import browser
from tests.ui.browser import complaints
from tests.ui.site import Site

DEADLINE_S = 30
PAGES = (
    "/!ui",
    "/!ui/names",
    "/!ui/name?name=jobs",
    "/!ui/name?name=jobs/audit&peek=1",
    "/!ui/name?name=jobs/audit/$dlq",
    "/!ui/name?name=elsewhere",
    "/!ui/queues",
    "/!ui/shard?id=0",
    "/!ui/shard?id=1",
    "/!ui/connections",
    "/!ui/connection?id=0-1",
)


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver = browser.start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as running:
        yield running


def text(chrome: Chrome) -> str:
    return chrome.find_element(By.TAG_NAME, "body").text


def until(chrome: Chrome, what: str) -> None:
    """Wait until a script expression is true in the page."""
    WebDriverWait(chrome, DEADLINE_S, 0.05).until(lambda _: chrome.execute_script(f"return {what}"))


@pytest.mark.parametrize("path", PAGES)
def test_every_page_loads_only_from_here_and_without_a_complaint(
    chrome: Chrome, site: Site, path: str
) -> None:
    complaints(chrome)
    chrome.get(site.url + path)
    until(chrome, "document.readyState === 'complete'")
    loaded = chrome.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert loaded
    assert all(name.startswith(site.url + "/!ui") for name in loaded), loaded
    assert complaints(chrome) == []
    assert chrome.find_element(By.TAG_NAME, "h1").text


@pytest.mark.parametrize("path", PAGES)
def test_no_page_is_wider_than_a_narrow_screen(chrome: Chrome, site: Site, path: str) -> None:
    chrome.set_window_size(500, 900)  # Chromium's windows are not narrower; the frame below is
    chrome.get(site.url + "/!ui/static/icon.svg")
    chrome.get(site.url + path)
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        until(chrome, "innerWidth === 360")
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chrome.set_window_size(1200, 900)


def test_the_overview_says_what_does_not_serve(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui")
    assert "not ready" in text(chrome)
    assert "shard-1: recovering" in text(chrome)
    assert "1.2 MB" in text(chrome)


def rows(chrome: Chrome) -> list[list[str]]:
    return [
        [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
        for row in chrome.find_elements(By.CSS_SELECTOR, "#figures tr")
    ][1:]


def test_the_members_of_a_shard_are_shown_with_how_far_each_is_behind(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui")
    assert "2 of 3" in text(chrome)
    chrome.find_element(By.XPATH, "//td/a[text()='0']").click()
    until(chrome, "document.querySelector('h1').textContent === 'Shard 0'")
    assert rows(chrome) == [
        ["host-a", "yes", "yes", "yes", "", "", "", "a" * 32],
        ["<b>host-b</b>", "", "yes", "yes", "12", "3.4 kB", "0.0 s", "b" * 32],
        ["host-c", "", "no", "no", "?", "0 B", "0.0 s", "c" * 32],
    ]
    shown = text(chrome)
    assert "2 of 3 members are in sync; the minimum is 2" in shown
    assert "A process on host-d can't become a member: expected fewer than 3" in shown
    chrome.get(site.url + "/!ui/shard?id=1")
    assert "It has no replicas" in text(chrome)
    assert "1,200 queues wait" in text(chrome)
    assert chrome.find_elements(By.TAG_NAME, "form") == []


def test_a_member_that_is_stopped_and_out_of_sync_is_removed_by_its_form(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/shard?id=0")
    (button,) = chrome.find_elements(By.XPATH, "//button[text()='Remove member']")
    button.click()
    assert site.views.removed == []
    chrome.find_element(By.NAME, "sure").click()
    button.click()
    until(chrome, "document.querySelector('[role=status]') !== null")
    assert site.views.removed == [("0", "c" * 32)]
    assert chrome.find_element(By.TAG_NAME, "h1").text == "Shard 0"


def test_charts_are_drawn_and_grow(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/name?name=jobs/audit")
    until(chrome, "document.querySelectorAll('[data-chart] canvas').length === 2")
    until(chrome, "Number(document.querySelector('[data-chart]').dataset.points) >= 2")


def test_a_chart_without_data_is_of_now(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/name?name=jobs/q/2")
    until(chrome, "document.querySelector('[data-chart]').dataset.begins !== undefined")
    chart = "document.querySelector('[data-chart]').dataset"
    points, ago_s = chrome.execute_script(f"return [{chart}.points, Date.now() / 1000 - {chart}.begins]")
    assert points in (None, "0"), "the first sample comes two seconds after the first look"
    assert 0 <= ago_s <= 60


def test_figures_stay_current_without_a_reload(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/name?name=jobs/q/1")
    first = chrome.execute_script("return document.querySelector('#figures dd').textContent")
    until(chrome, f"document.querySelector('#figures dd').textContent !== {first!r}")


def test_the_tree_of_names_opens_by_click_and_by_key(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/names")
    assert "secret" in chrome.page_source or "hidden" in text(chrome)
    summary = chrome.find_element(By.XPATH, "//summary[contains(., 'jobs')]")
    summary.click()
    until(chrome, "[...document.querySelectorAll('a')].some((a) => a.textContent === 'audit')")
    inner = chrome.find_element(By.XPATH, "//summary[starts-with(normalize-space(.), 'q')]")
    inner.send_keys(Keys.ENTER)
    until(chrome, "[...document.querySelectorAll('a')].some((a) => a.textContent === '2')")
    chrome.find_element(By.XPATH, "//a[text()='2']").click()
    until(chrome, "document.querySelector('h1').textContent === 'jobs/q/2'")


def test_a_router_is_a_picture_whose_boxes_lead_on(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/name?name=jobs")
    boxes = [each.text for each in chrome.find_elements(By.CSS_SELECTOR, "svg.graph text:not(.small)")]
    assert boxes == [
        "jobs",
        "jobs/audit",
        "jobs/workers",
        "https://localhost/hook",
        "jobs/q/1",
        "jobs/q/2",
    ]
    assert len(chrome.find_elements(By.CSS_SELECTOR, "svg.graph path")) == 5
    chrome.find_element(By.CSS_SELECTOR, "svg.graph a.queue").click()
    until(chrome, "document.querySelector('h1').textContent === 'jobs/audit'")


def test_peeked_messages_show_their_sections_and_run_nothing(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/name?name=jobs/audit")
    chrome.find_element(By.XPATH, "//button[text()='Peek']").click()
    until(chrome, "document.querySelectorAll('details.message').length === 3")
    chrome.find_element(By.CSS_SELECTOR, "details.message summary").click()
    shown = text(chrome)
    for part in ("order.created", "x-opt-dead-letter-reason", "colour", "<script>alert(1)</script>"):
        assert part in shown


def test_names_of_strangers_are_text(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/queues")
    assert "<b>odd</b>" in text(chrome)
    assert chrome.find_elements(By.TAG_NAME, "b") == []


def test_a_purge_wants_to_be_meant(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/name?name=jobs/audit")
    chrome.find_element(By.XPATH, "//button[text()='Purge']").click()
    assert site.views.purged == []
    chrome.find_element(By.NAME, "sure").click()
    chrome.find_element(By.XPATH, "//button[text()='Purge']").click()
    until(chrome, "document.querySelector('[role=status]') !== null")
    assert site.views.purged == ["jobs/audit"]
    assert "10 messages were removed" in text(chrome)


def test_dead_letters_are_redriven_and_connections_closed(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui/name?name=jobs/audit/$dlq")
    chrome.find_element(By.NAME, "sure").click()
    chrome.find_element(By.XPATH, "//button[text()='Redrive']").click()
    until(chrome, "document.querySelector('[role=status]') !== null")
    assert site.views.redriven == ["jobs/audit/$dlq"]
    chrome.get(site.url + "/!ui/connections")
    chrome.find_element(By.LINK_TEXT, "0-1").click()
    chrome.find_element(By.NAME, "sure").click()
    chrome.find_element(By.XPATH, "//button[text()='Close connection']").click()
    until(chrome, "document.querySelector('[role=status]') !== null")
    assert site.views.closed == ["0-1"]


def test_the_first_tab_skips_to_the_content(chrome: Chrome, site: Site) -> None:
    chrome.get(site.url + "/!ui")
    chrome.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert chrome.switch_to.active_element.text == "Skip to content"


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_a_form_of_another_site_does_nothing(site: Site, headers: dict[str, str]) -> None:
    before = list(site.views.purged)
    request = urllib.request.Request(f"{site.url}/!ui/purge", b"name=jobs/audit&sure=yes", headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 403
    caught.value.close()
    assert site.views.purged == before


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/!ui/name?name=a//b", 400, "empty segment"),
        ("/!ui/name?name=jobs/audit&from=x", 400, "expected a whole number"),
        ("/!ui/name?name=jobs/audit&peek=1&count=101", 400, "from 1 to 100"),
        ("/!ui/data/queue?name=", 400, "the name is empty"),
        ("/!ui/shard?id=x", 400, "expected a whole number"),
        ("/!ui/shard?id=9", 404, "there is no shard 9"),
        ("/!ui/", 404, "<h1>The request failed</h1>"),
        ("/!ui/purge", 404, "there is no page /!ui/purge"),
        ("/!ui/names/elsewhere", 404, "there is no page"),
    ],
)
def test_bad_requests_are_said_on_a_page(site: Site, path: str, status: int, says: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(site.url + path)
    with caught.value:
        assert caught.value.code == status
        assert says in caught.value.read().decode()


@pytest.mark.parametrize(
    "section",
    [
        b"\0Su\xa0\2\xff\0",
        b"\0Su\xa0\0",
        b"\0Sw\xa1\0",
        b"\0SwE",
        b"\0Sw\xc1\1\0",
        b"\0SvE",
        b"",
        b"\0Sw@",
        b"broken",
    ],
)
def test_every_body_can_be_peeked_at(site: Site, section: bytes) -> None:
    site.views.peeked = as_json(section, 0, 0)
    try:
        with urllib.request.urlopen(site.url + "/!ui/name?name=jobs/audit&peek=1") as answer:
            assert answer.read().count(b"details class") == 3
    finally:
        site.views.peeked = {}


def test_a_link_puts_no_text_on_a_page(site: Site) -> None:
    with urllib.request.urlopen(site.url + "/!ui?flash=call+0900+1234") as answer:
        assert b"0900" not in answer.read()


def test_what_was_done_is_shown_once() -> None:
    with Site() as site:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(f"{site.url}/!ui/close", b"id=0-7&sure=yes").close()
        with opener.open(f"{site.url}/!ui/purge", b"name=jobs/audit&sure=yes") as answer:
            assert b"10 messages were removed" in answer.read()
        with opener.open(f"{site.url}/!ui/name?name=jobs/audit") as answer:
            assert b"10 messages were removed" not in answer.read()


@pytest.mark.parametrize("form", ["purge", "redrive", "close", "remove-member"])
@pytest.mark.parametrize("sure", ["", "&sure=", "&sure=no"])
def test_nothing_is_destroyed_without_a_confirmation(form: str, sure: str) -> None:
    with Site() as site:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(
                f"{site.url}/!ui/{form}", f"name=jobs/audit&id=0-1&member=0/c{sure}".encode()
            )
        with caught.value:
            assert (caught.value.code, b"sure=yes" in caught.value.read()) == (400, True)
        views = site.views
        assert [views.purged, views.redriven, views.closed, views.removed] == [[], [], [], []]


def test_what_somebody_may_not_see_is_not_shown(tmp_path: Path) -> None:
    with Site(Caller("eve")) as site:
        with urllib.request.urlopen(site.url + "/!ui/names") as answer:
            assert b"jobs" not in answer.read()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(site.url + "/!ui/name?name=jobs/audit")
        caught.value.close()
        assert caught.value.code == 403


def test_who_has_few_rights_finds_the_way_from_the_first_page(chrome: Chrome) -> None:
    with Site(Caller("eve")) as site:
        chrome.get(site.url + "/!ui")
        shown = text(chrome)
        assert "lightrail-admin permission set eve / manage" in shown
        assert "Connections" not in shown
        assert chrome.find_elements(By.CSS_SELECTOR, "[data-chart]") == []
        chrome.find_element(By.CSS_SELECTOR, "main a[href='/!ui/queues']").click()
        until(chrome, "location.pathname === '/!ui/queues'")
