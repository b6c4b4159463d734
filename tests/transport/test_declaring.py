"""Declaring a topology while other processes make and change the same entities."""

from collections.abc import Mapping
from typing import Any

import pytest

from lightrail.client import ManagementError
from lightrail.client.management import SUBSCRIPTION
from lightrail.transport.declaring import ATTEMPTS, CHANGED, EXISTS, MISSING, _Declaration
from lightrail.transport.topology import Subscription, Topology
from tests.transport.conftest import play

WANTED = {"target": "to", "filter": {"subject": "red"}}
OTHER = {"target": "to", "filter": None}


class Contested:
    """The management of a broker where others make a subscription first, and change it `changes` times."""

    def __init__(self, changes: int, last: Mapping[str, Any]) -> None:
        self.changes = changes
        self.last = last
        self.is_made = False
        self.updates = 0

    async def read(self, name: str, type: str) -> Mapping[str, Any]:
        if not self.is_made:
            raise ManagementError(f"{name} does not exist", MISSING)
        return self.last if self.updates >= self.changes else OTHER

    async def create(self, type: str, name: str, attributes: Mapping[str, Any]) -> None:
        self.is_made = True
        raise ManagementError(f"{name} exists", EXISTS)

    async def update(self, name: str, attributes: Mapping[str, Any], *, type: str) -> None:
        assert (type, attributes) == (SUBSCRIPTION, WANTED)
        self.updates += 1
        if self.updates <= self.changes:
            raise ManagementError(f"{name} was changed", CHANGED)


def declared(management: Any) -> None:
    topology = Topology(subscriptions=[Subscription("from", "s", "to", "red")])
    play(_Declaration([management]).run(topology))


@pytest.mark.parametrize(("last", "updates"), [(WANTED, 2), (OTHER, 3)])
def test_a_subscription_that_others_make_and_change_is_as_wanted_in_the_end(
    last: Mapping[str, Any], updates: int
) -> None:
    management = Contested(2, last)
    declared(management)
    assert management.updates == updates


def test_a_subscription_that_others_change_all_the_time_is_an_error() -> None:
    management = Contested(ATTEMPTS, OTHER)
    with pytest.raises(ManagementError, match="was changed"):
        declared(management)
    assert management.updates == ATTEMPTS
