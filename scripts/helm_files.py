"""Copies alert rules and dashboards into the Helm chart, because a chart can read nothing outside of itself.

    .venv/bin/python scripts/helm_files.py

Run it after a change below deploy/prometheus or deploy/grafana; a test compares the copies.
"""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FILES: Final = ROOT / "deploy" / "helm" / "lightrail" / "files"
COPIES: Final = (
    (ROOT / "deploy" / "prometheus", "*.rules.yml", FILES / "rules"),
    (ROOT / "deploy" / "grafana" / "dashboards", "*.json", FILES / "dashboards"),
)
"""(where the files are, which of them, where the chart has them)"""


def wanted() -> dict[Path, bytes]:
    """{path of a copy: its content}"""
    return {
        copies / source.name: source.read_bytes()
        for sources, pattern, copies in COPIES
        for source in sorted(sources.glob(pattern))
    }


def found() -> dict[Path, bytes]:
    """The same, as the chart has them."""
    return {path: path.read_bytes() for _, _, copies in COPIES for path in copies.glob("*") if path.is_file()}


def main() -> int:
    """Writes what differs and removes what is no more; the exit status."""
    for path in found().keys() - wanted().keys():
        path.unlink()
    for path, content in wanted().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
