"""Document: what is described is served, and what is served is described."""

from lightrail.gateway.openapi.document import OPERATIONS, description, routes
from lightrail.gateway.paths import BELOW

CHECKS_OF_HEALTH = {"GET /healthz", "GET /readyz"}
"""Routes of their own."""


def test_every_operation_has_a_route_that_no_other_operation_has() -> None:
    served = [
        (part, count, method)
        for table in (routes(named=True), routes(named=False))
        for (part, count), methods in table.items()
        for method in methods
    ]
    assert served.count((BELOW, 0, "GET")) == 2, "below a name, and below the root"
    assert len(served) - 1 == len(OPERATIONS.keys() - CHECKS_OF_HEALTH)
    assert {key for key, each in OPERATIONS.items() if each.handler is None} == CHECKS_OF_HEALTH


def test_the_description_has_every_operation() -> None:
    paths = description()["paths"]
    assert {f"{method.upper()} {path}" for path in paths for method in paths[path]} == OPERATIONS.keys()
