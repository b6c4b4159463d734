"""How many histories models go through: few in a usual run, new ones for as long as one likes in a soak."""

import os
import time
from typing import Any

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SOAK_S = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "600"))
EXAMPLES = 60
STEPS = 50
USUAL = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LONG = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def checked(model: type[RuleBasedStateMachine], part: float = 1.0) -> Any:
    """The test case of a model, with `part` times the usual examples."""
    model.TestCase.settings = settings(USUAL, max_examples=max(1, int(EXAMPLES * part)))
    return model.TestCase


def soak(model: type[RuleBasedStateMachine], seconds: float) -> None:
    """New histories until the time is over; what fails says the seed, and how to repeat it."""
    end = time.monotonic() + seconds
    number = first = time.time_ns() // 1_000_000
    while number == first or time.monotonic() < end:
        seeded = seed(number)(type(model.__name__, (model,), {}))
        try:
            run_state_machine_as_test(seeded, settings=LONG)
        except Exception as error:
            error.add_note(f"found with seed {number}")
            raise
        number += 1
