"""Patience: where it ends, what it waits for, and what it never does."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import tenacity

import orchestrator
from orchestrator import errors
from orchestrator.errors import (
    AuthRejected,
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    OutOfFunds,
    ProviderRejected,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from orchestrator.providers import retrying
from orchestrator.providers.base import Provider
from orchestrator.providers.retrying import Retrying
from orchestrator.types import InstanceId, LaunchSpec, Namespace, Offer, Requirements, Token

OFFER = Offer("fake", "o", Decimal(1), spot=False)
CALLS: dict[str, Callable[[Provider], object]] = {
    "offers": lambda p: p.offers(Requirements()),
    "get": lambda p: p.get(InstanceId("i")),
    "find": lambda p: p.find(namespace=Namespace("n")),
    "terminate": lambda p: p.terminate(InstanceId("i")),
}


class SteppedClock:
    def __init__(self, *, at_sleep: BaseException | None = None) -> None:
        self.slept: list[float] = []
        self._at_sleep = at_sleep

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self._at_sleep:
            raise self._at_sleep


class Moody:
    """A marketplace that raises what it is told to, then answers."""

    name = "moody"
    capabilities = None

    def __init__(self, *moods: BaseException) -> None:
        self.moods = list(moods)
        self.calls = 0

    def _answer(self, *args: object, **kwargs: object) -> str:
        self.calls += 1
        if self.moods:
            raise self.moods.pop(0)
        return "answer"

    offers = create = get = find = terminate = _answer


@pytest.mark.parametrize("call", CALLS)
def test_silence_passes_and_the_answer_comes_through(call: str) -> None:
    inner, clock = Moody(ProviderUnavailable("502"), RateLimited("slow down")), SteppedClock()
    answer = CALLS[call](Retrying(inner, clock=clock))  # type: ignore[arg-type]
    assert answer == (None if call == "terminate" else "answer")
    assert inner.calls == 3
    assert len(clock.slept) == 2
    assert all(s > 0 for s in clock.slept)


@pytest.mark.parametrize("call", CALLS)
def test_patience_ends_with_the_marketplaces_own_words(call: str) -> None:
    moods = [ProviderUnavailable(f"no answer {n}") for n in range(50)]
    inner, clock = Moody(*moods), SteppedClock()
    with pytest.raises(ProviderUnavailable, match=f"no answer {retrying.ATTEMPTS - 1}$"):
        CALLS[call](Retrying(inner, clock=clock))  # type: ignore[arg-type]
    assert inner.calls == retrying.ATTEMPTS
    assert sum(clock.slept) < 15


@pytest.mark.parametrize(
    "answer",
    [
        AuthRejected("401"),
        OutOfFunds("402"),
        ProviderRejected("400"),
        QuotaExceeded("quota"),
        InstanceNotFound("404"),
        InsufficientCapacity("none"),
        OutcomeUnknown("?", token="t"),
        TypeError("our own bug"),
    ],
)
@pytest.mark.parametrize("call", CALLS)
def test_an_answer_is_an_answer_and_asked_for_once(call: str, answer: Exception) -> None:
    inner, clock = Moody(answer), SteppedClock()
    with pytest.raises(type(answer)) as caught:
        CALLS[call](Retrying(inner, clock=clock))  # type: ignore[arg-type]
    assert caught.value is answer
    assert (inner.calls, clock.slept) == (1, [])


@pytest.mark.parametrize("mood", [ProviderUnavailable("502"), RateLimited("429"), OutcomeUnknown("?", token="t")])
def test_renting_is_never_tried_twice(mood: Exception) -> None:
    inner, clock = Moody(mood), SteppedClock()
    with pytest.raises(type(mood)):
        Retrying(inner, clock=clock).create(OFFER, LaunchSpec("true", 1), token=Token("t"))  # type: ignore[arg-type]
    assert (inner.calls, clock.slept) == (1, [])
    assert "_patiently" not in inspect.getsource(Retrying.create)


def test_a_marketplace_that_names_a_time_is_not_asked_sooner() -> None:
    inner, clock = Moody(RateLimited("429", retry_after_s=20)), SteppedClock()
    Retrying(inner, clock=clock).get(InstanceId("i"))  # type: ignore[arg-type]
    assert 20 < clock.slept[0] <= 30


def test_a_time_that_is_too_far_off_is_left_to_the_next_pass() -> None:
    inner, clock = Moody(RateLimited("daily quota", retry_after_s=3600)), SteppedClock()
    with pytest.raises(RateLimited, match="daily"):
        Retrying(inner, clock=clock).get(InstanceId("i"))  # type: ignore[arg-type]
    assert (inner.calls, clock.slept) == (1, [])


def test_ctrl_c_ends_it_at_once_in_a_call_and_in_a_wait() -> None:
    inner, clock = Moody(KeyboardInterrupt()), SteppedClock()
    with pytest.raises(KeyboardInterrupt):
        Retrying(inner, clock=clock).get(InstanceId("i"))  # type: ignore[arg-type]
    assert inner.calls == 1
    inner, clock = Moody(ProviderUnavailable("502")), SteppedClock(at_sleep=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        Retrying(inner, clock=clock).get(InstanceId("i"))  # type: ignore[arg-type]
    assert inner.calls == 1


def test_the_policy_is_finite_waits_with_jitter_and_takes_only_what_passes() -> None:
    policy = retrying.policy(SteppedClock())

    def waits(attempt: int) -> list[float]:
        state = tenacity.RetryCallState(policy, None, (), {})
        state.attempt_number = attempt
        state.set_exception((ProviderUnavailable, ProviderUnavailable("x"), None))  # type: ignore[arg-type]
        return [policy.wait(state) for _ in range(50)]

    for attempt in range(1, retrying.ATTEMPTS):
        assert min(waits(attempt)) > 0
        assert len(set(waits(attempt))) > 1, "without jitter every run comes back in step"
    assert policy.reraise
    kinds = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.TuneError)}
    taken = {e for e in kinds if retrying.is_worth_it(make(e))}
    assert taken == {ProviderUnavailable, RateLimited}


def make(kind: type[errors.TuneError]) -> errors.TuneError:
    return kind("x", token="t") if kind is OutcomeUnknown else kind("x")  # type: ignore[call-arg]


# --- over the whole code base -------------------------------------------------------------------------------------

SOURCES = sorted(Path(orchestrator.__file__).parent.rglob("*.py"))
REQUIRED = {"stop", "wait", "retry", "sleep", "reraise"}
TENACITY = {"Retrying", "AsyncRetrying", "retry"}


def retry_calls(tree: ast.AST) -> list[tuple[int, set[str]]]:
    """Line and keywords of every use of tenacity's constructors, a bare decorator included."""
    found = []
    used = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_tenacity(node.func):
            found.append((node.lineno, {str(k.arg) for k in node.keywords}))
        elif is_tenacity(node) and id(node) not in used and not annotation_only(tree, node):
            found.append((node.lineno, set()))  # type: ignore[attr-defined]
    return found


