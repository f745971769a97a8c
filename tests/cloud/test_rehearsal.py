"""The marketplaces for a shell beside this one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def rehearse(*names: str, commands: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.cloud", *names],
        input=commands,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
    )


def test_it_tells_the_variables_and_obeys() -> None:
    done = rehearse("vastai", commands="ls\ncost\noutbid 1\nwhat\nquit\nls\n")
    assert (done.returncode, done.stderr) == (0, "")
    exports = dict(re.findall(r"^export (\w+)=(.*)$", done.stdout, re.MULTILINE))
    assert exports["TUNE_VASTAI_API_URL"].startswith("http://127.0.0.1:")
    assert exports["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
    assert exports["TUNE_PROVIDER"] == "vastai" and exports["VAST_API_KEY"]
    answers = done.stdout.splitlines()[-4:]
    assert answers[:2] == ["nothing is rented", "vastai: 0.0000 USD in all"]
    assert answers[2].startswith("no 1 is rented") and answers[3].startswith("ls, cost,")


def test_it_knows_its_marketplaces() -> None:
    done = rehearse("vast", commands="")
    assert done.returncode == 2 and "vastai" in done.stderr
