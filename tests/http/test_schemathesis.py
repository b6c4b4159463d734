"""The description against what is served: requests drawn from it, good and bad, are answered as it says."""

import time
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lightrail.gateway.openapi.document import description
from tests.support.broker import Broker
from tests.support.http_client import Http

SEED = 20_261_121
EXAMPLES = 12
SECONDS_MAX = 50.0
CHECKS: list[Any] = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OPERATIONS = [(path, method) for path, methods in description()["paths"].items() for method in methods]
SCHEMA = schemathesis.openapi.from_dict(description())


@pytest.fixture(scope="module")
def prepared(broker: Broker) -> str:
    """Some names that requests may meet."""
    with Http(broker.http) as http:
        for name in ("q", "0", "a"):
            http("POST", f"/{name}", {"role": "queue"})
            http("POST", f"/{name}", "message")
    return f"http://{broker.http}"


@pytest.fixture(scope="module")
def until() -> float:
    """When to stop drawing more than one request of an operation: the whole file has its time."""
    return time.monotonic() + SECONDS_MAX


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_requests_drawn_from_the_description(prepared: str, until: float, path: str, method: str) -> None:
    operation = SCHEMA[path][method]
    drawn = 0

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def draw(case: Any) -> None:
        nonlocal drawn
        drawn += 1
        if drawn == 1 or time.monotonic() < until:
            # Long waits would only be waits: who waits is tried elsewhere.
            for wait in {"timeout", "sample"} & (case.query or {}).keys():
                case.query[wait] = 0
            response = case.call(base_url=prepared, timeout=20, allow_redirects=False)
            assert response.status_code != 500, "internal error"
            case.validate_response(response, checks=CHECKS)

    draw()