def is_tenacity(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in TENACITY
        and isinstance(node.value, ast.Name)
        and node.value.id == "tenacity"
    )


def annotation_only(tree: ast.AST, wanted: ast.AST) -> bool:
    notes = [n.returns for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    notes += [n.annotation for n in ast.walk(tree) if isinstance(n, ast.arg | ast.AnnAssign)]
    return any(wanted is inner for note in notes if note for inner in ast.walk(note))


def test_every_retry_policy_in_the_code_base_says_all_that_it_must() -> None:
    complete = 0
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        for node in ast.walk(tree):
            imported = isinstance(node, ast.ImportFrom) and node.module == "tenacity"
            names = {alias.name for alias in node.names} if imported else set()  # type: ignore[attr-defined]
            assert not names & TENACITY, f"{source}: write tenacity.{names & TENACITY}, so that this test sees it"
        for line, keywords in retry_calls(tree):
            assert keywords >= REQUIRED, f"{source}:{line} leaves {REQUIRED - keywords} to a default that never stops"
            complete += 1
    assert complete >= 1


def test_every_s3_client_says_how_often_it_tries() -> None:
    clients = []
    for source in SOURCES:
        calls = [n for n in ast.walk(ast.parse(source.read_text())) if isinstance(n, ast.Call)]
        made = [c for c in calls if getattr(c.func, "attr", "") == "client" and "session" in ast.unparse(c.func)]
        said = {k.arg for c in calls if getattr(c.func, "id", "") == "Config" for k in c.keywords}
        clients += [(source, call.lineno, said) for call in made]
    assert clients
    assert not [c for c in clients if not {"retries", "connect_timeout", "read_timeout"} <= c[2]]


@pytest.mark.parametrize(
    ("code", "caught"),
    [
        ("@tenacity.retry\ndef f(): ...", True),
        ("tenacity.retry(stop=1)(f)", True),
        ("tenacity.Retrying(stop=1, wait=2, retry=3, sleep=4, reraise=True)", False),
        ("def f() -> tenacity.Retrying: ...", None),
    ],
)
def test_the_look_over_the_code_base_sees_a_bad_policy(code: str, *, caught: bool | None) -> None:
    calls = retry_calls(ast.parse(code))
    assert bool(calls) == (caught is not None)
    assert all((not keywords >= REQUIRED) == caught for _, keywords in calls)
