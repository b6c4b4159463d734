"""The commands of docs/operate/helm.md: helm takes its own, lightrail-admin knows its own."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from lightrail.cli import admin
from tests.support.deploy import helm
from tests.support.deploy.helm_values import parts

PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "helm.md").read_text()
VALUES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
"""my-values.yaml of the page, and parts that may be added to it."""
WAITING = {"--create-namespace": 1, "--timeout": 2}
"""Options of an installation that `helm template` has none of, and their words."""


def commands(program: str) -> list[list[str]]:
    """The words of every command of a program on the page, without what marks it as not run."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", "")
    lines = [re.sub(r"#\s*†.*$", "", line).strip() for line in blocks.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"{program} ")]


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)) for words in commands("helm")])
def test_helm_takes_the_commands_of_the_page(words: list[str], tmp_path: Path) -> None:
    values, *_ = VALUES
    (tmp_path / "my-values.yaml").write_text(values)
    words = [str(tmp_path / word) if word == "my-values.yaml" else word for word in words]
    words = [str(helm.CHART) if word == "deploy/helm/lightrail" else word for word in words]
    match words:
        case ["install" | "upgrade", *rest]:
            for option, number in WAITING.items():
                while option in rest:
                    at = rest.index(option)
                    del rest[at : at + number]
            made = helm.run("template", *rest)
        case ["test", *_]:
            return
        case _:
            made = helm.run(*words)
    if words[0] != "lint":
        pods = helm.pods([each for each in yaml.safe_load_all(made) if each])
        assert "registry.example.org/lightrail:0.1.0" in str(pods)


@pytest.mark.parametrize("more", VALUES[1:])
def test_helm_takes_the_values_of_the_page_beside_those_of_the_installation(
    more: str, tmp_path: Path
) -> None:
    files = [tmp_path / "my-values.yaml", tmp_path / "more.yaml"]
    for path, text in zip(files, (VALUES[0], more), strict=True):
        path.write_text(text)
    made = helm.run("template", "rel", str(helm.CHART), *(f"--values={path}" for path in files))
    manifests = [each for each in yaml.safe_load_all(made) if each]
    if "analytics" in more:
        found = set(helm.of_kind(manifests, "CronJob"))
        assert found == {"rel-lightrail-capture", "rel-lightrail-compact"}
    else:
        found = {name for name in helm.of_kind(manifests, "StatefulSet") if "-shard" in name}
        assert found == {f"rel-lightrail-shard-{shard}" for shard in range(3)}


def test_lightrail_admin_knows_the_commands_of_the_page() -> None:
    found = commands("lightrail-admin")
    assert len(found) > 5
    for words in found:
        admin._parser().parse_args(words)


def test_every_value_on_the_page_is_there() -> None:
    known = {path for path, _ in parts()}
    named = set(re.findall(r"`((?:[a-z]\w+\.)+[a-zA-Z]\w*)(?:=\w+)?`", PAGE))
    files = {name for name in named if name.endswith((".yaml", ".json", ".key", ".crt", ".md"))}
    assert named - files - known <= {"config.plain_without_tls"}
