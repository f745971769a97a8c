"""An attempt goes on from the newest checkpoint that verifies, and says why not from a newer one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import codec, keys
from orchestrator.agent import restore
from orchestrator.agent.bucket import GivenUp
from orchestrator.agent.ending import AttemptEnds
from orchestrator.agent.files import safe_path
from orchestrator.errors import CheckpointCorrupt, StorageDenied, StorageUnavailable
from orchestrator.handover import JobSpec
from orchestrator.types import StoredFile
from tests.agent.bench import SPEC, Bench
from tests.agent.stage import RUN_ID


@pytest.fixture
def first(tmp_path: Path) -> Bench:
    """An attempt that stored step 100 and step 200."""
    bench = Bench(tmp_path)
    bench.publish(100, 200)
    return bench


def on_another_instance(first: Bench, **config) -> Bench:
    return Bench(first.home.root.parent, number=first.next_attempt(), bench=first, **config)


def restored(bench: Bench, spec: JobSpec = SPEC) -> restore.Restored | None:
    return restore.newest(bench.bucket, bench.home, spec, note=bench.notes.append, until=bench.clock.monotonic() + 5)


def test_the_newest_is_restored_whole(first: Bench) -> None:
    second = on_another_instance(first)
    found = restored(second)
    assert found is not None
    assert (found.step, found.source) == (200, keys.checkpoint(RUN_ID, 200, 1))
    assert (found.micro_batch_size, found.gradient_accumulation_steps) == (4, 2)
    for file in first.manifests[1, 200].files:
        assert (found.folder / file.name).read_bytes() == first.store.get(file.key).data
    assert second.notes == []
    assert not found.folder.is_relative_to(second.home.output), "rotation there counts whatever looks like one"


def test_without_any_checkpoint_training_begins_at_the_beginning(tmp_path: Path) -> None:
    assert restored(Bench(tmp_path)) is None


def test_a_checkpoint_that_does_not_fit_on_the_disk_is_not_begun(first: Bench) -> None:
    second = on_another_instance(first)
    size = sum(f.size for f in first.manifests[1, 200].files)
    ask = lambda free: restore.newest(  # noqa: E731
        second.bucket, second.home, SPEC, note=second.notes.append, until=5.0, free=lambda _: free
    )
    with pytest.raises(AttemptEnds, match=r"step 200 does not fit on the disk.*tune\.disk_gb"):
        ask(size - 1)
    assert not second.home.restored.exists()
    assert ask(size) is not None
    assert ask(0) is not None, "what is here already needs no room"


def damage(bench: Bench, how: str) -> str:
    """Spoil step 200; the words that must be said about it."""
    where = keys.checkpoint(RUN_ID, 200, 1)
    manifest = bench.manifests[1, 200]
    weights = bench.key_of(200, "adapter_model.safetensors")
    data = bench.store.get(weights).data
    match how:
        case "a flipped byte":
            bench.store.put(weights, data[:-1] + bytes([data[-1] ^ 1]))
            return "adapter_model.safetensors does not match its sha256"
        case "cut short":
            bench.store.put(weights, data[:-100])
            return f"adapter_model.safetensors has {len(data) - 100} bytes instead of {len(data)}"
        case "a missing object":
            bench.store.delete(bench.key_of(200, "optimizer.pt"))
            return "optimizer.pt is missing in the bucket"
        case "half a manifest":
            bench.store.put(where, bench.store.get(where).data[:200])
            return "is not JSON"
        case "no optimizer":
            manifest = replace(manifest, files=tuple(f for f in manifest.files if f.name != "optimizer.pt"))
        case "another recipe":
            manifest = replace(manifest, recipe_sha256="x")
        case "other data":
            manifest = replace(manifest, data_sha256="x")
        case "another batch":
            manifest = replace(manifest, micro_batch_size=3)
        case "another step":
            manifest = replace(manifest, step=201)
        case "a foreign object":
            manifest = replace(manifest, files=(*manifest.files, StoredFile("x", keys.record(RUN_ID), 1, "0" * 64)))
        case "a path outside":
            manifest = replace(manifest, files=(replace(manifest.files[0], name="../../agent.sh"), *manifest.files[1:]))
        case "no state file":
            manifest = replace(manifest, files=tuple(f for f in manifest.files if f.name != "trainer_state.json"))
    bench.store.put(where, codec.dump(manifest))
    return {
        "no optimizer": "optimizer.pt is missing",
        "another recipe": "another recipe",
        "other data": "other data",
        "another batch": "an effective batch of 6",
        "another step": "about another checkpoint",
        "a foreign object": "x names an object outside this attempt",
        "a path outside": "would lie outside",
        "no state file": "trainer_state.json is missing",
    }[how]


DAMAGES = [
    "a flipped byte",
    "cut short",
    "a missing object",
    "half a manifest",
    "no optimizer",
    "another recipe",
    "other data",
    "another batch",
    "another step",
    "a foreign object",
    "a path outside",
    "no state file",
]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_newest_one_that_does_not_verify_is_passed_over_with_the_reason(first: Bench, how: str) -> None:
    words = damage(first, how)
    second = on_another_instance(first)
    found = restored(second)
    assert found is not None
    assert found.step == 100
    assert [note for note in second.notes if "200-a1" in note and words in note], second.notes
    assert not (second.home.root.parent / "agent.sh").exists()


@pytest.mark.parametrize("how", ["a flipped byte", "half a manifest", "no optimizer"])
def test_if_none_verifies_the_attempt_ends_and_does_not_start_over(first: Bench, how: str) -> None:
    first.store.delete(first.key_of(100, "scheduler.pt"))
    damage(first, how)
    with pytest.raises(CheckpointCorrupt, match="none of 2 stored checkpoints") as caught:
        restored(on_another_instance(first))
    assert "200-a1" in caught.value.message
    assert "100-a1" in caught.value.message


def test_a_checkpoint_without_optimizer_serves_whoever_asked_for_that(first: Bench) -> None:
    damage(first, "no optimizer")
    found = restored(on_another_instance(first, allow_optimizer_reset=True))
    assert found is not None
    assert found.step == 200


def test_what_a_paused_instance_wrote_after_the_hand_over_is_not_used(first: Bench) -> None:
    second = on_another_instance(first)
    second.publish(250)
    third = Bench(first.home.root.parent, number=first.next_attempt(), bench=first)
    intent = first.store.get(keys.record(RUN_ID)).data
    first.store.put(keys.record(RUN_ID), intent.replace(b'"number": 3', b'"number": 2'))  # it sees no hand-over
    second.publish(300)
    first.store.put(keys.record(RUN_ID), intent)
    assert (2, 300) in first.manifests
    found = restored(third)
    assert found is not None
    assert found.step == 250
    assert first.is_whole(first.manifests[2, 300])


def test_a_download_that_was_cut_short_goes_on_with_what_is_missing(first: Bench) -> None:
    second = on_another_instance(first)
    restored(second)
    fetched: list[str] = []
    second.watch(lambda operation, key: fetched.append(key) if operation == "download" else None)
    (second.home.restored / "checkpoint-200" / "optimizer.pt").write_bytes(b"half")
    (second.home.restored / "checkpoint-200" / "stranger.bin").write_bytes(b"x")
    found = restored(second)
    assert found is not None
    assert fetched == [first.key_of(200, "optimizer.pt")]
    assert not (found.folder / "stranger.bin").exists()


def test_a_bucket_that_is_away_for_a_moment_makes_no_checkpoint_bad(first: Bench) -> None:
    second = on_another_instance(first)
    left = 2

    def flaky(operation: str, _key: str) -> None:
        nonlocal left
        if operation == "download" and left:
            left -= 1
            raise StorageUnavailable("try again") if left else StorageDenied("the key expired")

    second.store.fault = flaky
    second.clock.sleep(0)
    found = restore.newest(second.bucket, second.home, SPEC, note=second.notes.append, until=1e9)
    assert found is not None
    assert found.step == 200
    assert second.notes == []


def test_a_bucket_that_stays_away_is_not_taken_for_an_empty_one(first: Bench) -> None:
    second = on_another_instance(first)

    def away(operation: str, _key: str) -> None:
        raise StorageUnavailable(operation)

    second.store.fault = away
    with pytest.raises(GivenUp):
        restore.newest(second.bucket, second.home, SPEC, note=second.notes.append, until=0)


@pytest.mark.parametrize("stored", [True, False])
def test_the_best_checkpoint_is_brought_along_or_taken_out(tmp_path: Path, stored: bool) -> None:
    first = Bench(tmp_path, keep_checkpoints=9)
    first.publish(*([100] if stored else []), 200, best="/home/gone/out/checkpoint-100")
    second = on_another_instance(first)
    found = restored(second)
    assert found is not None
    assert found.step == 200
    best = json.loads((found.folder / "trainer_state.json").read_text())["best_model_checkpoint"]
    if stored:
        assert best == str(second.home.restored / "checkpoint-100")
        assert (Path(best) / "adapter_model.safetensors").exists()
    else:
        assert best is None
        assert any("no longer stored" in note for note in second.notes)
    in_bucket = json.loads(first.store.get(first.key_of(200, "trainer_state.json")).data)
    assert in_bucket["best_model_checkpoint"] == "/home/gone/out/checkpoint-100"


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a//x", "", ".", "a\\..\\x", "x\n", "link/x", "a/./x"])
def test_no_name_reaches_outside_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"outside|not a file name"):
        safe_path(folder, name)


@pytest.mark.parametrize("name", ["x", "data/données 训练.jsonl", "$(touch p)", "-rf", "~root", "a b/c'd\""])
def test_odd_names_are_just_names(tmp_path: Path, name: str) -> None:
    assert safe_path(tmp_path, name) == tmp_path / name
