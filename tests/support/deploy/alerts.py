"""Alerts: which rules fire if the metrics of a gateway stay as they are, by promtool."""

import json
import re
import subprocess
from pathlib import Path
from typing import Final

from tests.support.broker import ROOT

RULES: Final = ROOT / "deploy" / "prometheus" / "lightrail.rules.yml"
MINUTES: Final = 20
SAMPLE: Final = re.compile(r"^(lightrail_(?:placement|replica)_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
"""What alerts about shards and their members read."""


def check_firing(text: str, *alerts: str, directory: Path) -> None:
    """Fails unless exactly these alerts fire when the samples of a gateway's /metrics stay for long."""
    series = [
        {
            "series": f'{name}{{{labels},job="lightrail",instance="a:1"}}',
            "values": f"{float(value):g}x{MINUTES}",
        }
        for name, labels, value in SAMPLE.findall(text)
    ]
    assert series, f"expected metrics of shards with replicas, found {text[:200]}"
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in sorted(alerts)],
            }
        ],
    }
    file = directory / "alerts.test.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
