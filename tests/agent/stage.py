"""A run in a bucket, an instance's folder, and the real agent as a process: what the agent's tests stand on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator import codec, handover, keys
from orchestrator.agent.home import Home
from orchestrator.errors import ObjectNotFound, StorageError
from orchestrator.handover import AgentConfig, JobFile, JobFiles, JobSpec
from orchestrator.storage.base import Store
from orchestrator.storage.open import open_store
from orchestrator.types import (
    ArtifactManifest,
    Attempt,
    CheckpointManifest,
    ExitRecord,
    Heartbeat,
    Namespace,
    Offer,
    Phase,
    Run,
    RunId,
    Token,
)

STUB = Path(__file__).with_name("stub_trainer.py")
RUN_ID = "0123456789"
CANARY = "s3cr3t-CANARY/value+1"


def attempt(number: int, at: Any) -> Attempt:
    return Attempt(
        number=number,
        token=Token(f"tune-abcdef-{RUN_ID}-a{number}"),
        provider="local",
        offer=Offer("local", "o", Decimal(0), spot=False),
        intended_at=at,
        quiet_after=at,
    )


def make_run(store: Store, plan: dict[str, Any], *, extra: dict[str, bytes] | None = None, micro: int = 4) -> None:
    """What `tune launch` leaves in the bucket."""
    now = store.now()
    spec = JobSpec(
        trainer="stub",
        argv=("{python}", "{job}/trainer/stub_trainer.py"),
        settings={"base_model": "some/base", "adapter": "lora", "datasets": [{"path": "d.jsonl"}], "plan": plan},
        micro_batch_size=micro,
        gradient_accumulation_steps=2,
        env={"STUB_JOB": "{job}"},
    )
    files = {
        "recipe.yaml": b"base_model: some/base\n",
        "trainer/job.json": codec.dump(spec),
        "trainer/stub_trainer.py": STUB.read_bytes(),
        **(extra or {}),
    }
    for name, data in files.items():
        store.put(keys.file(RUN_ID, name), data)
    listed = tuple(JobFile(n, len(d), sha256(d).hexdigest()) for n, d in files.items())
    store.put(keys.files_manifest(RUN_ID), codec.dump(JobFiles(listed)))
    run = Run(
        run_id=RunId(RUN_ID),
        name="r",
        namespace=Namespace("abcdef"),
        created_at=now,
        recipe_sha256="r" * 64,
        data_sha256="d" * 64,
        provider="local",
        phase=Phase.RUNNING,
        attempts=(attempt(1, now - timedelta(seconds=5)),),
    )
    store.put(keys.record(RUN_ID), codec.dump(run))


class Stage:
    """One bucket and any number of instances, one after the other or beside each other."""

    def __init__(self, under: Path) -> None:
        self.under = under
        self.url = f"file://{quote(str(under / 'bucket'))}"
        self.store = open_store(self.url)
        self.children: list[subprocess.Popen[bytes]] = []
        self.homes: list[Home] = []

    def instance(self, number: int = 1, *, secrets: dict[str, str] | None = None, **config: Any) -> Home:
        """A booted instance with everything the bootstrap puts there."""
        home = Home(self.under / f"inst'ance\n$(touch p)-{number}")
        home.root.mkdir(exist_ok=True)
        settings: dict[str, Any] = {
            "heartbeat_s": 0.2,
            "log_every_s": 0.3,
            "hang_timeout_s": 20.0,
            "save_and_exit_s": 5.0,
            "upload_grace_s": 20.0,
        }
        made = AgentConfig(
            run_id=RUN_ID,
            attempt=number,
            storage_url=self.url,
            recipe_sha256="r" * 64,
            data_sha256="d" * 64,
            **{**settings, **config},
        )
        home.config.write_bytes(codec.dump(made))
        if secrets:
            home.secrets.write_text(json.dumps(secrets))
            home.secrets.chmod(0o600)
        agent = f'exec "{sys.executable}" -m orchestrator.agent --home "$TUNE_HOME"\n'
        (home.root / "agent.sh").write_text(agent)
        self.homes.append(home)
        return home

    def environment(self, home: Home, **more: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k not in {"TUNE_FAREWELL", "TUNE_DEADLINE_S", "LC_ALL"}}
        return {**env, "TUNE_HOME": str(home.root), "LANG": "C", **more}

    def agent(self, home: Home, **env: str) -> subprocess.Popen[bytes]:
        """The agent alone."""
        return self._spawn([sys.executable, "-m", "orchestrator.agent", "--home", str(home.root)], home, env)

    def boot(self, home: Home, **env: str) -> subprocess.Popen[bytes]:
        """The start command, as an instance runs it."""
        more = {"TUNE_DEADLINE_S": "3600", **env}
        return self._spawn(["/bin/sh", "-c", handover.start_command()], home, more)

    def _spawn(self, argv: list[str], home: Home, env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (home.root / "stderr").open("ab") as errors:
            child = subprocess.Popen(
                argv,
                env=self.environment(home, **env),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        self.children.append(child)
        return child

    def finish(self, home: Home, within_s: float = 30, **env: str) -> ExitRecord:
        """Run the agent to its end; its exit record."""
        child = self.agent(home, **env)
        assert child.wait(within_s) == 0, self.explain(home)
        return self.exit_record(int(home.root.name.rpartition("-")[2]))

    def wait(self, until: Any, within_s: float = 20, why: str = "") -> None:
        give_up = time.monotonic() + within_s
        while not until():
            assert time.monotonic() < give_up, f"waited for {why or until} in vain\n" + "\n".join(
                self.explain(h) for h in self.homes
            )
            time.sleep(0.02)

    def explain(self, home: Home) -> str:
        texts = []
        for path in (home.agent_log, home.trainer_log, home.root / "stderr", home.root / "log" / "agent.out"):
            with suppress(OSError):
                texts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(texts)

    def exit_record(self, number: int = 1) -> ExitRecord:
        where = keys.exit_record(RUN_ID, number)
        return codec.load(ExitRecord, self.store.get(where).data, where=where)

    def heartbeat(self, number: int = 1) -> Heartbeat | None:
        where = keys.heartbeat(RUN_ID, number)
        try:
            return codec.load(Heartbeat, self.store.get(where).data, where=where)
        except ObjectNotFound:
            return None

    def steps(self) -> list[tuple[int, int]]:
        """(attempt, step) of every stored manifest, in order."""
        names = [o.key.rpartition("/")[2] for o in self.store.scan(keys.checkpoints(RUN_ID))]
        return sorted((p[1], p[0]) for p in map(keys.parse_checkpoint, names) if p)

    def manifest(self, step: int, number: int = 1) -> CheckpointManifest:
        where = keys.checkpoint(RUN_ID, step, number)
        return codec.load(CheckpointManifest, self.store.get(where).data, where=where)

    def artifact(self) -> ArtifactManifest:
        where = keys.artifact(RUN_ID)
        return codec.load(ArtifactManifest, self.store.get(where).data, where=where)

    def is_whole(self, manifest: CheckpointManifest | ArtifactManifest) -> bool:
        """Every object is stored with its size and hash."""
        try:
            datas = [(f, self.store.get(f.key).data) for f in manifest.files]
        except StorageError:
            return False
        return all(len(d) == f.size and sha256(d).hexdigest() == f.sha256 for f, d in datas)

    def change_run(self, **changes: Any) -> None:
        where = keys.record(RUN_ID)
        run = codec.load(Run, self.store.get(where).data, where=where)
        self.store.put(where, codec.dump(replace(run, **changes)))

    def next_attempt(self) -> int:
        """The orchestrator has given the instance up and decided upon another one."""
        where = keys.record(RUN_ID)
        run = codec.load(Run, self.store.get(where).data, where=where)
        number = len(run.attempts) + 1
        time.sleep(0.01)
        self.change_run(attempts=(*run.attempts, attempt(number, self.store.now())))
        time.sleep(0.01)
        return number

    def events(self, home: Home, kind: str) -> list[dict[str, Any]]:
        found = []
        for path in sorted(home.work.glob("events-*.jsonl"), key=lambda p: int(p.stem.partition("-")[2])):
            for line in path.read_bytes().split(b"\n")[:-1]:
                event = json.loads(line)
                if event["event"] == kind:
                    found.append(event)
        return found

    def log_text(self, number: int = 1) -> str:
        prefix = f"{keys.attempt(RUN_ID, number)}log/"
        return "".join(self.store.get(o.key).data.decode() for o in self.store.scan(prefix))

    def processes(self) -> dict[int, str]:
        """Whatever belongs to any instance of this stage, by what its environment says."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                stat = (entry / "stat").read_text(errors="replace")
                if os.fsencode(self.under) in (entry / "environ").read_bytes() and ") Z" not in stat:
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
        return found

    def kill_everything(self) -> None:
        """The power is cut."""
        for _ in range(100):
            pids = self.processes()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for child in self.children:
                child.poll()
            if not pids:
                return
            time.sleep(0.01)
        raise AssertionError(f"immortal: {self.processes()}")

    def close(self) -> None:
        self.kill_everything()
        for child in self.children:
            child.wait()
        shutil.rmtree(self.under, ignore_errors=True)
