"""The pages of a broker that runs: what clients do shows, and what a person does there is done."""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.support import wait
from tests.support.amqp.proton_blocking import connected
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.ui import browser

DEADLINE_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("pages") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver = browser.start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def http(broker: Broker) -> Iterator[Http]:
    with Http(broker.http) as client:
        yield client


def show(chrome: Chrome, broker: Broker, path: str) -> str:
    chrome.get(f"http://{broker.http}{path}")
    return chrome.find_element(By.TAG_NAME, "body").text


def depth(http: Http, name: str) -> int:
    return int(http("GET", f"/{name}/!figures").json()["ready"])


def test_what_is_in_a_queue_and_who_consumes_it_shows(chrome: Chrome, broker: Broker, http: Http) -> None:
    http("POST", "/shop/orders", {"role": "queue", "lock_duration": 30})
    http("POST", "/shop/orders", "a pot of tea")
    assert "shop/orders" in show(chrome, broker, "/!ui/queues")
    assert "a pot of tea" in show(chrome, broker, "/!ui/name?name=shop/orders&peek=1") or (
        "a pot of tea" in chrome.page_source
    )
    with connected(broker.amqp, container_id="till-1") as connection:
        connection.create_receiver("shop/idle", name="drawer")
        assert "till-1/drawer" in show(chrome, broker, "/!ui/name?name=shop/idle")
        assert "till-1" in show(chrome, broker, "/!ui/connections")
        chrome.find_element(By.CSS_SELECTOR, "td a").click()
        WebDriverWait(chrome, DEADLINE_S).until(
            lambda _: "shop/idle" in chrome.find_element(By.TAG_NAME, "body").text
        )


def test_dead_letters_are_redriven_from_their_page(chrome: Chrome, broker: Broker, http: Http) -> None:
    http("POST", "/shop/bills", {"role": "queue"})
    http("POST", "/shop/bills", "unpaid")
    with connected(broker.amqp) as connection:
        receiver = connection.create_receiver("shop/bills")
        receiver.receive(timeout=10)
        receiver.reject()
    wait.until(lambda: depth(http, "shop/bills/$dlq") == 1, "the rejected message is a dead letter")
    show(chrome, broker, "/!ui/name?name=shop/bills/$dlq")
    chrome.find_element(By.NAME, "sure").click()
    chrome.find_element(By.XPATH, "//button[text()='Redrive']").click()
    wait.until(lambda: depth(http, "shop/bills") == 1, "it is back in its queue")


def test_a_purge_from_the_page_empties_the_queue(chrome: Chrome, broker: Broker, http: Http) -> None:
    http("POST", "/shop/scraps", {"role": "queue"})
    for number in range(3):
        http("POST", "/shop/scraps", str(number))
    show(chrome, broker, "/!ui/name?name=shop/scraps")
    chrome.find_element(By.NAME, "sure").click()
    chrome.find_element(By.XPATH, "//button[text()='Purge']").click()
    wait.until(lambda: depth(http, "shop/scraps") == 0, "the queue is empty")
    WebDriverWait(chrome, DEADLINE_S).until(
        lambda _: "3 messages were removed" in chrome.find_element(By.TAG_NAME, "body").text
    )
