"""Prints the shortest history that breaks a promise when a part of a law is deleted, or that none does.

python -m tests.model.replication                                what can be deleted, and the scenarios
python -m tests.model.replication --law 7                        each part of law 7 deleted in turn
python -m tests.model.replication --law 6 --without "look"       the parts whose name has this text
python -m tests.model.replication --scenario "two members"       all laws are kept
"""

import argparse
import sys
from collections.abc import Sequence

from tests.model.replication.deletions import DELETIONS
from tests.model.replication.explorer import explore
from tests.model.replication.scenarios import LONG, SCENARIOS
from tests.model.replication.world import World

STATES_MAX = 20_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what was asked for; 2: there is no such law, part or scenario."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.model.replication",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--law", type=int, help="1 to 13: delete its parts, one at a time")
    parser.add_argument("--without", default="", metavar="TEXT", help="only the parts that have this text")
    parser.add_argument("--scenario", help="keep all laws in this scenario")
    asked = parser.parse_args(arguments)
    scenarios = {**SCENARIOS, **LONG}
    if asked.scenario is not None:
        if asked.scenario not in scenarios:
            print(f"expected a scenario, found {asked.scenario!r}; there are: {', '.join(scenarios)}")
            return 2
        print(explore(World(scenarios[asked.scenario]), STATES_MAX))
        return 0
    if asked.law is None and not asked.without:
        for deletion in DELETIONS:
            print(f"law {deletion.law:2} without {deletion.part}; scenario: {deletion.scenario}")
        print("scenarios:", ", ".join(scenarios))
        return 0
    chosen = [
        deletion
        for deletion in DELETIONS
        if asked.law in (None, deletion.law) and asked.without in deletion.part
    ]
    if not chosen:
        print(f"expected a law from 1 to 13 and a part of it, found law {asked.law}, {asked.without!r}")
        return 2
    for deletion in chosen:
        print(f"Law {deletion.law} without {deletion.part}, in the scenario '{deletion.scenario}':")
        print(explore(World(scenarios[deletion.scenario], deletion.laws), STATES_MAX), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
