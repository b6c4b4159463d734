"""Merging: metrics of several processes, in Prometheus text format, as one text.

Text of format 0.0.4 is merged line by line, because parsing and printing every sample would cost a gateway
more than the scrape costs the processes. A family must stand in one piece, so samples are gathered by family.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( [-+.0-9A-Za-z]+(?: -?[0-9]+)?)")


def merge(sources: Iterable[tuple[Mapping[str, str], str]]) -> str:
    """One text of all ``sources``: (labels that each of its samples gets, its text).

    A family of several sources has the HELP and TYPE of the first source. Lines that are not samples are left
    out.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for labels, text in sources:
        added = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                kept = heads.setdefault(family, [])
                if not any(head.startswith(line[:7]) for head in kept):
                    kept.append(line)
                samples.setdefault(family, [])
                continue
            match = _SAMPLE.fullmatch(line)
            if match is None:
                continue
            name, own, value = match.groups()
            if not family or not name.startswith(family):
                family = name
            both = f"{own.rstrip(',')},{added}" if own and added else own or added
            samples.setdefault(family, []).append(f"{name}{{{both}}}{value}" if both else f"{name}{value}")
    lines = [line for family, rows in samples.items() if rows for line in (*heads.get(family, ()), *rows)]
    return "\n".join(lines) + "\n" if lines else ""


def escape(value: str) -> str:
    """A label value, escaped as the text format requires."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
