"""What an attempt has left in the bucket, folded into the record."""

from __future__ import annotations

from orchestrator.outcomes import amended
from orchestrator.types import ExitRecord, Outcome, Phase
from tests.unit.cases import ended, run


def test_bad_news_from_before_a_resume_changes_no_attempt_and_good_news_does() -> None:
    reopened = run(Phase.PENDING, ended(1, Outcome.PREEMPTED), attempts_at_resume=1)
    failed = amended(reopened, {1: ExitRecord(1, 1, Outcome.USER_ERROR, "the recipe failed")}, None)
    assert (failed.attempts[0].outcome, failed.attempts[0].exit_code) == (Outcome.PREEMPTED, 1)
    done = amended(reopened, {1: ExitRecord(1, 0, Outcome.SUCCEEDED, "the last step")}, None)
    assert done.attempts[0].outcome is Outcome.SUCCEEDED
