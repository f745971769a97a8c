"""One specimen of every persisted record, with a value in every field: `python -m tests.meta.records` writes the golden files.

A golden file is written once, when a format is born. If a test says that one differs, the format has changed: old buckets
are full of the old one, so either keep reading and writing it, or count `format` up and read both.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator import codec
from orchestrator.handover import AgentConfig, Expected, JobFile, JobFiles, JobSpec, Snapshot, TrainerConfig
from orchestrator.storage.runs import NameClaim
from orchestrator.types import (
    ArtifactManifest,
    Attempt,
    Bill,
    CheckpointManifest,
    ExitRecord,
    Heartbeat,
    InstanceId,
    Limits,
    Namespace,
    Offer,
    Outcome,
    Phase,
    Requirements,
    Run,
    RunId,
    StoredFile,
    Token,
)

GOLDEN = Path(__file__).parent / "golden"
T = datetime(2026, 11, 30, 20, 22, 37, 125000, tzinfo=UTC)
FILE = StoredFile("adapter_model.safetensors", "runs/1sjnsbkkw4/a1/blobs/" + "ab" * 32, 1234, "ab" * 32)
OFFER = Offer(
    "local",
    "o-1",
    Decimal("0.4123"),
    True,
    "RTX 4090",
    1,
    24.0,
    100.0,
    64.0,
    "host-7",
    idle_usd_per_hour=Decimal("0.0123"),
    starting_bills=False,
    download_usd_per_gb=Decimal("0.002"),
    upload_usd_per_gb=Decimal("0.003"),
    cuda=12.8,
    compute_capability=8.9,
    download_mbps=800.0,
    upload_mbps=400.0,
    reliability=0.99,
    region="DE",
    lasts_s=864000.0,
    details={"bid": "0.40"},
)
ATTEMPT = Attempt(
    number=2,
    token=Token("tune-f8rj9t-1sjnsbkkw4-a2"),
    provider="local",
    offer=OFFER,
    intended_at=T,
    quiet_after=T,
    instance_id=InstanceId("local-12ab"),
    created_at=T,
    first_seen_at=T,
    running_at=T,
    missing_since=T,
    silent_since=T,
    ended_at=T,
    terminate_asked_at=T,
    outcome=Outcome.PREEMPTED,
    reason="the instance is gone",
    last_step=41,
    bootstrapped_at=T,
    refused=True,
    exit_code=75,
    usd_per_hour=Decimal("0.4100"),
    host_id="host-7",
    stopped_at=T,
    keys_at=T,
    keys_until=T,
    bill=Bill(Decimal("0.3"), Decimal("0.01"), Decimal("0.02"), Decimal("0.005"), is_final=True),
)
RUN = Run(
    run_id=RunId("1sjnsbkkw4"),
    name="nächtlich 训练",
    namespace=Namespace("f8rj9t"),
    created_at=T,
    recipe_sha256="cd" * 32,
    data_sha256="ef" * 32,
    provider="local",
    phase=Phase.RUNNING,
    attempts=(ATTEMPT,),
    phase_since=T,
    phase_deadline=T,
    claim_until=T,
    not_before=T,
    waiting_for="capacity",
    stop_requested_at=T,
    stop_now=True,
    request="save_and_exit",
    request_until=T,
    request_outcome=Outcome.BUDGET,
    resumes=1,
    resumed_at=T,
    attempts_at_resume=1,
    outcome=Outcome.BUDGET,
    reason="the budget is used up",
    excluded_hosts=("host-3",),
    excluded_offers=("o-0",),
    want=Requirements(
        1,
        24.0,
        100.0,
        32.0,
        "require",
        Decimal("0.60"),
        gpu_names=("RTX4090",),
        min_cuda=12.8,
        download_gb=20.0,
        upload_gb=5.0,
        expected_hours=3.5,
        image="org/image:1",
    ),
    environment="pinned",
    needs=("HF_TOKEN",),
    limits=Limits(budget_usd=Decimal("6.00"), deadline_s=43200.0),
    writer="0011223344556677",
)
COMMON: dict[str, Any] = {
    "run_id": "1sjnsbkkw4",
    "step": 40,
    "max_steps": 60,
    "attempt": 1,
    "created_at": T,
    "files": (FILE,),
    "recipe_sha256": "cd" * 32,
    "data_sha256": "ef" * 32,
    "versions": {"torch": "2.13.0"},
}
RECORDS: dict[str, object] = {
    "run": RUN,
    "checkpoint": CheckpointManifest(
        **COMMON, micro_batch_size=2, gradient_accumulation_steps=4, world_size=2, loss=1.25
    ),
    "artifact": ArtifactManifest(**COMMON, metrics={"train_loss": 1.25, "tokens": 4096, "note": None, "kind": "lora"}),
    "heartbeat": Heartbeat(
        attempt=1,
        seq=9,
        stage="training",
        step=12,
        max_steps=60,
        loss=2.5,
        learning_rate=2e-4,
        tokens_per_s=812.5,
        losses=(3.0, 2.5),
        checkpoint_step=10,
        checkpoint_age_s=4.5,
        restored_step=5,
        restored_from="runs/1sjnsbkkw4/ckpt/5-a1.json",
        notes=("batch halved",),
        trainer_starts=2,
        agent_starts=1,
        disk_free_gb=51.5,
        ram_used_gb=2.5,
        gpus=({"memory_used_gib": 11.5, "utilisation": 0.93},),
        can_end_itself=True,
        ends_at_latest_s=3600.0,
        micro_batch_size=1,
        gradient_accumulation_steps=8,
    ),
    "exit": ExitRecord(1, 76, Outcome.OOM, "out of memory", 12, 60, ("last line",)),
    "name": NameClaim("nächtlich 训练", RunId("1sjnsbkkw4"), "cd" * 32, "ef" * 32),
    "files": JobFiles((JobFile("trainer/job.json", 10, "ab" * 32),)),
    "job": JobSpec("trl", ("{python}", "{job}/train.py"), {"lora_r": 8}, 2, 4, {"OMP_NUM_THREADS": "1"}),
    "agent": AgentConfig(
        "1sjnsbkkw4",
        2,
        "s3://b/p",
        "cd" * 32,
        "ef" * 32,
        {"region": "auto"},
        "/venv/bin/python",
        environment="auto",
        stack="trl",
        expect=Expected(1, "RTX4090", 24.0, 12.8, 100.0),
    ),
    "trainer": TrainerConfig({"lora_r": 8}, "/j", "/w", "/w/out", "/w/s", "/w/f", "/w/c", "/w/e", 2, 4, 1200.0, "/r"),
    "snapshot": Snapshot(40, 60, {"optimizer.pt": 99}, 2, 1.25, {"torch": "2.13.0"}, {"tokens": 4096}),
}


def unset(record: Any) -> list[str]:
    """Fields that a specimen leaves at nothing: there a change of format would go unnoticed."""
    return [f.name for f in fields(record) if getattr(record, f.name) in (None, "", (), {}) and f.name != "format"]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, record in RECORDS.items():
        path = GOLDEN / f"{name}.json"
        if not path.exists() or "--again" in sys.argv:
            path.write_bytes(codec.dump(record))
