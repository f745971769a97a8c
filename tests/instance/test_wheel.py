"""The agent travels as a wheel of the very package that runs here."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator import wheel

HEAVY = ("paramiko", "vastai", "runpod", "typer", "rich", "yaml", "psutil", "tenacity", "requests")


def test_equal_packages_give_equal_bytes() -> None:
    first = wheel.build()
    wheel.build.cache_clear()
    assert wheel.build() == first


def test_it_is_small_and_holds_no_more_than_the_agent_and_what_it_imports() -> None:
    names = zipfile.ZipFile(io.BytesIO(wheel.build())).namelist()
    assert len(wheel.build()) < 300_000, "it goes over SSH to each instance"
    rooms = {name.split("/")[1] for name in names if name.count("/") == 2}
    assert rooms == {"agent", "storage"}
    assert "orchestrator/agent/start.sh" in names


def test_its_record_is_true() -> None:
    archive = zipfile.ZipFile(io.BytesIO(wheel.build()))
    (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
    assert set(rows) == set(archive.namelist())
    for name, (digest, size) in rows.items():
        if name != record:
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(data)))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As an installer puts it there, with no index to ask."""
    folder = tmp_path_factory.mktemp("installed")
    file = folder / wheel.file_name()
    file.write_bytes(wheel.build())
    target = folder / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(file),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return target


def test_the_agent_runs_from_it_alone(installed: Path) -> None:
    """With the libraries that an instance gets, and none of those that only this side needs."""
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")
sys.meta_path.insert(0, Absent())
sys.path.insert(0, {str(installed)!r})
import importlib, pkgutil
import orchestrator.agent, orchestrator.storage
for room in (orchestrator.agent, orchestrator.storage):
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{{room.__name__}}.{{module.name}}")
from orchestrator.handover import start_command
assert "TUNE_HOME" in start_command()
strangers = [m.__file__ for n, m in sys.modules.items() if n.startswith("orchestrator") and not m.__file__.startswith({str(installed)!r})]
assert not strangers, strangers
"""
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
