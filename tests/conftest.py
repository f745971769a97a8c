"""Every test runs in a world of its own: no caller's keys, no caller's home, no network but loopback, one torch thread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SECRET_NAMES = ("AWS_", "HF_", "RUNPOD_", "VAST_", "WANDB_", "TUNE_", "HUGGING", "OPENAI_", "MLFLOW_", "COMET_")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--live", action="store_true", help="run tests that rent on real accounts")
    parser.addoption("--max-usd", default="0.50", help="what the live tests may spend")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--live"):
        live = [item for item in items if item.get_closest_marker("live")]
        items[:] = [item for item in items if item not in live]
        if live:
            config.hook.pytest_deselected(items=live)


@pytest.fixture(autouse=True)
def _own_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(SECRET_NAMES):
            monkeypatch.delenv(name)
    home = tmp_path / "home-of-the-test"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
