"""Runs seeds of shards with members: `python -m tests.simulation.run_members SCRIPT FIRST COUNT`.

SCRIPT may be several, separated by commas. A seed means the same run only with PYTHONHASHSEED=0. Prints each
seed that broke a law, with the law; for one seed of one script also what happened. Exit status 1 then.
"""

import gc
import logging
import os
import sys
import traceback

from tests.support.sim.member_scripts import MEMBER_SCRIPTS
from tests.support.sim.members import MembersCluster


def main(scripts: str, first: int, count: int) -> int:
    assert os.environ.get("PYTHONHASHSEED") == "0", "set PYTHONHASHSEED=0, so that a seed can be run again"
    gc.set_threshold(50_000, 20, 100)  # as a frontend has it
    logging.getLogger("lightrail").setLevel(logging.ERROR)
    logging.getLogger("lightrail").propagate = False
    failed = take_overs = messages = settled = acceptances = 0
    names = scripts.split(",")
    for script, seed in ((name, seed) for name in names for seed in range(first, first + count)):
        cluster = MembersCluster(seed, shards=2 if script in ("move", "pairs", "single") else 1)
        is_shown = len(names) == count == 1
        if is_shown:
            cluster.show_log()
        try:
            cluster.run(MEMBER_SCRIPTS[script])
        except Exception:
            failed += 1
            print(f"seed {seed} of {script}:\n{traceback.format_exc()}", flush=True)
        if is_shown:
            print("\n".join(cluster.notes))
        take_overs += sum(shard.entry.epoch - 2 for shard in cluster.shards)
        messages += sum(fate.taken for fate in cluster.ledger.fates.values())
        settled += sum(fate.settled for fate in cluster.ledger.fates.values())
        acceptances += sum(shard.history.acceptances for shard in cluster.shards)
    print(
        f"{count} seeds of {scripts} from {first}: {take_overs} take-overs, {messages} messages, "
        f"{settled} answered settlements, "
        f"{acceptances} acceptances, {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
