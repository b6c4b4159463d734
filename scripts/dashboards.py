"""Writes the dashboards of deploy/grafana/dashboards; a test checks that they are current.

python scripts/dashboards.py
"""

import json
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.grafana.overview import overview
from scripts.grafana.placement import placement
from scripts.grafana.queues import queues
from scripts.grafana.shard import shard

DIRECTORY: Final = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
DASHBOARDS: Final = {"overview": overview, "shard": shard, "queues": queues, "placement": placement}


def texts() -> dict[Path, str]:
    """What each file should hold."""
    return {
        DIRECTORY / f"{name}.json": json.dumps(make(), indent=2) + "\n" for name, make in DASHBOARDS.items()
    }


if __name__ == "__main__":
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for path, text in texts().items():
        path.write_text(text)
    sys.exit(0)
