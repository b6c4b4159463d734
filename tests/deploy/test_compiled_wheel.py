"""A wheel with machine code: installed alone, its frontend and its shard pass messages by it."""

import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from pathlib import Path

import pytest

import lightrail.client.sync
from lightrail import native
from scripts.compiling import WORK, modules
from tests.support.broker import ROOT, Broker
from tests.support.deploy.wheels import (
    COMPILE_S,
    build,
    build_compiled,
    copied,
    environment_of_pip,
    install_alone,
)

pytestmark = pytest.mark.timeout(COMPILE_S + 300)
COMPILED = "lightrail/_compiled"
PROCESSES = ("frontend", "shard")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_compiled(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_alone(wheel, tmp_path_factory.mktemp("installed") / "venv")


def metrics(broker: Broker) -> str:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def pass_message(broker: Broker) -> None:
    with lightrail.client.sync.connect(f"amqp://{broker.amqp}") as connection:
        assert connection.sender("through").send("machine code").accepted
        (delivery,) = connection.receiver("through").receive(1)
        assert delivery.body == "machine code"
        delivery.accept()


def expect(broker: Broker, *, compiled: bool) -> None:
    text = metrics(broker)
    for role in PROCESSES:
        assert f'lightrail_modules_compiled{{role="{role}",id="0"}} {float(compiled)}' in text
    assert text.count("\nlightrail_modules_compiled{") == len(PROCESSES)
    assert broker.said().count("what a message passes is machine code") == 2 * compiled


def test_it_fits_this_python_on_this_machine_and_has_a_library_for_each_module(wheel: Path) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-{python}-{python}-{platform}.whl")
    with zipfile.ZipFile(wheel) as opened:
        files = set(opened.namelist())
        listed = opened.read(f"{COMPILED}/{native.MODULES}").decode().split()
    assert listed == modules(ROOT)
    names = [native.LIBRARY, *(path.removesuffix(".py").replace("/", ".") for path in listed)]
    built = {f"{COMPILED}/{name}{native.SUFFIX}" for name in names}
    assert {file for file in files if file.startswith(COMPILED)} == {
        *built,
        f"{COMPILED}/{native.MODULES}",
        f"{COMPILED}/{native.DIGEST}",
    }
    assert {
        f"lightrail/amqp/_{name}{native.SUFFIX}" for name in ("redelivery", "scanner", "transfers")
    } <= files
    assert {file.partition("/")[0] for file in files} == {
        "lightrail",
        "pyspark_lightrail",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }


def test_a_message_passes_machine_code_in_frontend_and_shard(python: Path, tmp_path: Path) -> None:
    with Broker(tmp_path / "data", python=str(python), root=tmp_path) as broker:
        pass_message(broker)
        expect(broker, compiled=True)
        for role in PROCESSES:
            mapped = Path(f"/proc/{broker.pid(role)}/maps").read_text()
            assert str(python.parent.parent) in mapped
            assert f"{COMPILED}/{native.LIBRARY}{native.SUFFIX}" in mapped
        assert "interpreted" not in broker.said()


def test_without_sources_it_works_by_bytecode_and_is_machine_code(python: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run(["cp", "-a", str(python.parent.parent), str(home)], check=True)
    (package,) = home.glob("lib/python*/site-packages/lightrail")
    bytecode = [str(python), "-m", "compileall", "-q", "-b", str(package)]
    subprocess.run(bytecode, check=True, timeout=300)
    for source in package.rglob("*.py"):
        source.unlink()
    with Broker(tmp_path / "data", python=str(home / "bin/python"), root=tmp_path) as broker:
        pass_message(broker)
        expect(broker, compiled=True)


def test_a_source_that_was_changed_is_what_runs_and_one_line_says_so(python: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run(["cp", "-a", str(python.parent.parent), str(home)], check=True)
    (source,) = home.glob("lib/python*/site-packages/lightrail/shard/engine/server.py")
    source.write_text(source.read_text() + "\n# changed by hand\n")
    with Broker(tmp_path / "data", python=str(home / "bin/python"), root=tmp_path) as broker:
        pass_message(broker)
        expect(broker, compiled=False)
        why = "lightrail/shard/engine/server.py has changed since they were compiled: install LightRail again"
        assert broker.said().count(why) == 1


def test_whoever_asks_for_machine_code_gets_an_error_where_there_is_no_compiler(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build(tmp_path, LIGHTRAIL_COMPILED="1", CC="false")
    assert "compiling: false --version" in capfd.readouterr().err


EDITABLE = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"


def test_an_installation_for_editing_compiles_nothing(tmp_path: Path) -> None:
    """It would take minutes, and be outdated by the first change of a source: there is `make compiled`."""
    tree = copied(tmp_path)
    environ = environment_of_pip() | {"LIGHTRAIL_COMPILED": "1"}
    command = [sys.executable, "-W", "ignore", "-c", EDITABLE, str(tmp_path)]
    subprocess.run(command, cwd=tree, check=True, timeout=120, env=environ)
    assert list(tmp_path.glob("*.whl"))
    assert not (tree / COMPILED).exists()
    assert not (tree / WORK).exists()
