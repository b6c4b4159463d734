"""Programs of other languages that the interoperability tests compile and run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

HERE = Path(__file__).parent
CSRUN = HERE.parents[2] / "shared" / "dotnet" / "csrun"


def finished(command: Sequence[str | Path], seconds: float, **options: Any) -> str:
    """The standard output of a program that has to succeed in time."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=seconds, **options
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stderr[-4000:]}"
    return str(done.stdout)


def built_in_go(package: str, folder: Path) -> Path:
    """Compiles a package of tests/interop/go; it takes a second with what scripts/setup.sh cached."""
    project = HERE / "go"
    # Where the system has no Go, or one that is too old, scripts/setup.sh puts it beside this interpreter.
    beside = Path(sys.prefix, "bin", "go")
    go = str(beside) if beside.exists() else shutil.which("go")
    assert go, "Go is not installed: run scripts/setup.sh test"
    assert (project / "vendor").is_dir(), "the clients for Go are not there: run scripts/setup.sh test"
    program = folder / package
    environment = os.environ | {"GOFLAGS": "-mod=vendor -buildvcs=false"}
    finished([go, "build", "-o", program, f"./{package}"], 240, cwd=project, env=environment)
    return program


def runs_csharp() -> bool:
    """Whether there is csrun in ../shared, or an installed .NET."""
    return CSRUN.exists() or shutil.which("dotnet") is not None


def csharp(program: str, beside: Sequence[str] = ()) -> list[str | Path]:
    """The command of a class of tests/interop/dotnet, without its arguments.

    By csrun, which compiles its file, Program.cs and those beside it, or else by an installed .NET of version
    10 or later. The test is skipped where there is neither.
    """
    project = HERE / "dotnet"
    if not runs_csharp():
        pytest.skip("programs in C# need .NET: neither ../shared/dotnet/csrun nor dotnet was found")
    if not CSRUN.exists():
        return ["dotnet", "run", "--project", project, "--", program]
    sources = (project / f"{name}.cs" for name in ("Program", program, *beside))
    return [CSRUN, ",".join(map(str, sources)), program]


def in_csharp(program: str, *arguments: str, seconds: float = 120.0, beside: Sequence[str] = ()) -> "Found":
    """What a class of tests/interop/dotnet finds, run with arguments."""
    return Found.read("C#", finished([*csharp(program, beside), *arguments], seconds))


def several_in_csharp(programs: Mapping[str, Sequence[str]], seconds: float = 200.0) -> "dict[str, Found]":
    """What classes of tests/interop/dotnet find that run at once in one process: by class, with arguments."""
    first, *others = programs
    words = [word for name, arguments in programs.items() for word in ("--", name, *arguments)]
    output = finished([*csharp(first, others), *words[2:]], seconds)
    found = Found.read("C#", output).scenarios
    return {
        name: Found("C#", {key[len(name) + 2 :]: found[key] for key in found if key.startswith(f"{name}: ")})
        for name in programs
    }


def compiled_in_java(project: Path, folder: Path) -> str:
    """Compiles src/ of a project with the libraries of its target/lib; gives the class path."""
    libraries = sorted((project / "target" / "lib").glob("*.jar"))
    assert libraries, f"what {project.name} needs is not there: run scripts/setup.sh test"
    path = os.pathsep.join(map(str, libraries))
    sources = sorted((project / "src").glob("*.java"))
    flags = [
        "--release",
        "17",
        "-encoding",
        "UTF-8",
        "-Xlint:all,-classfile",
        "-Werror",
        "-cp",
        path,
        "-d",
        str(folder),
    ]
    finished(["javac", *flags, *map(str, sources)], 120)
    return os.pathsep.join([str(folder), path])


@dataclass(frozen=True)
class Found:
    """What the scenarios of a program found."""

    program: str
    scenarios: Mapping[str, Any]

    @classmethod
    def read(cls, program: str, output: str) -> Self:
        """Of lines {"scenario": NAME, "found": ANYTHING}."""
        return cls(
            program, {line["scenario"]: line["found"] for line in map(json.loads, output.splitlines())}
        )

    def __getitem__(self, scenario: str) -> Any:
        assert scenario in self.scenarios, f"the program in {self.program} ended before {scenario}"
        return self.scenarios[scenario]


def trusting_in_java(certificates: Path, folder: Path) -> list[str]:
    """Options of java with which clients trust an authority."""
    store = folder / "trusted.p12"
    options = ["-noprompt", "-alias", "tests", "-storetype", "PKCS12", "-storepass", "trusted"]
    finished(["keytool", "-importcert", "-file", certificates, "-keystore", store, *options], 60)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=trusted"]
