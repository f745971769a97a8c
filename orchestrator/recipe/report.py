"""What the dataset check found: the figures recorded in the run, and whether the run may start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.errors import Problem
from orchestrator.recipe.model import Recipe
from orchestrator.recipe.tokens import APPROXIMATE

SHOWN_ROWS = 10  # faulty rows that a refusal names one by one; it counts all
SHOWN_REASONS = 8
_FIRST_EDGE = 32


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that cannot be trained on: where, and why."""

    dataset: str
    row: int
    line: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class DatasetCount:
    """What one entry of the recipe holds."""

    path: str
    type: str
    rows: int
    used: int
    held_out: bool = False


@dataclass(frozen=True, slots=True)
class LengthBin:
    """How many rows have at most so many tokens, and more than the bin before."""

    up_to_tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class DataReport:
    """What the data is, as recorded in the run."""

    data_sha256: str  # of the rows in order, and of how their fields are read
    cache_key: str  # of everything that decides the tokens: data, tokenizer, chat template, lengths, flags
    tokenizer: str  # its name, or "approximate"
    sequence_len: int
    excess_length_strategy: str
    rows_in: int
    rows_used: int
    faulty: int  # not readable, or not of the declared shape
    template_refused: int
    dropped: int  # longer than sequence_len
    truncated: int
    split: int  # plain text cut into several sequences
    unsupervised: int  # nothing in them to learn from
    supervised_share: float  # of readable rows: those with something to learn from
    sequences: int  # what is trained on, before packing
    held_out: int  # sequences kept for evaluation
    packed: int | None  # sequences after packing
    tokens: int
    supervised_tokens: int
    longest: int
    steps: int
    steps_per_epoch: int
    rows_per_step: int
    problems: tuple[RowProblem, ...] = ()
    problem_counts: Mapping[str, int] = field(default_factory=dict)
    histogram: tuple[LengthBin, ...] = ()
    datasets: tuple[DatasetCount, ...] = ()
    notices: tuple[str, ...] = ()
    format: int = 1


def histogram(lengths: Counter[int]) -> tuple[LengthBin, ...]:
    """Rows by length; each bin reaches twice as far as the one before."""
    bins: list[LengthBin] = []
    edge, below = _FIRST_EDGE, 0
    while sum(item.rows for item in bins) < lengths.total():
        rows = sum(count for length, count in lengths.items() if below < length <= edge)
        bins.append(LengthBin(edge, rows))
        edge, below = 2 * edge, edge
    return tuple(bins)


def refusals(recipe: Recipe, report: DataReport) -> list[Problem]:
    """Why the run must not start; empty when it may."""

    def problem(key: str, message: str, hint: str = "") -> Problem:
        return Problem(key, message, hint=hint, path=str(recipe.path), line=recipe.place(key))

    found = [problem("datasets", f"{item.path!r} holds no rows") for item in report.datasets if not item.rows]
    if not report.rows_in:
        return found
    encoded = report.rows_in - report.faulty
    if encoded and report.template_refused == encoded:
        found.append(problem("chat_template", f"the chat template refuses every row ({encoded})"))
    elif report.excess_length_strategy == "raise" and report.dropped:
        message = f"{report.dropped} of {report.rows_in} rows are longer than sequence_len {report.sequence_len}"
        hint = "raise sequence_len, or let excess_length_strategy drop or truncate them"
        found.append(problem("excess_length_strategy", message, hint))
    elif _unusable(report) > recipe.tune.allow_drop * report.rows_in:
        found.append(problem("datasets", _too_few(report), _way_out(recipe, report)))
    if encoded > report.template_refused and not report.rows_used:
        found.append(problem("datasets", _nothing_learned(report)))
    if report.rows_used and not report.steps:
        found.append(problem("micro_batch_size", _no_step(report)))
    return [*found, *_row_problems(report)] if found else []


def _unusable(report: DataReport) -> int:
    return report.faulty + report.template_refused + report.dropped


def percent(part: int, whole: int) -> str:
    """`12 %`; one decimal where rounding would say 0 or 100."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if part in (0, whole) or 1 <= share <= 99 else f"{share:.1f} %"


def _too_few(report: DataReport) -> str:
    why = [
        f"{count} {what}"
        for count, what in (
            (report.faulty, "cannot be read as the declared type"),
            (report.template_refused, "refused by the chat template"),
            (report.dropped, f"longer than sequence_len {report.sequence_len}"),
        )
        if count
    ]
    guess = " (lengths are estimates)" if report.tokenizer == APPROXIMATE and report.dropped else ""
    lost = _unusable(report)
    return (
        f"{lost} of {report.rows_in} rows ({percent(lost, report.rows_in)}) would be left out{guess}: {', '.join(why)}"
    )


def _way_out(recipe: Recipe, report: DataReport) -> str:
    ways = ["mend the rows"] if report.faulty + report.template_refused else []
    if report.dropped:
        ways += ["raise sequence_len", "set excess_length_strategy: truncate"]
    allowed = f"allow it with tune.allow_drop (now {recipe.tune.allow_drop:g})"
    return ", ".join(ways) + f", or {allowed}"


def _nothing_learned(report: DataReport) -> str:
    return (
        f"0 % of rows have supervised tokens: either the prompts fill sequence_len {report.sequence_len} "
        f"(longest row: {report.longest} tokens), so that no reply is left, "
        "or the chat template and field names find no reply in the rows"
    )


def _no_step(report: DataReport) -> str:
    packed = "" if report.packed is None else f", packed into {report.packed}"
    kept = f", {report.held_out} of them held out" if report.held_out else ""
    return (
        f"0 steps: {report.sequences + report.held_out} sequences{kept}{packed}, "
        f"at {report.rows_per_step} per step (micro_batch_size x gradient_accumulation_steps x GPUs)"
    )


def _row_problems(report: DataReport) -> Iterator[Problem]:
    shown = report.problems[:SHOWN_ROWS]
    for row in shown:
        yield Problem(f"row {row.row}", row.problem, path=row.dataset, line=row.line)
    if report.faulty + report.template_refused > len(shown):
        for reason, count in list(report.problem_counts.items())[:SHOWN_REASONS]:
            yield Problem("", f"{count} x {reason}")


def with_notices(report: DataReport, first: tuple[str, ...]) -> DataReport:
    """The report with what the user should know although the run may start."""
    said = list(first)
    rows = report.rows_in
    for count, what in (
        (report.faulty, "cannot be read as the declared type and are left out"),
        (report.template_refused, "are refused by the chat template and left out"),
        (report.dropped, f"are longer than sequence_len {report.sequence_len} and left out"),
        (report.truncated, f"are cut at sequence_len {report.sequence_len}"),
        (report.split, f"are longer than sequence_len {report.sequence_len} and split into several sequences"),
        (report.unsupervised, f"have no supervised tokens within sequence_len {report.sequence_len} and are left out"),
    ):
        if count:
            said.append(f"{count} of {rows} rows ({percent(count, rows)}) {what}")
    trained = report.sequences if report.packed is None else report.packed
    if 0 < trained < report.rows_per_step:
        said.append(
            f"{trained} sequences do not fill one step of {report.rows_per_step}; the only step of an epoch is smaller"
        )
    return replace(report, notices=tuple(said))
