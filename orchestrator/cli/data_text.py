"""The dataset check in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.recipe.data import DataReport

PROBLEMS_SHOWN = 5


def report_lines(report: DataReport) -> Iterator[str]:
    """Rows, what became of them, lengths, steps."""
    yield f"data: {plural(report.rows_in, 'row')}, {report.rows_used:,} used{_losses(report)}"
    share = report.supervised_tokens / report.tokens if report.tokens else 0
    longest = f"longest row {report.longest:,} of {report.sequence_len:,}"
    yield f"tokens: {report.tokens:,} ({share:.0%} supervised), {longest}, counted with {report.tokenizer}"
    packed = f" packed into {report.packed:,}" if report.packed is not None else ""
    held_out = f", {report.held_out:,} held out" if report.held_out else ""
    source = f"from {plural(report.sequences, 'sequence')}{packed}{held_out}"
    yield f"steps: {report.steps:,} ({report.steps_per_epoch:,} per epoch), {source}"
    yield from (f"note: {notice}" for notice in report.notices)
    for problem in report.problems[:PROBLEMS_SHOWN]:
        place = f"{problem.dataset}:{problem.line}" if problem.line else f"{problem.dataset} row {problem.row}"
        yield f"skipped: {place}: {problem.problem}"
    more = len(report.problems) - PROBLEMS_SHOWN
    if more > 0:
        yield f"skipped: and {more} more"


def _losses(report: DataReport) -> str:
    parts = [
        (report.faulty, "faulty"),
        (report.template_refused, "refused by the chat template"),
        (report.dropped, "too long"),
        (report.truncated, "cut"),
        (report.unsupervised, "with nothing to learn from"),
    ]
    said = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    return f" ({said})" if said else ""
