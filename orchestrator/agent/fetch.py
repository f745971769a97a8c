"""Brings the run's files from the bucket into `job/`, every one checked."""

from __future__ import annotations

from orchestrator import codec, keys
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.ending import AttemptEnds, Ending
from orchestrator.agent.files import Damaged, download, safe_path
from orchestrator.agent.home import Home
from orchestrator.agent.parallel import in_parallel
from orchestrator.errors import ObjectNotFound, RecordCorrupt
from orchestrator.handover import JobFile, JobFiles, JobSpec
from orchestrator.storage.base import Store
from orchestrator.types import Outcome


def fetch_job(bucket: Bucket, home: Home, *, until: float) -> JobSpec:
    """What to run. Continues where an earlier try stopped; storage that is away is waited for until `until`."""
    run_id = bucket.config.run_id
    where = keys.files_manifest(run_id)
    try:
        listed = codec.load(JobFiles, bucket.patiently(lambda s: s.get(where).data, until=until), where=where)
        in_parallel(lambda file: _fetch(bucket, home, file, until=until), listed.files)
        spec = home.job / "trainer" / "job.json"
        return codec.load(JobSpec, spec.read_bytes(), where="trainer/job.json")
    except (ObjectNotFound, RecordCorrupt, Damaged, ValueError, OSError) as e:
        raise AttemptEnds(
            Ending(Outcome.SETUP_FAILED, 1, f"the run's files cannot be used: {getattr(e, 'message', e)}")
        ) from e


def _fetch(bucket: Bucket, home: Home, file: JobFile, *, until: float) -> None:
    path = safe_path(home.job, file.path)
    key = keys.file(bucket.config.run_id, file.path)

    def once(store: Store) -> None:
        download(store, key, path, size=file.size, sha256=file.sha256, moved=lambda _: None)

    try:
        bucket.patiently(once, until=until)
    except ObjectNotFound:
        raise Damaged(f"{file.path} is missing in the bucket") from None
    except Damaged as e:
        raise Damaged(f"{file.path} {e}") from None
