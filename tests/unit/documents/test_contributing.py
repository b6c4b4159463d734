"""CONTRIBUTING.md: its program prints the records of a segment, and tests stand where it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.journal import layout, segment_header
from lightrail.journal.record import Close, Queue, QueueEvent
from tests.support.broker import ROOT

SALT = 7


def printed(segment: bytes, directory: Path) -> subprocess.CompletedProcess[str]:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    file = directory / "000000000001.segment"
    file.write_bytes(segment)
    return subprocess.run([sys.executable, "-c", program, file], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def segment() -> bytes:
    records: tuple[Queue | Close, ...] = (Queue(QueueEvent.DECLARED, 1, "shop/orders", "{}"), Close())
    return segment_header.encode_segment_header(1, 1, SALT) + b"".join(
        layout.finished(layout.encode_small(record, lsn, 0, 0), SALT) for lsn, record in enumerate(records, 1)
    )


def test_it_prints_each_record_and_what_is_behind_the_last(segment: bytes, tmp_path: Path) -> None:
    done = printed(segment + bytes(64), tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, rest = done.stdout.splitlines()
    assert first.startswith("1 Queue(")
    assert "shop/orders" in first
    assert second.startswith("2 Close(")
    assert rest.startswith("then: no record")


def test_it_says_that_a_segment_has_no_records_yet(tmp_path: Path) -> None:
    done = printed(bytes(4096), tmp_path)
    assert done.returncode == 1
    assert done.stderr == "no records yet: the segment is prepared for later\n"


def test_each_module_of_a_queue_has_a_test_file_of_its_name_and_there_is_no_other() -> None:
    modules = below(ROOT / "lightrail" / "shard" / "queue", "")
    assert len(modules) >= 40
    assert below(ROOT / "tests" / "unit" / "shard" / "queue", "test_") == modules


def below(folder: Path, prefix: str) -> set[Path]:
    """Paths of modules below a folder, without the prefix of their names."""
    found = (path.relative_to(folder) for path in folder.rglob(f"{prefix}*.py"))
    return {
        path.with_name(path.name.removeprefix(prefix))
        for path in found
        if path.name not in ("__init__.py", "conftest.py")
    }
