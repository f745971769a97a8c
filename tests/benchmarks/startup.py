"""Start-up: `tune --help` against an empty two-command typer app and against `python -c pass`, and what it keeps in memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 25
GOAL_RATIO = 1.3
GOAL_RSS_MB = 45
EMPTY_APP = """\
import typer

app = typer.Typer()


@app.command()
def one() -> None:
    "One."


@app.command()
def two() -> None:
    "Two."


app()
"""


def measure(argv: list[str]) -> tuple[float, float]:
    """Seconds and peak resident megabytes of one run."""
    started = time.perf_counter()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    took_s = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, argv
    return took_s, usage.ru_maxrss / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY_APP)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "empty typer app --help": [sys.executable, str(empty), "--help"],
            "tune --help": [sys.executable, "-m", "orchestrator", "--help"],
            "tune ls --help": [sys.executable, "-m", "orchestrator", "ls", "--help"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        memory: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):  # interleaved: whatever else the machine does hits all of them
            for name, argv in commands.items():
                took_s, rss_mb = measure(argv)
                times[name].append(took_s)
                memory[name].append(rss_mb)
    median = {name: statistics.median(taken) for name, taken in times.items()}
    for name in commands:
        print(f"{name:<24} {1000 * median[name]:7.1f} ms  {statistics.median(memory[name]):5.1f} MB")
    to_empty = median["tune --help"] / median["empty typer app --help"]
    to_python = median["tune --help"] / median["python -c pass"]
    print(
        f"tune --help: {to_empty:.2f} x the empty typer app (goal: at most {GOAL_RATIO}), {to_python:.1f} x python -c pass"
    )
    print(f"tune --help: {max(memory['tune --help']):.1f} MB at most (goal: {GOAL_RSS_MB})")


if __name__ == "__main__":
    main()
