"""What trains is the image's own interpreter or one made from pins, and stays what the run began with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.agent import compute, pins, ready
from orchestrator.agent import setup as setting_up
from orchestrator.agent.ending import AttemptEnds
from orchestrator.agent.heartbeat import Status
from orchestrator.clock import SystemClock
from orchestrator.handover import Expected, JobSpec
from orchestrator.types import Outcome
from tests.agent.bench import Bench
from tests.agent.stage import CANARY

HERE = {"pydantic": version("pydantic"), "boto3": version("boto3")}  # what any interpreter of these tests has
ONE_GPU = Expected(gpu_count=1)


def make_wheel(folder: Path, name: str, number: str, *, needs: str = "") -> None:
    info = f"{name}-{number}.dist-info"
    files = {
        f"{name}.py": f"version = {number!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{number}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that can be installed: a library in two versions, and what it needs, in two."""
    folder = tmp_path / "all the wheels"
    for number in ("1.0", "2.0"):
        make_wheel(folder, "toytrainer", number, needs="toytool")
        make_wheel(folder, "toytool", number)
    monkeypatch.setenv("TUNE_PIP_ARGS", f"--no-index --find-links {shlex.quote(str(folder))}")
    return folder


def at(tmp_path: Path, environment: str, stack: dict[str, str], *, rest: dict[str, str] | None = None) -> Bench:
    bench = Bench(tmp_path, environment=environment, stack="toy")
    folder = bench.home.root / "stacks"
    folder.mkdir()
    lines = {"toy.txt": stack, **({"toy.rest.txt": rest} if rest else {})}
    for name, versions in lines.items():
        text = "".join(f"{package}=={number}\n" for package, number in versions.items())
        (folder / name).write_text(f"# a comment\n\n{text}")
    return bench


