"""Run records: found again by id, name or prefix, changed by one writer at a time, and never guessed at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator import codec, keys
from orchestrator.errors import (
    RecordCorrupt,
    RunConflict,
    RunNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    UsageError,
)
from orchestrator.handover import JobFile, JobFiles
from orchestrator.storage.local import LocalStore
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import (
    ArtifactManifest,
    CheckpointManifest,
    ExitRecord,
    Heartbeat,
    Namespace,
    Outcome,
    Phase,
    Run,
    RunId,
    new_run_id,
)
from tests.storage.clocks import SteppedClock

ODD_NAMES = [
    'a"b',
    "it's",
    "a/b",
    "../../etc/passwd",
    "..",
    ".",
    "données 训练",
    "100%",
    "%2F",
    'x", gpuCount: 8, name: "',
    "$(touch pwned); `id`",
    "line\nbreak\x00",
    "con.json",
    " ",
    "~",
]


class Crash(BaseException):
    """The process is gone."""


@pytest.fixture
def store(clock: SteppedClock) -> MemoryStore:  # not the bucket of the other files in this folder
    return MemoryStore(clock)


@pytest.fixture
def runs(store: MemoryStore) -> RunStore:
    return RunStore(store)


def _run(run_id: str = "0123456789", **changes: object) -> Run:
    born = SteppedClock().now()
    return replace(Run(RunId(run_id), "n", Namespace("abcdef"), born, "r" * 64, "d" * 64, "sim"), **changes)  # type: ignore[arg-type]


def _fault(operation: str, key: str, error: BaseException) -> Callable[[str, str], None]:
    """Strikes once."""
    left = [1]

    def strike(doing: str, at: str) -> None:
        if left[0] and (doing, at) == (operation, key):
            left[0] = 0
            raise error

    return strike


def test_the_namespace_is_made_once_and_shared_by_everyone(store: MemoryStore) -> None:
    first = RunStore(store).namespace()
    assert RunStore(store).namespace() == first
    assert len(first) == 6


@pytest.mark.parametrize("operation", ["put_new", "put_new.done"])
def test_an_unclear_namespace_is_settled_by_looking(store: MemoryStore, operation: str) -> None:
    store.fault = _fault(operation, keys.NAMESPACE, StorageUnavailable("timed out"))
    runs = RunStore(store)
    if operation == "put_new":  # nothing was stored, and nothing is made up
        with pytest.raises(StorageUnavailable):
            runs.namespace()
    assert runs.namespace() == RunStore(store).namespace()


def test_a_run_comes_back_as_it_was_saved(runs: RunStore) -> None:
    version = runs.create(_run(name="données", waiting_for='a "quote"'))
    loaded = runs.load(RunId("0123456789"))
    assert loaded.version == version
    assert replace(loaded.run, writer="") == _run(name="données", waiting_for='a "quote"')


def test_an_id_is_given_to_one_run_only(runs: RunStore) -> None:
    runs.create(_run(name="first"))
    with pytest.raises(RunConflict, match="0123456789"):
        runs.create(_run(name="second"))
    assert runs.load(RunId("0123456789")).run.name == "first"


def test_of_two_who_read_the_same_run_one_saves(runs: RunStore) -> None:
    version = runs.create(_run())
    runs.save(_run(reason="mine"), expect=version)
    with pytest.raises(RunConflict, match="someone else"):
        runs.save(_run(reason="theirs"), expect=version)
    assert runs.load(RunId("0123456789")).run.reason == "mine"


def test_equal_records_of_two_writers_are_still_two_writes(runs: RunStore) -> None:
    version = runs.create(_run())
    runs.save(_run(reason="same"), expect=version)
    with pytest.raises(RunConflict):
        runs.save(_run(reason="same"), expect=version)


@pytest.mark.parametrize("act", ["create", "save"])
def test_an_answer_that_was_lost_is_settled_by_reading_back(runs: RunStore, store: MemoryStore, act: str) -> None:
    version = runs.create(_run()) if act == "save" else ""
    operation = "put_if.done" if act == "save" else "put_new.done"
    store.fault = _fault(operation, keys.record("0123456789"), StorageUnavailable("timed out"))
    got = runs.save(_run(reason="x"), expect=version) if act == "save" else runs.create(_run())
    assert runs.load(RunId("0123456789")).version == got


@pytest.mark.parametrize("act", ["create", "save"])
def test_a_request_that_was_lost_is_said_to_be_unavailable(runs: RunStore, store: MemoryStore, act: str) -> None:
    version = runs.create(_run()) if act == "save" else ""
    operation = "put_if" if act == "save" else "put_new"
    store.fault = _fault(operation, keys.record("0123456789"), StorageUnavailable("timed out"))
    with pytest.raises(StorageUnavailable):
        runs.save(_run(reason="x"), expect=version) if act == "save" else runs.create(_run())
    runs.save(_run(reason="y"), expect=version) if act == "save" else runs.create(_run())


def test_every_crash_leaves_an_active_run_with_its_marker(clock: SteppedClock) -> None:
    def life(runs: RunStore) -> None:
        version = runs.create(_run())
        version = runs.save(_run(phase=Phase.RUNNING), expect=version)
        version = runs.save(_run(phase=Phase.FAILED), expect=version)
        version = runs.save(_run(phase=Phase.PENDING, resumes=1), expect=version)
        runs.save(_run(phase=Phase.SUCCEEDED), expect=version)

    deaths = 0
    for last in range(1, 200):
        store = MemoryStore(clock)
        steps = [0]

        def die(_doing: str, _key: str, steps: list[int] = steps, last: int = last) -> None:
            steps[0] += 1
            if steps[0] == last:
                raise Crash

        store.fault = die
        try:
            life(RunStore(store))
        except Crash:
            deaths += 1
        else:
            break
        finally:
            store.fault = None
        after = RunStore(store)
        try:
            run = after.load(RunId("0123456789")).run
        except RunNotFound:
            continue
        assert run.phase.is_terminal or after.active() == ["0123456789"]
        assert after.settle(run.run_id) == run.phase.is_terminal
        assert after.active() == ([] if run.phase.is_terminal else ["0123456789"])
    assert deaths == 25


def test_a_run_reopened_while_its_marker_is_removed_keeps_its_marker(runs: RunStore, store: MemoryStore) -> None:
    version = runs.create(_run())
    reopened: list[str] = []

    def reopen(doing: str, key: str) -> None:
        if (doing, key) == ("delete", keys.active("0123456789")) and not reopened:
            reopened.append("")
            other = RunStore(store)
            found = other.load(RunId("0123456789"))
            reopened[0] = other.save(replace(found.run, phase=Phase.PENDING), expect=found.version)

    store.fault = reopen
    runs.save(_run(phase=Phase.FAILED), expect=version)
    assert runs.active() == ["0123456789"]


def test_a_run_ends_even_where_nothing_may_be_deleted(runs: RunStore, store: MemoryStore) -> None:
    version = runs.create(_run())
    store.fault = _fault("delete", keys.active("0123456789"), StorageDenied("no s3:DeleteObject"))
    runs.save(_run(phase=Phase.SUCCEEDED), expect=version)
    assert runs.load(RunId("0123456789")).run.phase is Phase.SUCCEEDED
    assert "s3:DeleteObject" in runs.warnings[0]


def test_active_costs_what_is_active_and_not_what_ever_was(runs: RunStore, store: MemoryStore) -> None:
    for number in range(30):
        version = runs.create(_run(f"00000000{number:02d}"))
        if number >= 3:
            runs.save(_run(f"00000000{number:02d}", phase=Phase.SUCCEEDED), expect=version)
    calls: list[str] = []
    store.fault = lambda doing, key: calls.append(f"{doing} {key}")
    assert runs.active() == ["0000000000", "0000000001", "0000000002"]
    assert calls == ["children active/", "children.done active/"]


def test_recent_runs_come_newest_first(runs: RunStore, clock: SteppedClock, store: MemoryStore) -> None:
    born = []
    for _ in range(5):
        born.append(new_run_id(clock.now()))
        runs.create(_run(born[-1]))
        clock.step(60)
    store.put("runs/not-a-run/x", b"")
    store.put("runs/stray.txt", b"")
    assert runs.recent(3) == born[:1:-1]
    assert runs.recent(99) == born[::-1]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_is_claimed_once_and_found_again(tmp_path: Path, name: str) -> None:
    runs = RunStore(LocalStore(tmp_path / "store"))
    mine = runs.claim_name(name, RunId("aaaaaaaaaa"), "r1", "d1")
    theirs = RunStore(runs.store).claim_name(name, RunId("bbbbbbbbbb"), "r2", "d2")
    assert mine == theirs
    assert (theirs.run_id, theirs.recipe_sha256, theirs.data_sha256) == ("aaaaaaaaaa", "r1", "d1")
    assert runs.resolve(name) == "aaaaaaaaaa"
    assert [path.name for path in tmp_path.iterdir() if path.name != "home-of-the-test"] == ["store"]


def test_names_that_differ_little_are_different_names(runs: RunStore) -> None:
    for number, name in enumerate(ODD_NAMES):
        assert runs.claim_name(name, RunId(f"{number:010d}"), "", "").run_id == f"{number:010d}"


def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    runs = RunStore(LocalStore(tmp_path))
    with pytest.raises(UsageError, match="half a character"):
        runs.claim_name("half\ud800", RunId("aaaaaaaaaa"), "", "")
    with pytest.raises(StorageError, match="too long"):
        runs.claim_name("n" * 300, RunId("aaaaaaaaaa"), "", "")


def test_a_run_is_meant_by_its_id_its_name_or_the_beginning_of_its_id(runs: RunStore) -> None:
    for run_id in ("aaaa000001", "aaaa000002", "bbbb000001"):
        runs.create(_run(run_id))
    runs.claim_name("llama", RunId("aaaa000002"), "", "")
    runs.claim_name("bbbb000001", RunId("aaaa000001"), "", "")
    assert runs.resolve("aaaa000001") == "aaaa000001"
    assert runs.resolve("llama") == "aaaa000002"
    assert runs.resolve("b") == "bbbb000001"
    assert runs.resolve("bbbb000001") == "bbbb000001"  # an id comes before a name


def test_an_ambiguous_beginning_lists_what_it_could_mean(runs: RunStore) -> None:
    for run_id in ("aaaa000001", "aaaa000002"):
        runs.create(_run(run_id))
    with pytest.raises(RunNotFound, match="aaaa000001, aaaa000002"):
        runs.resolve("aaaa")


@pytest.mark.parametrize(("text", "near"), [("llamma", "llama"), ("aaaa000003", "aaaa000001"), ("", "tune ls")])
def test_an_unknown_run_is_answered_with_the_nearest(runs: RunStore, text: str, near: str) -> None:
    runs.create(_run("aaaa000001"))
    runs.claim_name("llama", RunId("aaaa000001"), "", "")
    with pytest.raises(RunNotFound) as caught:
        runs.resolve(text)
    assert near in caught.value.hint


def test_a_run_that_is_not_there_is_said_so(runs: RunStore) -> None:
    with pytest.raises(RunNotFound, match="0123456789"):
        runs.load(RunId("0123456789"))


def _torn() -> dict[str, bytes]:
    good = codec.dump(_run())
    newer = {**json.loads(good), "format": 2}
    return {
        "empty": b"",
        "torn": good[: len(good) // 2],
        "another shape": b'{"runs": []}',
        "a list": b"[]",
        "null": b"null",
        "not text": b"\xff\xfe\x00",
        "nested without end": b"[" * 100_000,
        "newer": json.dumps(newer).encode(),
        "a wrong type": good.replace(b'"pending"', b'"asleep"'),
        "another run": codec.dump(_run("zzzzzzzzzz")),
    }


@pytest.mark.parametrize("damage", _torn())
def test_a_damaged_record_is_reported_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    runs = RunStore(LocalStore(tmp_path / "store"))
    runs.create(_run())
    path = tmp_path / "store" / "runs" / "0123456789" / "run.json"
    path.write_bytes(_torn()[damage])
    before = path.stat()
    for act in (runs.load, runs.settle):
        with pytest.raises(RecordCorrupt) as caught:
            act(RunId("0123456789"))
        assert caught.value.hint
        assert "run.json" in str(caught.value)
    with pytest.raises(RunConflict):
        runs.create(_run())
    assert path.read_bytes() == _torn()[damage]
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert runs.active() == ["0123456789"]


def test_a_damaged_namespace_or_claim_is_not_replaced_by_a_new_one(store: MemoryStore) -> None:
    store.put(keys.NAMESPACE, b"{}")
    store.put(keys.name("llama"), b"")
    with pytest.raises(RecordCorrupt):
        RunStore(store).namespace()
    with pytest.raises(RecordCorrupt):
        RunStore(store).claim_name("llama", RunId("aaaaaaaaaa"), "", "")
    assert (store.get(keys.NAMESPACE).data, store.get(keys.name("llama")).data) == (b"{}", b"")


def test_a_refused_write_is_passed_on_and_not_taken_for_a_conflict(runs: RunStore, store: MemoryStore) -> None:
    version = runs.create(_run())
    store.fault = _fault("put_if", keys.record("0123456789"), StorageDenied("read-only key"))
    with pytest.raises(StorageDenied):
        runs.save(_run(reason="x"), expect=version)


def test_what_the_agent_writes_is_read_with_the_stores_time(
    runs: RunStore, store: MemoryStore, clock: SteppedClock
) -> None:
    run_id = RunId("0123456789")
    assert runs.heartbeat(run_id, 1) is None
    assert runs.exit_record(run_id, 1) is None
    assert runs.artifact(run_id) is None
    beat = Heartbeat(1, 7, "training", step=3, losses=(2.5, 2.25))
    store.put(keys.heartbeat(run_id, 1), codec.dump(beat))
    written = clock.now()
    clock.step(90)
    assert runs.heartbeat(run_id, 1) == (beat, written)
    ended = ExitRecord(1, 0, Outcome.SUCCEEDED, "done", tail=("line",))
    store.put_new(keys.exit_record(run_id, 1), codec.dump(ended))
    assert runs.exit_record(run_id, 1) == ended
    artifact = ArtifactManifest(run_id, 9, 9, 1, clock.now(), (), "r", "d", {"loss": 1.5, "note": None})
    store.put_new(keys.artifact(run_id), codec.dump(artifact))
    assert runs.artifact(run_id) == artifact
    uploaded = JobFiles((JobFile("recipe.yaml", 3, "0" * 64),))
    store.put_new(keys.files_manifest(run_id), codec.dump(uploaded))
    assert runs.files(run_id) == uploaded


def test_checkpoints_are_ordered_as_numbers_the_latest_attempt_first(
    runs: RunStore, store: MemoryStore, clock: SteppedClock
) -> None:
    run_id = RunId("0123456789")
    for step, attempt in ((900, 1), (1000, 1), (1000, 2), (950, 2), (80, 10)):
        manifest = CheckpointManifest(run_id, step, 2000, attempt, clock.now(), (), "r", "d", 1, 1)
        store.put_new(keys.checkpoint(run_id, step, attempt), codec.dump(manifest))
        clock.step(1)
    store.put(keys.checkpoints(run_id) + "notes.txt", b"")
    found = runs.checkpoints(run_id)
    assert [(one.attempt, one.step) for one in found] == [(10, 80), (2, 1000), (2, 950), (1, 1000), (1, 900)]
    assert runs.manifest(found[1].key).step == 1000
    assert found[0].modified_at - found[-1].modified_at == timedelta(seconds=4)
