"""docs/use/clients.md says which client does what: it is current, and each of its tests is there and runs."""

from pathlib import Path

import pytest

from scripts import clients_page
from scripts.clients_page import PAGE, Proof, page, problem_of, proofs


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python scripts/clients_page.py"


def test_each_cell_names_a_test_that_runs() -> None:
    problems = [problem for problem in map(problem_of, proofs()) if problem]
    assert not problems


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("tests/interop/test_nothing.py::test_a", "no such file"),
        ("tests/interop/test_rhea.py::test_that_is_not_there", "no such test"),
        ("tests/interop/jms/src/Messages.java::that_is_not_there", "no such law"),
    ],
)
def test_a_cell_without_a_test_is_found(test: str, problem: str) -> None:
    assert problem in problem_of(Proof(test))


def test_a_test_that_is_skipped_and_a_law_that_waits_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients_page, "ROOT", tmp_path)
    laws = tmp_path / clients_page.LAWS
    laws.mkdir(parents=True)
    (tmp_path / clients_page.NOT_RUN).write_text('WAITING = frozenset({"Late.java", "Later.java"})\n')
    for name in ("Now", "Later"):
        (laws / f"{name}.java").write_text("    @Law\n    void it_works(Scene scene) {}\n")
    assert problem_of(Proof(f"{clients_page.LAWS}Now.java::it_works")) == ""
    assert "does not run" in problem_of(Proof(f"{clients_page.LAWS}Later.java::it_works"))
    (tmp_path / "test_x.py").write_text('@pytest.mark.skip(reason="x")\ndef test_a():\n    pass\n')
    assert "mark pytest.mark.skip" in problem_of(Proof("test_x.py::test_a"))
