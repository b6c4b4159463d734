"""lightrail-spark replay: messages come again, in order, marked, and once however often a run is begun."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.spark.main import main
from tests.support.batches import message
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.spark.archives import JournalOf

pytestmark = pytest.mark.timeout(600)  # Most of it waits for Spark, which is slow where others work as well.


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("replay") / "data", "--shards", "2") as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[Http]:
    with Http(broker.http) as client:
        yield client


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two queues of 60 messages, one of them 500 bytes larger than the others."""
    folder = tmp_path_factory.mktemp("archive")
    journal = JournalOf(folder / "journal", segment_bytes=64 * 1024)
    for name in ("orders", "bills"):
        journal.declare(name)
    for start in range(0, 60, 5):
        for name in ("orders", "bills"):
            journal.send(name, [text(name, number) for number in range(start, start + 5)])
        journal.settle("orders", start, start + 5)
        journal.now_ms += 1_000
    journal.archive(folder / "archive")
    return folder / "archive"


def text(name: str, number: int) -> bytes:
    return message(f"{name}-{number:02}" + ("x" * 500 if (name, number) == ("orders", 33) else ""))


def replay(broker: Broker, archive: Path, *words: str) -> int:
    gateway = ["--to-gateway", f"http://{broker.http}", "--rate", "100000"]
    return main(["replay", "--from", str(archive), *gateway, *words])


def messages(http: Http, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http("GET", f"/{queue}/!messages?count=1000").json()["messages"]
    return found


def bodies(http: Http, queue: str) -> list[str]:
    return [each["body"]["text"][:9] for each in messages(http, queue)]


def test_a_dry_run_counts_and_sends_nothing(
    spark: Any, broker: Broker, http: Http, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    since = "2026-09-21T14:13:21Z"
    assert replay(broker, archive, "--since", since, "--dry-run", "--json", "--to", "nowhere") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dry_run"], found["messages"]) == (True, 110)
    assert [(row["queue"], row["messages"]) for row in found["queues"]] == [("bills", 55), ("orders", 55)]
    assert http("GET", "/nowhere/!figures").status == 404


def test_what_a_condition_picks_comes_in_order_and_marked(
    spark: Any, broker: Broker, http: Http, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert http("POST", "/again", {"role": "queue"}).status == 201
    words = ["--queues", "orders", "--where", "sequence between 10 and 29 and body is not null"]
    assert replay(broker, archive, *words, "--to", "again") == 0
    found = messages(http, "again")
    assert bodies(http, "again") == [f"orders-{number}" for number in range(10, 30)]
    annotations = found[3]["message_annotations"]
    assert annotations["x-opt-lightrail-replayed-queue"] == "orders"
    assert annotations["x-opt-lightrail-replayed-sequence"] == 13
    assert annotations["x-opt-lightrail-replayed"].startswith("20")
    assert "20 messages are stored" in capsys.readouterr().err


def test_a_run_that_failed_goes_on_under_its_id_and_stores_nothing_twice(
    spark: Any, broker: Broker, http: Http, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("orders", "bills"):
        assert http("POST", f"/{name}", {"role": "queue", "max_message_bytes": 300}).status == 201
    # A batch is a second's worth, so that one of several fails.
    words = ["--to-origin", "--id", "friday", "--state", str(tmp_path), "--rate", "20"]
    assert replay(broker, archive, *words) == 1
    assert "orders accepts at most 300" in capsys.readouterr().err
    before = bodies(http, "orders")
    assert before == [f"orders-{number:02}" for number in range(len(before))]
    assert 0 < len(before) < 34
    for name in ("orders", "bills"):
        assert http("PUT", f"/{name}/!policy", {"role": "queue"}).status == 200
    with pytest.raises(SystemExit, match="2"):
        replay(broker, archive, "--to", "other", *words[1:])
    assert "--id friday began with to None, now it is 'other'" in capsys.readouterr().err
    assert replay(broker, archive, *words, "--rate", "100000") == 0
    for name in ("orders", "bills"):
        assert bodies(http, name) == [f"{name}-{number:02}"[:9] for number in range(60)]
    assert replay(broker, archive, *words) == 0
    assert "is done already" in capsys.readouterr().err
    assert len(bodies(http, "orders")) == 60


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--to", "a", "--where", "colour = 1"], 2, "is no condition on these columns"),
        ([], 2, "expected --to NAME, or --to-origin"),
        (["--to", "a", "--rate", "0"], 2, "--rate 0: expected messages per second"),
        (["--to", "a", "--id", "../x"], 2, "--id '../x': expected letters"),
    ],
)
def test_words_that_do_not_go_together_are_explained(
    spark: Any,
    broker: Broker,
    archive: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    said: str,
) -> None:
    found = -1
    try:
        found = replay(broker, archive, *words)
    except SystemExit as ended:
        found = int(str(ended.code))
    assert (found, said in capsys.readouterr().err) == (status, True)
