"""From a fresh container to a running agent, by a script that asks nothing and says what it does."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator import bootstrap, codec, wheel
from orchestrator.handover import AgentConfig, Expected, start_command
from orchestrator.types import ExitRecord, Outcome
from tests.agent.stage import RUN_ID, Stage, make_run
from tests.instance.stand import Container
from tests.instance.web import Web

SCRIPT = bootstrap.elsewhere().files["bootstrap.sh"][0].decode()
PINS = Path(__file__).parents[2] / "configs" / "stacks" / "agent.txt"
NAMES = [line.partition("==")[0] for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
BIN = str(Path(sys.executable).parent)
# What a Debian image has without Python, curl, apt or sudo.
TOOLS = "sh cat cksum cp cut date dirname env grep head id ls mkdir mv printf rm sed sleep tail tee timeout tr uname"


def pack(home: Path, **changes: str) -> Path:
    """What the launcher puts there. The pins are those of the interpreter that runs the tests."""
    home.mkdir(parents=True, exist_ok=True)
    files = {path: data for path, (data, _) in bootstrap.elsewhere().files.items()}
    files["stacks/agent.txt"] = "".join(f"{name}=={version(name)}\n" for name in NAMES).encode()
    files["agent.json"] = codec.dump(AgentConfig(RUN_ID, 3, "file:///nowhere", "r" * 64, "d" * 64))
    for name, data in {**files, **{k: v.encode() for k, v in changes.items()}}.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(data)
    return home


class Place:
    """A tune home in a container, whose PATH holds what the test puts there."""

    def __init__(self, container: Container, *, has_python: bool) -> None:
        self.container = container
        self.home = pack(container.home / "tune" / "a 1")
        for name in TOOLS.split():
            (container.bin / name).symlink_to(str(shutil.which(name)))
        container.program("sleep", 'echo "$1" >>"$TUNE_HOME/slept"\n' if not (container.bin / "sleep").unlink() else "")
        if has_python:
            self.python()

    def python(self, *, before: str = "") -> None:
        """python3, which first does what a test says."""
        self.container.program("python3", f'{before}\nexec {sys.executable} "$@"\n')

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        full = {
            "PATH": str(self.container.bin),
            "HOME": str(self.container.home),
            "LANG": "C",
            "TUNE_HOME": str(self.home),
        }
        child = self.container.spawn(["/bin/sh", "-c", SCRIPT], self.container.environment() | full | env)
        out, err = child.communicate(timeout=120)
        return subprocess.CompletedProcess([], child.returncode, out.decode(), err.decode())

    @property
    def log(self) -> str:
        return (self.home / "log" / "bootstrap.log").read_text()


@pytest.fixture
def bare(container: Container) -> Place:
    return Place(container, has_python=False)


@pytest.fixture
def place(container: Container) -> Place:
    return Place(container, has_python=True)


def steps(text: str) -> list[str]:
    return re.findall(r"\[\d/\d\]", text)


def test_an_image_that_has_what_the_agent_needs_downloads_nothing(place: Place) -> None:
    place.python(
        before='case "$*" in *"-m pip"*) echo "$*" >>"$TUNE_HOME/pip";; *"-m orchestrator.agent"*) exit 42;; esac'
    )
    done = place.run(PYTHONPATH="/nowhere", VIRTUAL_ENV="/nowhere")
    assert done.returncode == 42, done.stdout + done.stderr
    assert steps(done.stdout) == ["[1/3]", "[2/3]", "[3/3]"]
    assert not (place.home / "pip").exists()
    lib = place.home / "env" / "agent"
    assert (lib / "orchestrator" / "agent" / "supervise.py").is_file()
    assert place.container.processes() == {}
    before = sorted((p, p.stat().st_mtime_ns) for p in lib.rglob("*"))
    again = place.run()
    assert again.returncode == 42
    assert "is there already" in again.stdout
    assert sorted((p, p.stat().st_mtime_ns) for p in lib.rglob("*") if "__pycache__" not in str(p)) == [
        entry for entry in before if "__pycache__" not in str(entry[0])
    ]


def test_a_newer_wheel_replaces_the_older_one_whole(place: Place) -> None:
    place.python(before='case "$*" in *"-m orchestrator.agent"*) exit 42;; esac')
    lib = place.home / "env" / "agent"
    (lib / "orchestrator").mkdir(parents=True)
    (lib / "orchestrator" / "old.py").write_text("")
    (lib / ".stamp").write_text("of another wheel")
    assert place.run().returncode == 42
    assert not (lib / "orchestrator" / "old.py").exists()


def test_pip_installs_exactly_the_pins_beside_the_image_s_own_packages(place: Place) -> None:
    (place.home / "stacks" / "agent.txt").write_text("absent-library==1.2.3\n")
    before = """case "$*" in
