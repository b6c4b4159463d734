"""The files of an archive are byte for byte what docs/formats/archive.md draws."""

import json
from pathlib import Path

import pytest

from lightrail.journal.archive import ArchiveError, Incarnation, decode_identity
from lightrail.journal.index import BadIndexError, decode_index, read_index
from lightrail.journal.segment_header import decode_segment_header
from lightrail.shard.archiving.contents import RealFolders, ShardArchive
from lightrail.shard.journal.files import RealFiles
from tests.support.shard.fake_files import FakeFiles, Inode

GOLDEN = Path(__file__).parents[3] / "golden"
OWN = Incarnation("golden", 7, "00112233445566778899aabbccddeeff")


def test_the_index_of_the_golden_segment_is_the_golden_index() -> None:
    files = FakeFiles()
    data = (GOLDEN / "journal" / "segment-v7.bin").read_bytes()
    files.inodes["segment"] = Inode(data)
    header = decode_segment_header(data)
    assert header is not None
    index, _ = read_index(header, files.open("segment"), len(data))
    index.sealed = True
    text = (GOLDEN / "archive" / "index-v1.json").read_text()
    assert index.encode() == text
    assert decode_index(text) == index
    assert index.blocks
    assert index.queues
    assert index.messages


def test_the_golden_identity_is_read_and_written() -> None:
    text = (GOLDEN / "archive" / "identity-v1.json").read_text()
    assert OWN.encode() == text
    assert decode_identity(text) == OWN


@pytest.mark.parametrize("name", ["index", "identity"])
def test_newer_formats_are_refused(name: str) -> None:
    fields = json.loads((GOLDEN / "archive" / f"{name}-v1.json").read_text())
    fields["format"] = 2
    decode = decode_index if name == "index" else decode_identity
    with pytest.raises((BadIndexError, ArchiveError), match="format 2, this version reads up to 1"):
        decode(json.dumps(fields))


def test_on_a_real_disk_a_segment_is_linked_read_and_removed(tmp_path: Path) -> None:
    journal = RealFiles(tmp_path / "shard-7")
    data = (GOLDEN / "journal" / "segment-v7.bin").read_bytes()
    header = decode_segment_header(data)
    assert header is not None
    name = f"{header.segment:012d}.segment"
    (tmp_path / "shard-7" / name).write_bytes(data)
    file = journal.open(name)
    index, _ = read_index(header, file, len(data))
    folders = RealFolders(tmp_path / "archive")
    assert folders.names() == []
    contents = ShardArchive(folders, OWN)
    contents.load()
    contents.keep(journal, name, file, index, lambda: True)
    assert file.links() == 2
    assert folders.shares(journal)
    again = ShardArchive(RealFolders(tmp_path / "archive"), OWN)
    again.load()
    assert again.kept == contents.kept
    assert again.index(OWN.disk, header.segment) == index.encode().encode()
    assert again.open(OWN.disk, header.segment).read(0, len(data)) == data
    assert again.remove(OWN.disk, header.segment) == index.end
    assert file.links() == 1
    assert sorted(path.name for path in (tmp_path / "archive" / OWN.folder).iterdir()) == ["identity.json"]
