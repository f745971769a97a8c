"""The trainer's environment: the image's own interpreter where it has the pinned versions, else one made from them."""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import environment, pins
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.ending import AttemptEnds, Ending
from orchestrator.agent.home import Home, read_json, write_json
from orchestrator.clock import Clock
from orchestrator.handover import AgentConfig
from orchestrator.types import Outcome

_log = logging.getLogger("tune.agent")

_LIMIT_S = 1800.0  # torch and its libraries are 3 GB: at 20 Mbit/s that is 20 minutes
_VENV_S = 180.0
_TRIES = 3
_PAUSE_S = 10.0  # before another try, in which pip goes on from what it has in its cache
_TICK_S = 0.2
# Where images keep the interpreter that their packages are in: Vast.ai's, Unsloth's, Axolotl's, PyTorch's.
_IMAGES = (
    "/venv/main/bin/python",
    "/opt/unsloth-venv/bin/python",
    "/workspace/axolotl-venv/bin/python",
    "/opt/conda/bin/python",
    "/opt/venv/bin/python",
)
CPU_WHEELS = (
    "TUNE_CPU_WHEELS"  # an index of torch without CUDA, which the usual one brings 3 GB of; unset: the usual one
)
# Wheels only: nothing is compiled on rented time, and no package's own code runs while it is installed.
_INSTALL = ("install", "--only-binary", ":all:", "--progress-bar", "off")
_PIP = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}


class Interrupted(Exception):
    """There is a reason to leave before the environment is there."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The interpreter that trains, how it came about, and its versions of the stack's packages."""

    python: str
    how: str  # image | pinned | path
    versions: Mapping[str, str]


def remembered(home: Home) -> Prepared | None:
    """What was prepared for this attempt before, if it is still there."""
    said = read_json(home.state / "environment.json")
    if not said or not Path(str(said.get("python"))).exists():
        return None
    return Prepared(str(said["python"]), str(said.get("how", "")), dict(said.get("versions", {})))