*"-m pip --version"*) exit 0 ;;
*"-m pip install"*) printf '%s\\n' "$@" >"$TUNE_HOME/pip"; env >"$TUNE_HOME/pip.env"; exit 0 ;;
*"-m orchestrator.agent"*) exit 42 ;;
esac"""
    place.python(before=before)
    assert place.run(TUNE_PIP_ARGS="--index-url http://mirror/").returncode == 42
    words = (place.home / "pip").read_text().splitlines()
    assert words[:5] == ["-m", "pip", "install", "--index-url", "http://mirror/"]
    assert {"--no-deps", "--only-binary", "--target", str(place.home / "env" / "agent.new")} <= set(words)
    env = dict(line.partition("=")[::2] for line in (place.home / "pip.env").read_text().splitlines())
    assert (env["PIP_NO_INPUT"], env["DEBIAN_FRONTEND"], env["LC_ALL"]) == ("1", "noninteractive", "C.UTF-8")
    for name in ("TMPDIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME"):
        assert env[name].startswith(str(place.home)), "nothing big lands on the small disk"


def signed(place: Place, web: Web) -> None:
    addresses = {
        "log_url": f"{web.url}/bucket/a3/setup.txt?X-Amz-Signature=SIGNATURE-CANARY&X-Amz-Expires=9",
        "exit_url": f"{web.url}/bucket/a3/exit.json?X-Amz-SignedHeaders=host%3Bif-none-match&X-Amz-Signature=SIGNATURE-CANARY",
    }
    path = place.home / "signed.json"
    path.write_text(json.dumps(addresses, indent=1, sort_keys=True) + "\n")
    path.chmod(0o600)


@pytest.mark.parametrize("way", ["curl", "python"])
def test_a_set_up_that_fails_is_heard_though_there_is_no_agent(place: Place, web: Web, way: str) -> None:
    signed(place, web)
    if way == "curl":
        (place.container.bin / "curl").symlink_to(shutil.which("curl") or pytest.skip("there is no curl here"))
    (place.home / "stacks" / "agent.txt").write_text("absent-library==1.2.3\n")
    before = """case "$*" in
*"-m pip --version"*) exit 0 ;;
*"-m pip install"*) echo 'ERROR: no "matching" \\ distribution — für absent-library'; echo x >>"$TUNE_HOME/tries"; exit 1 ;;
esac"""
    place.python(before=before)
    done = place.run()
    assert done.returncode == 1
    assert (place.home / "tries").read_text() == "x\n" * 3
    assert (place.home / "slept").read_text().split() == ["5", "15"]
    log, end = web.asked
    assert (log.method, log.path.partition("?")[0]) == ("PUT", "/bucket/a3/setup.txt")
    assert b"the set-up failed: the agent's packages could not be installed" in log.body
    assert (end.method, end.head.get("if-none-match")) == ("PUT", "*"), "it never overwrites an end"
    record = codec.load(ExitRecord, end.body, where="exit.json")
    assert (record.attempt, record.code, record.outcome) == (3, 1, Outcome.SETUP_FAILED)
    assert record.reason == "the agent's packages could not be installed"
    assert any("absent-library" in line for line in record.tail)
    assert (place.home / "ended").read_text().startswith("setup_failed: ")
    assert "SIGNATURE-CANARY" not in place.log + done.stdout + done.stderr


def test_an_address_that_is_as_good_as_a_key_is_no_argument(place: Place, web: Web) -> None:
    signed(place, web)
    curl = shutil.which("curl") or pytest.skip("there is no curl here")
    place.container.program("curl", f'printf "%s\\n" "$@" >>"$TUNE_HOME/curl"\nexec {curl} "$@"\n')
    shutil.rmtree(place.home / "wheel")
    assert place.run().returncode == 1
    assert len(web.asked) == 2
    assert "SIGNATURE" not in (place.home / "curl").read_text()


def test_where_an_agent_has_been_at_work_no_failure_is_final(place: Place, web: Web) -> None:
    signed(place, web)
    (place.home / "state").mkdir()
    (place.home / "state" / "counters.json").write_text("{}")
    shutil.rmtree(place.home / "wheel")
    assert place.run().returncode == 1
    assert web.asked == []
    assert not (place.home / "ended").exists()


def test_without_python_and_without_a_way_to_get_one_it_ends_at_once(bare: Place) -> None:
    done = bare.run()
    assert done.returncode == 1
    assert "none could be installed" in (bare.home / "ended").read_text()


@pytest.mark.parametrize("user", ["root", "somebody"])
def test_python_comes_from_the_distribution_without_a_question(bare: Place, user: str) -> None:
    fake = f'[ "$1" = -m ] && [ "$2" = orchestrator.agent ] && exit 42; exec {sys.executable} "$@"'
    installs = f"""echo "$DEBIAN_FRONTEND $*" >>"$TUNE_HOME/apt"
case "$*" in *" install "*)
    printf '%s\\n' '#!/bin/sh' '{fake}' >'{bare.container.bin}/python3' && chmod 755 '{bare.container.bin}/python3' ;;
