"""The one trainer of this instance: started, found again after a restart of the agent, ended whole."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import codec
from orchestrator.agent import environment, machine, processes
from orchestrator.agent.home import Home, read_json, write_atomically, write_json
from orchestrator.agent.restore import Restored
from orchestrator.clock import Clock
from orchestrator.handover import AgentConfig, JobSpec, TrainerConfig

_JOB_PATH = "{job}/"
_STACKS_WAIT_S = 1.0  # writing every thread's stack takes milliseconds


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the trainer, as `state/trainer.json` remembers it. Without a pid it was only intended."""

    number: int
    marker: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    log_at: int  # where its part of the log begins
    oom_kills: int  # how many there had been before
    restored_step: int | None = None
    restored_from: str = ""
    restored_folder: str = ""
    pid: int = 0
    started: int = 0


class Trainer:
    """A trainer that runs, or has run."""

    def __init__(self, home: Home, start: Start, clock: Clock, child: subprocess.Popen[bytes] | None = None) -> None:
        self.start = start
        self._home = home
        self._clock = clock
        self._child = child

    @property
    def is_alive(self) -> bool:
        """Its keeper lives, and is the one that was started: pids are used again."""
        if self._child is not None:
            self._child.poll()  # reaps it
        process = processes.look(self.start.pid)
        return process is not None and process.started == self.start.started

    @property
    def code(self) -> int | None:
        """Its exit code, once it is gone; None when it vanished without leaving one."""
        try:
            return int(self._home.exit_code(self.start.number).read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            return None

    @property
    def was_oom_killed(self) -> bool:
        return machine.oom_kills() > self.start.oom_kills

    def end(self, *, grace_s: float = 0.0) -> None:
        """Ask it to save and leave where `grace_s` allows, then kill all that is left of it."""
        processes.end(self.start.pid, self.start.marker, clock=self._clock, grace_s=grace_s)
        if self._child is not None:
            self._child.wait()

    def show_stacks(self) -> None:
        """Ask every process of it that knows how for the stacks of its threads, into its log."""
        processes.signal_catchers(self.start.pid, self.start.marker, signal.SIGUSR1)
        self._clock.sleep(_STACKS_WAIT_S)


def adopt(home: Home, *, clock: Clock) -> Trainer | None:
    """The trainer of the last start, alive or not; None if there never was one."""
    start = _read(home)
    if start is None:
        return None
    if start.pid == 0:  # the agent died between starting it and saying so
        leaders = [p for p in processes.everything() if p.pid == p.session and processes.carries(p.pid, start.marker)]
        if leaders:
            start = replace(start, pid=leaders[0].pid, started=leaders[0].started)
            _write(home, start)
    return Trainer(home, start, clock)


def end_leftovers(home: Home, *, clock: Clock) -> None:
    """Kill whatever still runs of any earlier start."""
    last = _read(home)
    for number in range(1, (last.number if last else 0) + 1):
        processes.end(0, _marker(home, number), clock=clock, grace_s=0)
    if last is not None and Trainer(home, last, clock).is_alive:
        processes.end(last.pid, last.marker, clock=clock, grace_s=0)


def next_number(home: Home) -> int:
    """Which start the next one is."""
    last = _read(home)
    return last.number + 1 if last else 1


def launch(
    home: Home,
    config: AgentConfig,
    spec: JobSpec,
    restored: Restored | None,
    *,
    setting: tuple[int, int],
    base_env: Mapping[str, str],
    clock: Clock,
    note: Callable[[str], None],
) -> Trainer:
    """Start it. The intent is on disk first, so that a trainer whose agent died at once is found all the same."""
    number = next_number(home)
    _clear(home)
    words = {"{python}": config.trainer_python or sys.executable, "{job}": str(home.job), "{work}": str(home.work)}
    trainer_config = TrainerConfig(
        settings={key: _placed(value, home) for key, value in spec.settings.items()},
        job_dir=str(home.job),
        work_dir=str(home.work),
        output_dir=str(home.output),
        snapshots_dir=str(home.snapshots),
        final_dir=str(home.final),
        control_dir=str(home.control),
        events_path=str(home.events(number)),
        micro_batch_size=setting[0],
        gradient_accumulation_steps=setting[1],
        checkpoint_every_s=config.checkpoint_every_s,
        resume_from=str(restored.folder) if restored else None,
    )
    write_atomically(home.trainer_config(number), codec.dump(trainer_config))
    home.trainer_log.touch()
    start = Start(
        number=number,
        marker=_marker(home, number),
        micro_batch_size=setting[0],
        gradient_accumulation_steps=setting[1],
        log_at=home.trainer_log.stat().st_size,
        oom_kills=machine.oom_kills(),
        restored_step=restored.step if restored else None,
        restored_from=restored.source if restored else "",
        restored_folder=str(restored.folder) if restored else "",
    )
    _write(home, start)
    job_env = {name: _filled(value, words) for name, value in spec.env.items()}
    child = processes.start(
        [*(_filled(word, words) for word in spec.argv), str(home.trainer_config(number))],
        env=environment.trainer_environment(home, base_env, job_env, note=note),
        marker=start.marker,
        exit_file=home.exit_code(number),
        log=home.trainer_log,
        cwd=home.work,
    )
    process = processes.look(child.pid)
    start = replace(start, pid=child.pid, started=process.started if process else 0)
    _write(home, start)
    return Trainer(home, start, clock, child)


def restored_of(start: Start) -> Restored | None:
    """What this start went on from."""
    if start.restored_step is None:
        return None
    batch = (start.micro_batch_size, start.gradient_accumulation_steps)
    return Restored(start.restored_step, Path(start.restored_folder), start.restored_from, *batch, size=0)


def _clear(home: Home) -> None:
    """Only what is vouched for outlives a trainer: half-made folders would be written into, or taken for good."""
    for folder in (home.output, home.control):
        shutil.rmtree(folder, ignore_errors=True)
    if not home.final_record.exists():  # a trainer killed after its last word finds its result, and only says so again
        shutil.rmtree(home.final, ignore_errors=True)
    for path in home.snapshots.iterdir():
        if path.is_dir() and not path.with_name(f"{path.name}.json").exists():
            shutil.rmtree(path, ignore_errors=True)
    home.control.mkdir(parents=True)
    environment.empty_temporary(home)


def _placed(value: Any, home: Home) -> Any:
    """A setting; a path of the job as it is called on this computer."""
    is_path = isinstance(value, str) and value.startswith(_JOB_PATH)
    return f"{home.job}/{value.removeprefix(_JOB_PATH)}" if is_path else value


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _marker(home: Home, number: int) -> str:
    return f"{home.root.resolve()}#{number}"


def _read(home: Home) -> Start | None:
    said: dict[str, Any] = read_json(home.trainer)
    try:
        return Start(**said) if said else None
    except TypeError:
        return None


def _write(home: Home, start: Start) -> None:
    write_json(home.trainer, asdict(start))
