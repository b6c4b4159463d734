"""Files by which others use the repository: CI, hooks, editors; each command that they name exists."""

import configparser
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.support.broker import ROOT


def parsed(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def jobs() -> dict[str, Any]:
    workflow: dict[str, Any] = parsed(".github/workflows/ci.yml")
    return dict(workflow["jobs"])


def test_ci_runs_the_script_that_people_run() -> None:
    commands = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    programs = [shlex.split(command)[0] for command in commands]
    for program in (each for each in programs if "/" in each):
        assert os.access(ROOT / program, os.X_OK), program


def test_the_script_of_ci_names_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([a-z-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_job_and_step_of_ci_has_an_end() -> None:
    for job in jobs().values():
        assert job["timeout-minutes"] <= 120
        assert all(step["timeout-minutes"] <= job["timeout-minutes"] for step in job["steps"])


def test_what_names_a_registry_is_a_variable_of_the_repository() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "://" not in text
    for name in ("PIP_INDEX_URL", "NPM_CONFIG_REGISTRY", "GOPROXY"):
        assert f"{name}=${{{{ vars.{name} }}}}" in text
    for job in jobs().values():
        assert job["container"]["image"].startswith("${{ vars.")


def test_hooks_are_programs_that_make_dev_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = {re.split(r"[^\w-]", each)[0] for each in project["optional-dependencies"]["dev"]}
    for repository in parsed(".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            program = Path(shlex.split(hook["entry"])[0])
            assert hook["language"] == "system"
            assert program.parent == Path(".venv/bin")
            assert program.name in installed
            assert (Path(sys.executable).parent / program.name).exists()


def test_editors_break_lines_where_lint_does() -> None:
    lines = (ROOT / ".editorconfig").read_text(encoding="utf-8")
    editors = configparser.ConfigParser()
    editors.read_string("[top]\n" + lines)
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]
    assert editors["*.{py,pyi}"]["max_line_length"] == str(ruff["line-length"])
