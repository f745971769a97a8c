"""A desk whose runs train on the simulated cloud, and whose records can be put there by hand."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from orchestrator import codec, keys
from orchestrator.providers.registry import ProviderSettings, get_provider
from orchestrator.storage.local import LocalStore
from orchestrator.types import Run, RunId, new_run_id
from tests.e2e.desk import Desk

QUICK = {"boot_s": 0.2, "step_s": 0.01, "heartbeat_s": 0.2, "poll_s": 0.2, "terminate_lag_s": 0.1, "total_steps": 50}


class SimDesk(Desk):
    """Everything but the training is real: the command line, the records, the passes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.climate()

    def climate(self, **options: float) -> None:
        """How the simulated cloud behaves from now on."""
        lines = [f"{key} = {value}" for key, value in {**QUICK, **options}.items()]
        self.config.write_text(
            f"storage = {json.dumps(self.bucket.as_uri())}\nstate_dir = {json.dumps(str(self.state))}\n"
            'provider = "sim"\n[providers.sim]\n' + "\n".join(lines) + "\n"
        )

    def a_run(self, name: str, **changes: Any) -> Run:
        """A run as `tune launch` leaves it, without the files that only a real trainer needs."""
        store = LocalStore(self.bucket)
        now = changes.pop("created_at", None) or store.now()
        run_id = changes.pop("run_id", None) or new_run_id(now)
        run = Run(
            run_id=RunId(run_id),
            name=name,
            namespace=self.runs.namespace(),
            created_at=now - timedelta(seconds=1),
            recipe_sha256="r" * 64,
            data_sha256="d" * 64,
            provider="sim",
            **changes,
        )
        self.runs.claim_name(name, run.run_id, run.recipe_sha256, run.data_sha256)
        self.runs.create(run)
        if run.phase.is_terminal:
            store.delete(keys.active(run_id))
        return run

    def put(self, key: str, record: object) -> None:
        """Store what an agent would have stored."""
        LocalStore(self.bucket).put(key, record if isinstance(record, bytes) else codec.dump(record))

    def json(self, *args: str, **environment: str) -> Any:
        """The answer of a command that must succeed."""
        done = self.tune("--json", *args, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def cloud(self) -> Any:
        """The simulated cloud of this desk."""
        return get_provider("sim", settings=ProviderSettings(self.state, {"terminate_lag_s": "0.1"})).provider
