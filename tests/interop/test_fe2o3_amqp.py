"""The broker as fe2o3-amqp, the client for Rust, sees it; a long test, since it takes a minute to compile."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.programs import HERE, Found, finished
from tests.interop.test_proton_security import admin
from tests.support.broker import Broker

SCENARIOS = (
    *("order", "types", "large", "outcomes", "presettled", "credit", "transaction", "acquire", "resume"),
    *("enter", "detached"),
)
BUILD_S = 900.0
SECONDS = 200.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(BUILD_S + SECONDS + 60)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """A broker with users, and what the scenarios found there."""
    assert shutil.which("cargo"), (
        "cargo is not installed: Rust 1.85 or newer is needed, see https://rustup.rs"
    )
    project = HERE / "rust"
    target = Path(os.environ.get("CARGO_TARGET_DIR", str(project / "target")))
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    finished(["cargo", "build", "--quiet", "--locked"], BUILD_S, cwd=project, env=environment)
    data = tmp_path_factory.mktemp("rust") / "data"
    admin(data, "user", "add", "alice", password="secret")
    admin(data, "user", "add", "bob", "--no-rights", password="secret")
    admin(data, "permission", "set", "bob", "bob", "all")
    with Broker(data) as broker:
        command: list[str | Path] = [target / "debug" / "interop", broker.amqp, "rust/", *SCENARIOS]
        yield Found.read("rust", finished(command, SECONDS))


def test_order_over_thousands_of_messages(found: Found) -> None:
    numbers = list(range(1_000))
    assert found["order"] == {"bodies": [numbers, numbers]}


def test_every_type_arrives_as_it_was_sent(found: Found) -> None:
    assert found["types"] == {"count": 23, "changed": []}


def test_a_large_message(found: Found) -> None:
    assert found["large"] == {"equal": True, "after": True}


def test_outcomes_and_redelivery(found: Found) -> None:
    assert found["outcomes"] == {"counts": [0, 0, 1], "dead": True}


def test_presettled_both_ways(found: Found) -> None:
    assert found["presettled"] == {"bodies": list(range(200))}


def test_credit_by_hand_and_draining(found: Found) -> None:
    assert found["credit"] == {"bodies": list(range(5))}


def test_a_transaction_takes_effect_with_its_commit(found: Found) -> None:
    assert found["transaction"] == {"bodies": ['String("one")', 'String("two")']}


def test_what_is_acquired_in_a_transaction_stays_with_its_commit_alone(found: Found) -> None:
    assert found["acquire"] == {"bodies": [0, 1, 0, 1, 2, 3]}


def test_a_link_is_resumed_on_another_connection(found: Found) -> None:
    assert found["resume"] == {"bodies": ['String("one")', 'String("two")']}


def test_users(found: Found) -> None:
    assert found["enter"] == {"entered": [True, False, False]}


def test_a_link_that_is_refused_says_why_and_its_session_goes_on(found: Found) -> None:
    assert "UnauthorizedAccess" in found["detached"]["refused"]
