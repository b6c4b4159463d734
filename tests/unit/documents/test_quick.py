"""Quick: which tests `make quick` runs for what changed."""

from scripts.quick import all_imports, imported, module_of, unit_tests


def test_a_file_is_known_by_the_name_that_others_import() -> None:
    assert module_of("lightrail/shard/queue/line.py") == "lightrail.shard.queue.line"
    assert module_of("lightrail/shard/queue/__init__.py") == "lightrail.shard.queue"
    assert module_of("tests/support/broker.py") == "tests.support.broker"


def test_every_form_of_an_import_is_found() -> None:
    source = "import a.b\nfrom c import d\nfrom e.f import g as h\ndef later() -> None:\n    import i\n"
    assert {"a.b", "c.d", "e.f", "e.f.g", "i"} <= imported(source)


def test_a_module_is_tested_by_the_files_that_import_it() -> None:
    imports = {
        "tests/unit/shard/test_one.py": {"lightrail.shard.pacing"},
        "tests/model/test_two.py": {"lightrail.shard.pacing", "lightrail.shard.disk"},
        "tests/unit/shard/test_three.py": {"lightrail.shard.disk"},
    }
    found = unit_tests(["lightrail/shard/pacing.py"], imports)
    assert found == {"lightrail/shard/pacing.py": ["tests/model/test_two.py", "tests/unit/shard/test_one.py"]}


def test_a_module_is_tested_by_the_files_of_its_name_in_its_folder_or_one_above() -> None:
    imports: dict[str, set[str]] = {
        "tests/unit/shard/queue/test_line.py": set(),
        "tests/unit/shard/test_line.py": set(),
        "tests/unit/shard/test_line_bounds.py": set(),
        "tests/unit/frontend/test_line.py": set(),
        "tests/unit/shard/test_lines.py": set(),
        "tests/model/test_line_model.py": set(),
    }
    (found,) = unit_tests(["lightrail/shard/queue/line.py"], imports).values()
    assert found == [
        "tests/model/test_line_model.py",
        "tests/unit/shard/queue/test_line.py",
        "tests/unit/shard/test_line.py",
        "tests/unit/shard/test_line_bounds.py",
    ]


def test_a_test_is_its_own_and_a_helper_belongs_to_those_that_import_it() -> None:
    imports = {
        "tests/unit/amqp/test_link.py": {"tests.unit.amqp.peer"},
        "tests/unit/shard/queue/test_line.py": {"lightrail.shard.queue.line"},
    }
    changed = [
        "tests/unit/amqp/test_link.py",
        "tests/unit/amqp/peer.py",
        "tests/unit/shard/queue/conftest.py",
    ]
    assert unit_tests(changed, imports) == {
        "tests/unit/amqp/peer.py": ["tests/unit/amqp/test_link.py"],
        "tests/unit/amqp/test_link.py": ["tests/unit/amqp/test_link.py"],
        "tests/unit/shard/queue/conftest.py": ["tests/unit/shard/queue/test_line.py"],
    }


def test_what_no_test_maps_to_is_listed_without_tests() -> None:
    imports = {"tests/unit/shard/test_disk.py": {"lightrail.shard.disk"}}
    changed = ["README.md", "lightrail/shard/new.py", "tests/unit/shard/disk.txt"]
    assert unit_tests(changed, imports) == {path: [] for path in changed}


def test_the_unit_tests_this_repository_are_read() -> None:
    imports = all_imports()
    (found,) = unit_tests(["lightrail/shard/ownership.py"], imports).values()
    assert "tests/unit/shard/test_ownership.py" in found
    (found,) = unit_tests(["scripts/quick.py"], imports).values()
    assert found == ["tests/unit/documents/test_quick.py"]
