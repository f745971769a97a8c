"""What an instance runs from its first boot on. Plain sh, and it never gives up."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator import handover
from tests.agent.stage import Stage

SHELLS = [path for path in ("/bin/sh", "/bin/dash", "/bin/bash") if Path(path).exists()]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_can_read_it(shell: str) -> None:
    subprocess.run([shell, "-n"], input=handover.start_command().encode(), check=True)


def start(stage: Stage, agent: str | None, **env: str) -> tuple[Path, subprocess.Popen[bytes]]:
    home = stage.instance()
    (home.root / "agent.sh").unlink()
    if agent is not None:
        (home.root / "agent.sh").write_text(agent)
    return home.root, stage.boot(home, **env)


def test_it_waits_for_the_agent_runs_it_and_runs_it_again_when_it_dies(stage: Stage) -> None:
    root, _ = start(stage, None)
    stage.wait((root / "deadline").exists)
    (root / "agent.sh").write_text('echo "$$" >> "$TUNE_HOME/pids"; exec sleep 600\n')
    stage.wait((root / "pids").exists)
    first = int((root / "pids").read_text())
    os.kill(first, signal.SIGKILL)
    stage.wait(lambda: len((root / "pids").read_text().split()) == 2)
    assert "code 137" in (root / "log" / "agent.out").read_text()


def test_the_deadline_is_set_once_and_kept(stage: Stage) -> None:
    root, child = start(stage, None, TUNE_DEADLINE_S="1000")
    stage.wait((root / "deadline").exists)
    deadline = int((root / "deadline").read_text())
    assert 990 < deadline - time.time() <= 1001
    stage.kill_everything()
    child.wait()
    stage.boot(stage.homes[0], TUNE_DEADLINE_S="5")
    time.sleep(0.3)
    assert int((root / "deadline").read_text()) == deadline


@pytest.mark.parametrize("rubbish", ["", "soon\n", "12x\n"])
def test_a_torn_deadline_is_set_anew(stage: Stage, rubbish: str) -> None:
    home = stage.instance()
    home.deadline.write_text(rubbish)
    stage.boot(home, TUNE_DEADLINE_S="1000.5")
    stage.wait(lambda: home.deadline.read_text().strip().isdigit())


def test_at_the_deadline_it_says_farewell_again_and_again_even_if_the_agent_hangs(stage: Stage) -> None:
    agent = 'trap "" TERM; echo up >> "$TUNE_HOME/up"; sleep 600 & wait; sleep 600\n'
    root, _ = start(stage, agent, TUNE_DEADLINE_S="2", TUNE_FAREWELL='echo bye >> "$TUNE_HOME/bye"; exit 3')
    stage.wait((root / "up").exists)
    assert not (root / "bye").exists()
    stage.wait(lambda: (root / "bye").exists() and len((root / "bye").read_text().splitlines()) == 2, 20)
    assert "farewell command left with code 3" in (root / "log" / "agent.out").read_text()


def test_an_agent_that_is_done_is_not_run_again(stage: Stage) -> None:
    root, child = start(stage, 'echo x >> "$TUNE_HOME/runs"; echo done > "$TUNE_HOME/ended"\n')
    assert child.wait(20) == 0, "without a farewell there is nothing to wait for"
    assert (root / "runs").read_text() == "x\n"


def test_stopped_from_outside_it_lets_the_agent_save_first(stage: Stage) -> None:
    agent = """trap 'sleep 1; echo saved > "$TUNE_HOME/saved"; exit 0' TERM
echo up > "$TUNE_HOME/up"
while :; do sleep 0.1; done
"""
    root, child = start(stage, agent)
    stage.wait((root / "up").exists)
    child.terminate()
    assert child.wait(20) == 143
    assert (root / "saved").exists()