esac
"""
    (bare.container.bin / "chmod").symlink_to(str(shutil.which("chmod")))
    bare.container.program("apt-get", installs)
    (bare.container.bin / "id").unlink()
    bare.container.program("id", f"echo {0 if user == 'root' else 1000}\n")
    if user != "root":
        bare.container.program("sudo", 'echo "$*" >>"$TUNE_HOME/sudo"\n[ "$1" = -n ] && shift\nexec "$@"\n')
    assert bare.run().returncode == 42, bare.log
    apt = (bare.home / "apt").read_text().splitlines()
    assert apt[0].endswith(" update")
    assert apt[1].startswith("noninteractive ")
    assert " install -y --no-install-recommends python3 " in apt[1]
    assert (bare.home / "sudo").exists() == (user != "root")


def test_an_image_s_python_that_is_too_old_stays_as_it_is(bare: Place) -> None:
    old = """case "$*" in
*"-m pip install"*) mkdir -p "$TUNE_HOME/env/uv/bin"; cp "$TUNE_HOME/uv" "$TUNE_HOME/env/uv/bin/uv"; exit 0 ;;
esac
exit 1
"""
    bare.container.program("python3", old)
    uv = f"""#!/bin/sh
for last; do :; done
mkdir -p "$last/bin"
printf '%s\\n' '#!/bin/sh' '[ "$2" = orchestrator.agent ] && exit 42' 'exec {sys.executable} "$@"' >"$last/bin/python"
chmod 755 "$last/bin/python"
"""
    (bare.home / "uv").write_text(uv)
    (bare.home / "uv").chmod(0o755)
    (bare.container.bin / "chmod").symlink_to(str(shutil.which("chmod")))
    assert bare.run().returncode == 42, bare.log
    assert (bare.home / "env" / "python" / "bin" / "python").exists()
    assert bare.container.bin.joinpath("python3").read_text().endswith(old)


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_every_shell_can_read_the_scripts(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    words = [program, "sh"] if shell == "busybox" else [program]
    for script in (SCRIPT, start_command()):
        subprocess.run([*words, "-n"], input=script.encode(), check=True)


def test_what_travels_is_small_and_says_its_modes() -> None:
    baggage = bootstrap.elsewhere()
    assert sum(len(data) for data, _ in baggage.files.values()) < 400_000
    assert {f"wheel/{wheel.file_name()}", "bootstrap.sh", "stacks/agent.txt", "stacks/trl.txt"} <= set(baggage.files)
    assert all(stat.S_IMODE(mode) == mode for _, mode in baggage.files.values())


def whole(stage: Stage, farewell: str = "", **changes: object) -> Mapping[str, str]:
    """An instance as bootstrap leaves it, up to agent.sh."""
    expect = Expected(disk_gb=0.5)
    home = stage.instance(environment="auto", stack="test", expect=expect, **changes)
    config = home.config.read_bytes()
    pack(home.root, **{"stacks/test.txt": f"pydantic=={version('pydantic')}\n"})
    home.config.write_bytes(config)
    (home.root / "agent.sh").write_bytes(bootstrap.elsewhere().agent_script)
    if farewell:
        (home.root / "farewell.sh").write_text(farewell)
    return {"PATH": f"{BIN}:/usr/bin:/bin", "PIP_NO_INDEX": "1"}


def test_the_whole_life_of_an_instance_from_its_baggage_to_its_end(stage: Stage) -> None:
    make_run(stage.store, {"steps": 4, "save_every": 2})
    env = whole(stage, 'echo "$1" >>"$TUNE_HOME/said"\n')
    home = stage.homes[0]
    said = home.root / "said"
    stage.boot(home, **env, TUNE_FAREWELL='sh "$TUNE_HOME/farewell.sh" end')
    stage.wait(lambda: said.exists() and "end" in said.read_text(), 60)
    record = stage.exit_record()
    assert (record.code, record.outcome) == (0, Outcome.SUCCEEDED), stage.explain(home)
    assert said.read_text().split()[:2] == ["look", "end"]
    beat = stage.heartbeat()
    assert beat is not None and beat.can_end_itself
    assert json.loads((home.state / "environment.json").read_text())["how"] == "image"
    assert (home.root / "env" / "agent" / "orchestrator" / "agent" / "supervise.py").is_file()
    assert not home.secrets.exists()


def test_a_host_that_disappoints_says_so_and_is_given_back(stage: Stage, tmp_path: Path) -> None:
    make_run(stage.store, {"steps": 4})
    home = stage.instance(expect=Expected(gpu_count=1, gpu_name="RTX4090"))
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices were found'; exit 6\n")
    (folder / "nvidia-smi").chmod(0o755)
    record = stage.finish(home, PATH=f"{folder}:/usr/bin:/bin")
    assert record.outcome is Outcome.HOST_FAULT
    assert "1 GPUs expected, but nvidia-smi says: No devices were found" in record.reason
    assert not home.job.exists(), "nothing was downloaded"
