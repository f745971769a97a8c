"""A writer may be killed at any call; the record is the old one or the new one, never lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_state_survives_two_hundred_kills_at_write_calls(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.storage.doomed", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert sum(part["killed"] for part in report.values()) >= 200
    for name in ("create", "save", "end", "reopen"):
        assert report[name]["old"] > 0, f"{name}: no kill came before the change"
        assert report[name]["new"] > 0, f"{name}: no kill came after the change"
    assert report["drawn"]["saved"] > 0