class Setup:
    """Finds or makes it. What pip says goes to the trainer's log, which is stored as it grows."""

    def __init__(
        self,
        home: Home,
        config: AgentConfig,
        bucket: Bucket,
        *,
        clock: Clock,
        note: Callable[[str], None],
        is_over: Callable[[], bool] = lambda: False,
        limit_s: float = _LIMIT_S,
    ) -> None:
        self._home = home
        self._config = config
        self._bucket = bucket
        self._clock = clock
        self._note = note
        self._is_over = is_over
        self._until = clock.monotonic() + limit_s

    def prepare(self) -> Prepared:
        """Raises AttemptEnds (SETUP_FAILED) with what is missing, or Interrupted."""
        known = remembered(self._home)
        if known is not None:
            return known
        try:
            stack = pins.read(self._home.root / "stacks" / f"{self._config.stack}.txt")
        except (OSError, ValueError) as e:
            raise _failed(f"the pinned versions of {self._config.stack or 'no trainer'} cannot be read: {e}") from e
        before = pins.made_with(self._bucket, stack)
        wanted = {**stack, **before}
        if wanted != stack:
            moved = [f"{name} {wanted[name]}" for name in stack if wanted[name] != stack[name]]
            self._note(f"the last checkpoint's versions are kept: {', '.join(moved)}")
        prepared = self._by_kind(stack, wanted)
        told = ", ".join(f"{name} {version}" for name, version in prepared.versions.items())
        _log.info("trains with %s (%s): %s", prepared.python, prepared.how, told)
        state = {"python": prepared.python, "how": prepared.how, "versions": dict(prepared.versions)}
        write_json(self._home.state / "environment.json", state)
        return prepared

    def _by_kind(self, stack: Mapping[str, str], wanted: Mapping[str, str]) -> Prepared:
        kind = self._config.environment
        if kind.startswith("/"):
            return self._given(kind, wanted)
        if kind in {"auto", "image"}:
            found = list(self._candidates(wanted))
            for interpreter in found:
                if not interpreter.unmet(wanted):
                    return Prepared(interpreter.python, "image", interpreter.versions)
            if kind == "image":
                return self._nearest(found, wanted)
        return self._pinned(stack, wanted)

    def _candidates(self, wanted: Mapping[str, str]) -> Iterator[pins.Interpreter]:
        """Interpreters of the image, each once."""
        seen = set()
        for name in (*_IMAGES, "python3", "python", sys.executable):
            path = shutil.which(name)
            if path is None or path in seen:
                continue
            seen.add(path)
            interpreter = pins.ask(path, wanted)
            if interpreter is not None:
                yield interpreter

    def _given(self, python: str, wanted: Mapping[str, str]) -> Prepared:
        interpreter = pins.ask(python, wanted)
        if interpreter is None:
            raise _failed(f"{python} is no Python that can be run here", hint="pinned, or auto")
        return self._taken(interpreter, "path", wanted)

    def _nearest(self, found: Sequence[pins.Interpreter], wanted: Mapping[str, str]) -> Prepared:
        whole = [i for i in found if not i.lacks(wanted)]
        if not whole:
            best = min(found, key=lambda i: len(i.lacks(wanted)), default=None)
            lacking = ", ".join(best.lacks(wanted)) if best else "Python itself"
            raise _failed(f"no interpreter of the image has all packages; missing: {lacking}", hint="pinned, or auto")
        return self._taken(min(whole, key=lambda i: len(i.unmet(wanted))), "image", wanted)

    def _taken(self, interpreter: pins.Interpreter, how: str, wanted: Mapping[str, str]) -> Prepared:
        """As its user wants it. Other versions than the tested ones are said; missing packages end the attempt."""
        lacking = interpreter.lacks(wanted)
        if lacking:
            raise _failed(f"{interpreter.python} lacks {', '.join(lacking)}", hint="pinned, or auto")
        unmet = interpreter.unmet(wanted)
        if unmet:
            self._note(f"{interpreter.python} is not as tested: {'; '.join(unmet)}")
        return Prepared(interpreter.python, how, interpreter.versions)

    def _pinned(self, stack: Mapping[str, str], wanted: Mapping[str, str]) -> Prepared:
        folder = self._home.root / "env" / "trainer"
        python = folder / "bin" / "python"
        stamp = folder / ".pins"
        lines = "".join(f"{name}=={version}\n" for name, version in wanted.items())
        digest = hashlib.sha256(f"{sys.version}\n{lines}".encode()).hexdigest()
        if not (stamp.is_file() and stamp.read_text(encoding="ascii") == digest):
            shutil.rmtree(folder, ignore_errors=True)
            listed = self._home.state / "pins.txt"
            listed.write_text(lines, encoding="ascii")
            pip = self._venv(folder)
            self._slim_torch(pip, wanted)
            self._patiently([*pip, *self._pip_arguments(listed, keeps_stack=wanted == stack)])
            shutil.rmtree(self._home.cache / "pip", ignore_errors=True)  # gigabytes that nobody needs again
        interpreter = pins.ask(str(python), wanted)
        unmet = interpreter.unmet(wanted) if interpreter else ["it cannot be run"]
        if interpreter is None or unmet:
            raise _failed(f"the pinned environment is not as wanted: {'; '.join(unmet)}")
        stamp.write_text(digest, encoding="ascii")
        return Prepared(str(python), "pinned", interpreter.versions)

    def _venv(self, folder: Path) -> list[str]:
        """A new one; returns how to call pip for it. Debian ships Python without what makes a whole one."""
        if self._run([sys.executable, "-m", "venv", str(folder)], _VENV_S) == 0:
            return [str(folder / "bin" / "python"), "-m", "pip"]
        shutil.rmtree(folder, ignore_errors=True)
        if self._run([sys.executable, "-m", "venv", "--without-pip", str(folder)], _VENV_S) != 0:
            raise _failed(f"{sys.executable} cannot make a virtual environment")
        return [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]

    def _slim_torch(self, pip: Sequence[str], wanted: Mapping[str, str]) -> None:
        """Where no GPU is needed, torch by itself from an index of its own, which nothing else is looked for at.

        Were it asked for everything, one that does not answer would cost ten seconds of pip's retries per package.
        Without it, the usual torch comes with the rest.
        """
        expect = self._config.expect
        index = os.environ.get(CPU_WHEELS, "").strip()
        if not index or expect is None or expect.gpu_count > 0 or "torch" not in wanted:
            return
        torch = ["--no-deps", f"torch=={wanted['torch']}", "--extra-index-url", index]
        if self._run([*pip, *_INSTALL, *torch, *_more_arguments()], self._until - self._clock.monotonic()) != 0:
            _log.info("no torch without CUDA could be had")

    def _pip_arguments(self, listed: Path, *, keeps_stack: bool) -> list[str]:
        words = [*_INSTALL, "-r", str(listed)]
        rest = self._home.root / "stacks" / f"{self._config.stack}.rest.txt"  # what the pinned ones need in turn
        if keeps_stack and rest.is_file():
            words += ["-c", str(rest)]
        return words + _more_arguments()

    def _patiently(self, argv: Sequence[str]) -> None:
        for left in reversed(range(_TRIES)):
            code = self._run(argv, self._until - self._clock.monotonic())
            if code == 0:
                return
            if left == 0 or self._clock.monotonic() + _PAUSE_S >= self._until:
                raise _failed(f"the trainer's packages could not be installed: {self._last_words(code)}")
            self._clock.sleep(_PAUSE_S)

    def _run(self, argv: Sequence[str], limit_s: float) -> int | None:
        """Its exit code, or None when its time was up. Nothing of it is left behind."""
        with self._home.trainer_log.open("ab") as log:
            log.write(f"$ {shlex.join(argv)}\n".encode())
            log.flush()
            child = subprocess.Popen(
                argv,
                env=self._environment(),
                cwd=self._home.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = self._clock.monotonic() + limit_s
        try:
            while child.poll() is None:
                if self._is_over():
                    raise Interrupted
                if self._clock.monotonic() >= until:
                    return None
                self._clock.sleep(_TICK_S)
            return child.returncode
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _environment(self) -> dict[str, str]:
        """The trainer's, without its secrets: an installer needs none of them."""
        secrets = read_json(self._home.secrets)
        base = {name: value for name, value in os.environ.items() if name not in secrets}
        return environment.trainer_environment(self._home, base, _PIP, note=self._note)

    def _last_words(self, code: int | None) -> str:
        if code is None:
            return "it took too long"
        with self._home.trainer_log.open("rb") as log:
            log.seek(max(0, self._home.trainer_log.stat().st_size - 4096))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        return (errors or lines or [f"code {code}"])[-1][:300]


def _more_arguments() -> list[str]:
    return shlex.split(os.environ.get("TUNE_PIP_ARGS", ""))


def _failed(reason: str, *, hint: str = "") -> AttemptEnds:
    return AttemptEnds(Ending(Outcome.SETUP_FAILED, 1, f"{reason} (try tune.environment: {hint})" if hint else reason))
