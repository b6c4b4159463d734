"""A check runs on a new coordinator of each kind."""

from collections.abc import Awaitable, Callable

from lightrail.cluster.coordinator import Coordinator

Check = Callable[[Coordinator], Awaitable[None]]
Run = Callable[[Check], None]
"""Runs a check on a new coordinator and closes it."""
