"""What a check has found: the words of `tune doctor`, and of everything that is looked at before money is spent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.errors import OutcomeUnknown, ProviderUnavailable, TuneError

OK, NOTE, WARN, FAIL = "ok", "note", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    status: str  # ok | note | warn | fail
    what: str
    text: str
    hint: str = ""
    kind: type[TuneError] = TuneError  # of the error that a failure is

    @property
    def exit_code(self) -> int:
        return self.kind.exit_code

    @classmethod
    def of(cls, what: str, error: TuneError) -> Finding:
        """A failure, from the error that says so."""
        return cls(FAIL, what, error.message, error.hint, type(error))


def refuse(findings: Iterable[Finding], *, title: str) -> None:
    """Raise every failure as one error; its exit code is the first one's."""
    failed = [finding for finding in findings if finding.status == FAIL]
    if not failed:
        return
    kind = ProviderUnavailable if issubclass(failed[0].kind, OutcomeUnknown) else failed[0].kind
    if len(failed) == 1:
        raise kind(failed[0].text, hint=failed[0].hint)
    lines = [f"{f.what}: {f.text}" + (f"; {f.hint}" if f.hint else "") for f in failed]
    raise kind("\n  ".join([f"{title}: {len(failed)} problems", *lines]))
