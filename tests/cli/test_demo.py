"""The demo, with the tiny model in place of the small one: a real training that loses its instance and carries on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from orchestrator.cli.demo import RECIPE, SNIPPET, recipes_folder
from orchestrator.cli.pulling import pull
from orchestrator.errors import UsageError
from orchestrator.storage.local import LocalStore
from orchestrator.types import Outcome, Phase, StoredFile
from tests.e2e.desk import Desk


def test_the_demo_s_recipe_comes_with_the_package() -> None:
    assert (recipes_folder() / RECIPE).is_file()
    compile(SNIPPET.format(folder="adapter", question="What?"), "snippet", "exec")


def test_the_demo_may_be_run_again_it_replaces_only_what_it_has_put_there_itself(tmp_path: Path) -> None:
    store, folder = LocalStore(tmp_path / "bucket"), tmp_path / "adapter"

    def run_with(data: bytes) -> None:
        store.put("blob", data)
        stored = StoredFile("adapter.bin", "blob", len(data), hashlib.sha256(data).hexdigest())
        pull(store, [stored], folder, count=lambda _: None, replace=True)

    run_with(b"first")
    run_with(b"second")
    assert (folder / "adapter.bin").read_bytes() == b"second"
    (folder / "adapter.bin").write_bytes(b"changed by hand")
    with pytest.raises(UsageError, match="in the way"):
        run_with(b"third")


@pytest.mark.train
def test_the_demo_loses_its_instance_half_way_and_carries_on(desk: Desk) -> None:
    recipe = str(desk.recipe(steps=150, tune_checkpoint_every="1s"))
    target = desk.root / "adapter"
    done = desk.tune("--json", "demo", "--recipe", recipe, "--folder", str(target), "--no-answers", timeout_s=550)
    assert done.returncode == 0, done.stderr
    events = {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}
    run = desk.run(events["launched"]["name"])
    assert run.phase is Phase.SUCCEEDED
    assert [attempt.outcome for attempt in run.attempts] == [Outcome.PREEMPTED, Outcome.SUCCEEDED]
    carried = events["carried_on"]
    assert 75 <= carried["restored_step"] < carried["last_step"] == 150
    assert (target / "adapter_model.safetensors").stat().st_size > 0