class Hurried(SystemClock):
    """Pauses between tries are none."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.05))


def a_setup(bench: Bench, *, is_over: Callable[[], bool] = lambda: False, limit_s: float = 600) -> setting_up.Setup:
    return setting_up.Setup(
        bench.home,
        bench.config,
        bench.bucket,
        clock=Hurried(),
        note=bench.notes.append,
        is_over=is_over,
        limit_s=limit_s,
    )


def test_an_image_that_has_the_pinned_versions_is_used_as_it_is(tmp_path: Path) -> None:
    bench = at(tmp_path, "auto", HERE)
    prepared = a_setup(bench).prepare()
    assert (prepared.how, prepared.versions) == ("image", HERE)
    assert not (bench.home.root / "env").exists()
    assert json.loads((bench.home.state / "environment.json").read_text())["versions"] == HERE


def test_the_pins_hold_although_something_newer_is_offered(tmp_path: Path, index: Path) -> None:
    bench = at(tmp_path, "auto", {"toytrainer": "1.0"}, rest={"toytool": "1.0"})
    (bench.home.secrets).write_text(json.dumps({"HF_TOKEN": CANARY}))
    prepared = a_setup(bench).prepare()
    assert (prepared.how, prepared.versions) == ("pinned", {"toytrainer": "1.0"})
    asked = "import toytrainer, toytool; print(toytrainer.version, toytool.version)"
    told = subprocess.run([prepared.python, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout == "1.0 1.0\n", "what the pinned ones need is pinned, too"
    assert Path(prepared.python).is_relative_to(bench.home.root)
    assert "toytrainer==1.0" in (bench.home.state / "pins.txt").read_text()
    assert "Successfully installed" in bench.home.trainer_log.read_text()
    for wheel in index.iterdir():
        wheel.unlink()
    assert a_setup(bench).prepare() == prepared, "nothing is installed twice"
    (bench.home.state / "environment.json").unlink()
    assert a_setup(bench).prepare() == prepared, "an agent that died before it had noted it down finds it whole"


def test_without_a_gpu_torch_alone_is_looked_for_among_the_builds_without_cuda(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_CPU_WHEELS", (tmp_path / "no-index").as_uri())
    make_wheel(index, "torch", "1.0")
    bench = at(tmp_path, "auto", {"toytrainer": "1.0", "torch": "1.0"})
    bench.config = dataclasses.replace(bench.config, expect=Expected(gpu_count=0))
    assert a_setup(bench).prepare().versions == {"toytrainer": "1.0", "torch": "1.0"}
    asked = [line for line in bench.home.trainer_log.read_text().splitlines() if " install " in line]
    assert [("--extra-index-url" in line, "torch==1.0" in line) for line in asked] == [(True, True), (False, False)]


def test_a_run_that_goes_on_keeps_the_versions_it_began_with(tmp_path: Path, index: Path) -> None:
    bench = at(tmp_path, "auto", {"toytrainer": "2.0"}, rest={"toytool": "2.0"})
    bench.publish(10, versions={"toytrainer": "1.0+local", "python": "3.11.7"})
    prepared = a_setup(bench).prepare()
    assert prepared.versions == {"toytrainer": "1.0"}
    assert any("toytrainer 1.0" in note for note in bench.notes)


def test_what_cannot_be_installed_is_named(tmp_path: Path, index: Path) -> None:
    bench = at(tmp_path, "pinned", {"toytrainer": "7.0"})
    with pytest.raises(AttemptEnds) as ended:
        a_setup(bench).prepare()
    ending = ended.value.ending
    assert ending.outcome is Outcome.SETUP_FAILED
    assert "toytrainer==7.0" in ending.reason
    log = bench.home.trainer_log.read_text()
    assert log.count(" install --only-binary :all: ") == 3, "the log that is stored says what was tried"


def test_installing_takes_no_longer_than_it_may_and_leaves_nothing_running(tmp_path: Path, index: Path) -> None:
    bench = at(tmp_path, "pinned", {"toytrainer": "1.0"})
    with pytest.raises(AttemptEnds):
        a_setup(bench, limit_s=0)._patiently(["/bin/sh", "-c", "sleep 1000 & sleep 1000"])


def test_a_reason_to_leave_is_heard_while_something_is_installed(tmp_path: Path, index: Path) -> None:
    bench = at(tmp_path, "pinned", {"toytrainer": "1.0"})
    with pytest.raises(setting_up.Interrupted):
        a_setup(bench, is_over=lambda: True).prepare()


def test_an_installer_is_given_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = at(tmp_path, "pinned", HERE)
    bench.home.secrets.write_text(json.dumps({"HF_TOKEN": CANARY}))
    bench.home.storage_keys.write_text("{}")
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "RUNPOD_API_KEY", "CONTAINER_API_KEY"):
        monkeypatch.setenv(name, CANARY)
    env = a_setup(bench)._environment()
    assert CANARY not in env.values()
    assert env["PIP_NO_INPUT"] == "1"
    assert env["TMPDIR"].startswith(str(bench.home.root))


def test_the_image_is_taken_as_it_is_when_that_is_asked_for(tmp_path: Path) -> None:
    bench = at(tmp_path, "image", {**HERE, "boto3": "0.1"})
    prepared = a_setup(bench).prepare()
    assert prepared.versions == HERE
    assert any("boto3 0.1 wanted" in note for note in bench.notes)


def test_an_image_without_the_packages_is_refused_with_a_way_out(tmp_path: Path) -> None:
    bench = at(tmp_path, "image", {"toytrainer": "1.0", **HERE})
    with pytest.raises(AttemptEnds, match=r"missing: toytrainer .*try tune.environment: pinned"):
        a_setup(bench).prepare()


def test_an_interpreter_named_by_its_path(tmp_path: Path) -> None:
    assert a_setup(at(tmp_path, sys.executable, HERE)).prepare().how == "path"
    (tmp_path / "x").mkdir()
    with pytest.raises(AttemptEnds, match="no Python that can be run here"):
        a_setup(at(tmp_path / "x", "/nowhere/python", HERE)).prepare()


def test_an_interpreter_that_is_gone_is_made_again(tmp_path: Path) -> None:
    bench = at(tmp_path, "auto", HERE)
    state = {"python": "/gone/python", "how": "pinned", "versions": {}}
    (bench.home.state / "environment.json").write_text(json.dumps(state))
    assert a_setup(bench).prepare().how == "image"


@pytest.mark.parametrize("text", ["torch>=2", "torch", "-e .", "https://x/y.whl", "torch==2.0 --hash=x"])
def test_only_exact_versions_are_pins(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match="line 1"):
        pins.read(path)


def test_a_builder_s_own_addition_makes_no_other_version() -> None:
    interpreter = pins.Interpreter("python", {"torch": "2.13.0+cu128"})
    assert interpreter.unmet({"torch": "2.13.0"}) == []
    assert interpreter.unmet({"torch": "2.13.1", "trl": "1"}) == [
        "torch 2.13.1 wanted, 2.13.0+cu128 there",
        "trl 1 wanted, none there",
    ]


def python_that_says(tmp_path: Path, answer: object, *, code: int = 0, noise: str = "") -> str:
    path = tmp_path / f"python-{hashlib.sha256(repr(answer).encode()).hexdigest()[:8]}"
    text = answer if isinstance(answer, str) else json.dumps(answer)
    path.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(noise)}\nprintf '%s' {shlex.quote(text)}\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


GOOD = {"torch": "2.13.0", "cuda": "12.8", "gpus": 1}


@pytest.mark.parametrize(
    ("answer", "outcome", "sentence"),
    [
        ({"import_failed": "OSError: libcudart"}, Outcome.SETUP_FAILED, "cannot import torch: OSError: libcudart"),
        ({**GOOD, "cuda": None}, Outcome.SETUP_FAILED, "built without CUDA"),
        ({**GOOD, "failed": "RuntimeError: busy"}, Outcome.HOST_FAULT, "the GPUs do not compute: RuntimeError: busy"),
        ({**GOOD, "gpus": 0}, Outcome.HOST_FAULT, "1 GPUs expected, torch sees 0"),
        ("Segmentation fault", Outcome.HOST_FAULT, "the check of the GPUs died"),
    ],
)
def test_who_is_to_blame_when_nothing_can_be_computed(
    tmp_path: Path, answer: object, outcome: Outcome, sentence: str
) -> None:
    with pytest.raises(AttemptEnds) as ended:
        compute.check(python_that_says(tmp_path, answer), ONE_GPU, env={})
    assert ended.value.ending.outcome is outcome
    assert sentence in ended.value.ending.reason


def test_gpus_that_do_not_answer_are_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexec sleep 1000\n")
    path.chmod(0o755)
    with pytest.raises(AttemptEnds, match=r"do not answer within 0\.3 s"):
        compute.check(str(path), ONE_GPU, env={}, timeout_s=0.3)


def test_a_job_that_quantises_is_not_started_where_that_fails(tmp_path: Path) -> None:
    noisy = python_that_says(tmp_path, {**GOOD, "quantising_failed": "CUDA 12.8: no library"}, noise="a warning\n")
    found = compute.check(noisy, ONE_GPU, env={})
    plain = JobSpec("trl", ("x",), {"adapter": "lora"}, 1, 1)
    compute.require_quantising(found, plain)
    for settings in ({"load_in_4bit": True}, {"load_in_8bit": True}, {"optimizer": "paged_adamw_8bit"}):
        with pytest.raises(AttemptEnds, match=r"bitsandbytes does not work here: CUDA 12\.8: no library"):
            compute.require_quantising(found, JobSpec("trl", ("x",), settings, 1, 1))
    compute.require_quantising(None, JobSpec("trl", ("x",), {"load_in_4bit": True}, 1, 1))


@pytest.mark.train
def test_the_check_itself_tells_a_torch_without_gpus(tmp_path: Path) -> None:
    with pytest.raises(AttemptEnds) as ended:
        compute.check(sys.executable, ONE_GPU, env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""})
    assert ended.value.ending.outcome in {Outcome.SETUP_FAILED, Outcome.HOST_FAULT}
    assert "torch" in ended.value.ending.reason or "GPUs" in ended.value.ending.reason


def test_a_local_run_is_taken_as_it_always_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path, trainer_python="/some/python")
    said: list[str] = []
    made = ready.make_ready(
        bench.home,
        bench.config,
        bench.bucket,
        Status(),
        clock=bench.clock,
        say=said.append,
        is_over=lambda: False,
        free=lambda _: 0,
    )
    assert (made.config, made.computes, said) == (bench.config, None, [])
    assert ready.as_before(bench.home, bench.config) == bench.config
