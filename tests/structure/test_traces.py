"""What a running broker decides of its structure: the files that an operation passes."""

import json

import pytest

from scripts import structure
from scripts.counts.rows import ROOT

pytestmark = pytest.mark.timeout(1800)  # four brokers whose calls are counted


def test_operations_pass_no_more_files_than_their_ratchets() -> None:
    found = structure.traced(ROOT)
    assert "shard/links/ingress/batches.py" in found["transfer_files"].parts, "calls are counted"
    assert structure.judge(found, json.loads(structure.RATCHETS.read_text())) == []
