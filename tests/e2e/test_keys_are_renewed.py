"""A rented run on a bucket that obeys its session policies: the instance's keys open one run, and are renewed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator import keys
from orchestrator.types import Outcome, Phase
from tests.assets.tiny import Tiny
from tests.cloud.world import ROOT, CloudDesk, cloud_desk
from tests.e2e.losing import NAME, in_training
from tests.e2e.test_resume_equals_uninterrupted import at_step

pytestmark = [pytest.mark.train, pytest.mark.slow]

SOON = timedelta(seconds=70)  # after a minute keys that live for a quarter of an hour are due


@pytest.fixture
def desk(tmp_path: Path, tiny_assets: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudDesk]:
    with cloud_desk(tmp_path, tiny_assets, markets=["vastai"], keys=monkeypatch.setenv) as made:
        with made.config.open("a") as config:
            config.write("grant_hours = 0.25\n")
        yield made


def test_an_instance_does_its_work_with_keys_to_one_run_that_are_renewed_on_the_way(
    desk: CloudDesk,
) -> None:
    s3 = desk.s3
    watching = desk.spawn("launch", str(desk.recipe(steps=1500)), "--name", NAME)
    desk.wait_for(lambda: in_training(at_step(5))(desk))
    before = set(s3.holders)
    s3.skew = SOON
    desk.wait_for(lambda: _on_the_instance(desk) not in {"", *before})
    s3.expire_tokens(spare=_on_the_instance(desk))
    assert watching.wait(timeout=300) == 0, (desk.root / "spawned-0.log").read_text()

    run = desk.run(NAME)
    assert (run.phase, [a.outcome for a in run.attempts]) == (Phase.SUCCEEDED, [Outcome.SUCCEEDED])
    policies = [json.loads(asked["Policy"]) for asked in s3.issued]
    prefix = f"{ROOT.removeprefix('s3://')}/{keys.run(run.run_id)}"
    theirs = [policy for policy in policies if run.run_id in json.dumps(policy)]
    assert {policy["Statement"][0]["Resource"] for policy in theirs} == {f"arn:aws:s3:::{prefix}*"}
    by_instance = [request for request in s3.requests if request.token]
    assert {"PutObject", "GetObject", "ListObjectsV2"} <= {request.action for request in by_instance}
    assert desk.instances() == []
    assert desk.sightings() == []


def _on_the_instance(desk: CloudDesk) -> str:
    """The id of the key that lies there now."""
    home = desk.home_of(NAME, 1)
    try:
        return str(json.loads((home / "storage.json").read_bytes())["access_key_id"]) if home else ""
    except (OSError, ValueError):
        return ""
