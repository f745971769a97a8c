"""A container as the boot script meets it: a home of its own, a bare environment, and everything in it ended afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.agent.processes import look
from orchestrator.handover import start_command
from orchestrator.providers.boot import Farewell
from orchestrator.types import LaunchSpec, Token

TOKEN = Token("tune-abcdef-1sjnsbkkw4-a1")
MARK = "TUNE_TEST_CONTAINER"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKq2Gk0pT9s7mC2Vd4h1yX8wZ5u3n6b0r7e9f1a2c3d4 tune-1sjnsbkkw4"
VAST = Farewell("CONTAINER_ID", "CONTAINER_API_KEY", "https://console.vast.ai/api/v0/instances/{id}/")
RUNPOD = Farewell(
    "RUNPOD_POD_ID",
    "RUNPOD_API_KEY",
    "https://api.runpod.io/v2/pods/{id}",
    "https://api.runpod.io/graphql",
    '{"query":"mutation End($input: PodTerminateInput!) { podTerminate(input: $input) }",'
    '"variables":{"input":{"podId":"{id}"}}}',
)


def spec(**changes: object) -> LaunchSpec:
    given: dict[str, object] = {
        "start_command": start_command(),
        "deadline_s": 3600.0,
        "env": {"TUNE_DEADLINE_S": "3600"},
        "public_key": PUBLIC_KEY,
        "proof_secret": "5e" * 32,
    }
    return LaunchSpec(**{**given, **changes})  # type: ignore[arg-type]


class Container:
    """What runs in it carries its mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / 'root données "$(touch p)"'
        self.bin = folder / "bin"
        for path in (self.home, self.bin):
            path.mkdir(parents=True)
        self.children: list[subprocess.Popen[bytes]] = []

    @property
    def tune_home(self) -> Path:
        return Path((self.home / ".tune" / TOKEN).read_text().rstrip("\n"))

    def environment(self, path: str = "/usr/bin:/bin", **more: str) -> dict[str, str]:
        return {"PATH": f"{self.bin}:{path}", "HOME": str(self.home), "LANG": "C", MARK: str(self.folder), **more}

    def program(self, name: str, script: str) -> Path:
        """One that comes before the system's in the PATH."""
        path = self.bin / name
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        return path

    def spawn(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            argv,
            env=env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.children.append(child)
        return child

    def run(self, script: str, *, shell: str = "/bin/sh", **env: str) -> None:
        done = subprocess.run(
            [shell, "-c", script],
            env=self.environment(**env),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
        assert done.stderr == b"", done.stderr

    def processes(self) -> dict[int, str]:
        """Everything in the container, by pid; its command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if os.fsencode(f"{MARK}={self.folder}") in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if line:
                        found[int(entry.name)] = line
        return found

    def loops(self) -> list[int]:
        """The start command's; a shell that forks to ask for the time looks like itself for a moment."""
        alike = [pid for pid, line in self.processes().items() if "/start.sh" in line and line.startswith("sh ")]
        parents = {pid: process.parent for pid in alike if (process := look(pid))}
        return [pid for pid in alike if pid in parents and parents[pid] not in alike]

    def power_off(self) -> None:
        for _ in range(200):
            alive = self.processes()
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for child in self.children:
                child.poll()
            if not alive:
                return
            time.sleep(0.01)
        raise AssertionError(f"immortal: {self.processes()}")

    def wait(self, until: Callable[[], object], within_s: float = 30) -> None:
        give_up = time.monotonic() + within_s
        while not until():
            assert time.monotonic() < give_up, f"waited in vain; there run {self.processes()}"
            time.sleep(0.02)
