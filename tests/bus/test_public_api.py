"""The public API of the bus and its transports: what `__init__` exports is the promise."""

import inspect
from types import ModuleType
from typing import Any

import pytest

import lightrail.bus
import lightrail.transport

BUS = """
Activity Batch BrokerAwayError Bus BusError
ClaimCheck Claims CloudEvents ConfigurationError Context Conventions Depends Fault
FolderClaims Format Handled Handlers Json Kind KillSwitch MassTransit MemoryStore MessageType Middleware
MiddlewareError NotReadableError Outcome RateLimit RequestError RequestFailedError RequestTimeoutError Retry
RoutingSlip Saga SagaContext Scheduled SlipCompleted SlipContext SlipFaulted SqliteStore Store StoreError
UnexpectedAnswerError command message
"""
TRANSPORT = """
Broker Clock Codec Endpoint Envelope Handler Header LoopClock Loopback ManualClock MemoryBroker Offers
OutboxError OutboxFullError QueueRules Received Selector SendRefusedError StoreForwardTransport Subscription
Topology TopologyError Transport TransportClosedError TransportError memory_broker open_transport transport_of
"""


@pytest.mark.parametrize(("module", "names"), [(lightrail.bus, BUS), (lightrail.transport, TRANSPORT)])
def test_the_public_names_are_those_of_the_list(module: ModuleType, names: str) -> None:
    assert sorted(module.__all__) == sorted(names.split())
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("module", [lightrail.bus, lightrail.transport])
def test_every_public_name_and_method_has_a_docstring(module: ModuleType) -> None:
    lacking = []
    for name in module.__all__:
        each: Any = getattr(module, name)
        if not (inspect.isclass(each) or inspect.isfunction(each)):
            continue
        if not each.__doc__:
            lacking.append(name)
        for member, found in vars(each).items() if inspect.isclass(each) else ():
            function = getattr(found, "fget", None) or getattr(found, "__func__", found)
            if inspect.isfunction(function) and not member.startswith("_") and not function.__doc__:
                lacking.append(f"{name}.{member}")
    assert not lacking
