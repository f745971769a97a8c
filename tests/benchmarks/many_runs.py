"""1,000 finished and 50 active runs in one folder: what `tune ls` and `tune reconcile --all` take, in time and storage calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator import codec, keys
from orchestrator.bootstrap import local_agent_script
from orchestrator.cli.commands.ls import DEFAULT_LIMIT
from orchestrator.handover import start_command
from orchestrator.observe import Context
from orchestrator.providers.registry import ProviderSettings, get_provider
from orchestrator.reconcile import reconcile_all
from orchestrator.storage.local import LocalStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import (
    Attempt,
    Heartbeat,
    InstanceId,
    Namespace,
    Offer,
    Outcome,
    Phase,
    Run,
    new_run_id,
    token_for,
)

FINISHED, ACTIVE = 1000, 50


class Counting:
    """A store that counts what is asked of it. A listing of n names counts as S3 bills it: one call per 1,000."""

    def __init__(self, inner: LocalStore) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name == "now":
            return found

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            return found(*args, **kwargs)

        return counted

    def children(self, prefix: str, *, start_after: str = "") -> Iterator[str]:
        names = list(self._inner.children(prefix, start_after=start_after))
        self.calls["list"] += 1 + len(names) // 1000
        return iter(names)

    def scan(self, prefix: str) -> Iterator[Any]:
        found = list(self._inner.scan(prefix))
        self.calls["list"] += 1 + len(found) // 1000
        return iter(found)


def fill(runs: RunStore, finished: int, active: int) -> None:
    """Records as they are after so many launches."""
    namespace, now = runs.namespace(), runs.store.now()
    for n in range(finished + active):
        born = now - timedelta(hours=2 * (finished + active - n))
        run_id = new_run_id(born)
        runs.create(run_of(run_id, namespace, f"run-{n}", born))
        loaded = runs.load(run_id)
        if n < finished:
            runs.save(
                replace(loaded.run, phase=Phase.SUCCEEDED, outcome=Outcome.SUCCEEDED, reason="done"),
                expect=loaded.version,
            )
            continue
        instance = InstanceId(f"local-{n:08x}")
        attempt = Attempt(
            number=1,
            token=token_for(namespace, run_id, 1),
            provider="local",
            offer=Offer(provider="local", offer_id="local", usd_per_hour=Decimal(0), spot=True),
            intended_at=now,
            quiet_after=now,
            instance_id=instance,
            created_at=now,
            first_seen_at=now,
            running_at=now,
        )
        runs.save(replace(loaded.run, phase=Phase.RUNNING, attempts=(attempt,)), expect=loaded.version)
        beat = Heartbeat(attempt=1, seq=1, stage="training", step=10, max_steps=100)
        runs.store.put(keys.heartbeat(run_id, 1), codec.dump(beat))


def run_of(run_id: Any, namespace: Namespace, name: str, born: Any) -> Run:
    return Run(
        run_id=run_id, name=name, namespace=namespace, created_at=born, recipe_sha256="0" * 64, data_sha256="0" * 64,
        provider="local",
    )  # fmt: skip


def reconcile_calls(folder: Path, bucket: Path) -> tuple[Counter[str], int]:
    counting = Counting(LocalStore(bucket))
    provider = get_provider("local", settings=ProviderSettings(folder / "state", {}))
    context = Context(
        runs=RunStore(counting),  # type: ignore[arg-type]
        bound=lambda _name: provider,
        start_command=start_command(),
        agent_script=local_agent_script(),
    )
    done = reconcile_all(context)
    assert not done.errors, done.errors
    return counting.calls, len(done.passes)


def timed(config: Path, *args: str) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "orchestrator", "--config", str(config), *args],
        check=True, stdout=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "HOME": str(config.parent)},
    )  # fmt: skip
    return time.perf_counter() - begun


def main(finished: int = FINISHED, active: int = ACTIVE) -> None:
    for n_finished in (0, finished):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            bucket = folder / "bucket"
            runs = RunStore(LocalStore(bucket))
            fill(runs, n_finished, active)
            config = folder / "config.toml"
            config.write_text(
                f"storage = {json.dumps(bucket.as_uri())}\nstate_dir = {json.dumps(str(folder / 'state'))}\n"
            )
            ls_s, all_s = timed(config, "ls"), timed(config, "ls", "--all")
            calls, passes = reconcile_calls(folder, bucket)
            reconcile_s = timed(config, "reconcile", "--all")
            total = sum(calls.values())
            print(f"{n_finished} finished, {active} active:")
            print(f"  tune ls                {ls_s:6.2f} s   (shows the active ones and {DEFAULT_LIMIT} others)")
            print(f"  tune ls --all          {all_s:6.2f} s")
            print(f"  tune reconcile --all   {reconcile_s:6.2f} s")
            print(
                f"  storage calls of one reconcile pass over {passes} runs: {total} = {total / passes:.1f} per active run; {dict(calls)}"
            )


if __name__ == "__main__":
    main()
