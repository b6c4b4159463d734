"""Runs seeds of the simulated cluster: `python -m tests.simulation.run SCRIPT FIRST COUNT`, hash seed 0.

Sets of texts are looked through in another order in every process, unless PYTHONHASHSEED says otherwise: a
seed means the same run only with PYTHONHASHSEED=0. Prints each seed that broke a law, with the law; exit
status 1 then.
"""

import gc
import logging
import os
import sys
import traceback

from tests.support.sim.cluster import Cluster
from tests.support.sim.scripts import SCRIPTS


def main(script: str, first: int, count: int) -> int:
    assert os.environ.get("PYTHONHASHSEED") == "0", "set PYTHONHASHSEED=0, so that a seed can be run again"
    gc.set_threshold(50_000, 20, 100)  # as a frontend has it
    logging.getLogger("lightrail").setLevel(logging.ERROR)
    logging.getLogger("lightrail").propagate = count == 1
    failed = 0
    moves = messages = late = 0
    for seed in range(first, first + count):
        cluster = Cluster(seed)
        try:
            cluster.run(SCRIPTS[script])
        except Exception:
            failed += 1
            print(f"seed {seed} of {script}:\n{traceback.format_exc()}", flush=True)
        moves += cluster.moves_asked
        messages += sum(fate.taken for fate in cluster.ledger.fates.values())
        late += cluster.etcd.arrived_after_death
    print(
        f"{count} seeds of {script} from {first}: {moves} moves, {messages} messages, {late} transactions "
        f"after the end of their processes, {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
