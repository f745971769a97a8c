"""At every instant the bucket holds a whole checkpoint, whoever dies between any two calls."""

import itertools
from collections import Counter
from pathlib import Path
from threading import Barrier

import pytest

from orchestrator import codec, keys
from orchestrator.agent import artifact, snapshots
from orchestrator.agent.bucket import Superseded
from orchestrator.agent.publishing import Unverified
from orchestrator.errors import StorageDenied, StorageUnavailable
from orchestrator.handover import Snapshot
from orchestrator.storage.base import ObjectInfo
from orchestrator.types import ArtifactManifest
from tests.agent.bench import SPEC, Bench
from tests.agent.stage import RUN_ID
from tests.agent.stub_trainer import write_weights


class PowerCut(BaseException):
    """Nothing may catch it."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_manifest_comes_last_and_names_only_what_is_stored(bench: Bench) -> None:
    seen: list[tuple[str, str]] = []
    bench.watch(lambda operation, key: seen.append((operation, key)))
    bench.publish(5)
    writes = [key for operation, key in seen if operation in {"upload", "put", "put_new"}]
    assert writes[-1] == keys.checkpoint(RUN_ID, 5, 1)
    assert all("/blobs/" in key for key in writes[:-1])
    manifest = bench.manifests[1, 5]
    assert bench.is_whole(manifest)
    assert (manifest.micro_batch_size, manifest.gradient_accumulation_steps) == (4, 2)
    assert (manifest.max_steps, manifest.loss, manifest.recipe_sha256) == (100, 0.2, "r" * 64)
    assert snapshots.pending(bench.home) == []
    assert not (bench.home.snapshots / "5").exists()


def test_unchanged_files_are_not_sent_twice_not_even_by_a_new_agent(bench: Bench) -> None:
    bench.publish(5)
    sent: Counter[str] = Counter()
    bench.watch(lambda operation, key: sent.update([key] if operation == "upload" else []))
    bench.again()
    bench.publish(6)
    tokenizer, config = bench.key_of(6, "tokenizer.json"), bench.key_of(6, "adapter_config.json")
    assert bench.key_of(6, "adapter_model.safetensors") in sent
    assert not {tokenizer, config} & set(sent)


def test_files_are_sent_side_by_side(bench: Bench) -> None:
    first_two, real, count = Barrier(2), bench.store.upload, itertools.count()

    def upload(key: str, path: Path) -> ObjectInfo:
        if next(count) < 2:
            first_two.wait(timeout=60)  # one after the other they would never meet
        return real(key, path)

    bench.store.upload = upload  # type: ignore[method-assign]
    bench.publish(1)
    assert bench.is_whole(bench.manifests[1, 1])


def test_equal_files_of_one_checkpoint_are_sent_once(bench: Bench) -> None:
    bench.snapshot(1)
    folder, record = bench.home.snapshots / "1", bench.home.snapshots / "1.json"
    said = codec.load(Snapshot, record.read_bytes(), where="x")
    copies = {f"copy-{n}.json": (folder / "tokenizer.json").stat().st_size for n in range(20)}
    for name in copies:
        (folder / name).write_bytes((folder / "tokenizer.json").read_bytes())
    record.write_bytes(codec.dump(Snapshot(1, 100, {**said.files, **copies})))
    sent: Counter[str] = Counter()
    bench.watch(lambda operation, key: sent.update([key] if operation == "upload" else []))
    bench.sync.publish_pending()
    assert set(sent.values()) == {1}
    assert len(bench.manifests[1, 1].files) == len(said.files) + 20


def many_files(bench: Bench, step: int) -> None:
    bench.snapshot(step)
    folder, record = bench.home.snapshots / str(step), bench.home.snapshots / f"{step}.json"
    said = codec.load(Snapshot, record.read_bytes(), where="x")
    shards = {f"shard-{n}.json": f"[{step}, {n}]" for n in range(30)}
    for name, text in shards.items():
        (folder / name).write_text(text)
    sizes = {name: len(text) for name, text in shards.items()}
    record.write_bytes(codec.dump(Snapshot(step, 100, {**said.files, **sizes})))


def test_many_files_are_looked_at_with_one_listing(bench: Bench) -> None:
    many_files(bench, 1)
    looks: list[str] = []
    bench.watch(lambda operation, key: looks.append(key) if operation == "head" else None)
    bench.sync.publish_pending()
    assert looks == []
    assert bench.is_whole(bench.manifests[1, 1])


def test_what_a_listing_does_not_show_yet_is_asked_for_by_name(bench: Bench) -> None:
    many_files(bench, 1)
    looks: list[str] = []
    bench.watch(lambda operation, key: looks.append(key) if operation == "head" else None)
    real = bench.store.scan
    bench.store.scan = lambda prefix: (o for o in real(prefix) if "/blobs/" not in o.key)  # type: ignore[method-assign]
    bench.sync.publish_pending()
    assert set(looks) == {f.key for f in bench.manifests[1, 1].files}


def test_of_many_files_one_that_vanished_keeps_the_manifest_untrue(bench: Bench) -> None:
    many_files(bench, 1)
    lost: list[str] = []

    def look(operation: str, key: str) -> None:
        if operation == "put_new.done" and not lost:
            lost.append(bench.key_of(1, "shard-7.json"))
            bench.store.delete(lost[0])

    bench.watch(look)
    with pytest.raises(Unverified):
        bench.sync.publish_pending()
    bench.sync.publish_pending()
    assert bench.is_whole(bench.manifests[1, 1])


def test_the_newest_two_are_kept_and_nothing_that_no_manifest_names(bench: Bench) -> None:
    bench.publish(1, 2, 3, 4)
    assert sorted(bench.manifests) == [(1, 3), (1, 4)]
    named = {f.key for m in bench.manifests.values() for f in m.files}
    assert {o.key for o in bench.store.scan(keys.blobs(RUN_ID, 1))} == named


def test_the_best_is_kept_when_the_recipe_wants_it_back(bench: Bench) -> None:
    bench.sync.keep_best = True
    bench.publish(1, 2, 3, 4, best="/old/host/out/checkpoint-1")
    assert sorted(bench.manifests) == [(1, 1), (1, 3), (1, 4)]


def faults(bench: Bench) -> int:
    """How many instants there are in publishing two checkpoints after the first ones."""
    count = 0

    def tick(_operation: str, _key: str) -> None:
        nonlocal count
        count += 1

    bench.watch(tick)
    bench.publish(3)
    bench.publish(4)
    return count


@pytest.mark.parametrize("keep", [1, 2])
def test_at_every_instant_a_whole_checkpoint_is_stored_and_a_crash_there_costs_nothing(
    tmp_path: Path, keep: int
) -> None:
    (tmp_path / "count").mkdir()
    first = Bench(tmp_path / "count", keep_checkpoints=keep)
    first.publish(1, 2)
    instants = faults(first)
    assert instants > 60
    for at in range(instants):
        place = tmp_path / str(at)
        place.mkdir()
        bench = Bench(place, keep_checkpoints=keep)
        bench.publish(1, 2)
        left = at

        def look(operation: str, _key: str, bench: Bench = bench) -> None:
            nonlocal left
            if operation in {"upload.done", "put_new.done", "delete.done"}:
                stored = bench.manifests
                whole = [at for at, m in stored.items() if bench.is_whole(m)]
                assert whole, "never without one"
                assert whole == list(stored), "no manifest names what is not stored"
            if left == 0:
                raise PowerCut
            left -= 1

        bench.watch(look)
        with pytest.raises(PowerCut):
            bench.publish(3, 4)
        bench.store.fault = None
        bench.again()
        bench.sync.publish_pending()
        bench.publish(5)
        assert max(bench.manifests) == (1, 5)
        assert len(bench.manifests) == keep
        assert all(bench.is_whole(m) for m in bench.manifests.values())
        named = {f.key for m in bench.manifests.values() for f in m.files}
        assert {o.key for o in bench.store.scan(keys.blobs(RUN_ID, 1))} == named, "no litter stays"


def test_once_another_attempt_is_in_charge_not_a_byte_is_written(bench: Bench) -> None:
    bench.publish(1)
    before = {o.key for o in bench.store.scan(f"runs/{RUN_ID}/a1/")}
    bench.next_attempt()
    bench.snapshot(2)
    with pytest.raises(Superseded):
        bench.sync.publish_pending()
    assert {o.key for o in bench.store.scan(f"runs/{RUN_ID}/a1/")} == before
    assert sorted(bench.manifests) == [(1, 1)]


def test_a_hand_over_during_the_upload_keeps_the_manifest_back(bench: Bench) -> None:
    bench.snapshot(2)
    done = []

    def look(operation: str, _key: str) -> None:
        if operation == "upload.done" and not done:
            done.append(bench.next_attempt())

    bench.watch(look)
    with pytest.raises(Superseded):
        bench.sync.publish_pending()
    assert bench.manifests == {}


def test_an_answer_that_was_lost_is_recognised_as_our_own(bench: Bench) -> None:
    lost = []

    def look(operation: str, key: str) -> None:
        if operation == "put_new.done" and not lost:
            lost.append(key)
            raise StorageUnavailable("the answer was lost")

    bench.watch(look)
    with pytest.raises(StorageUnavailable):
        bench.publish(2)
    bench.sync.publish_pending()
    assert bench.sync.published is not None
    assert bench.is_whole(bench.manifests[1, 2])
    assert snapshots.pending(bench.home) == []


def test_an_own_manifest_that_is_not_true_any_more_is_replaced(bench: Bench) -> None:
    bench.publish(2)
    bench.store.delete(bench.key_of(2, "optimizer.pt"))
    bench.again()
    bench.publish(2)
    assert bench.is_whole(bench.manifests[1, 2])


def test_nothing_older_goes_before_the_newer_one_has_been_looked_at(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_checkpoints=1)
    bench.publish(1)
    bench.snapshot(2)
    lost = []

    def look(operation: str, key: str) -> None:
        if operation == "put_new.done" and not lost:
            lost.append(bench.key_of(2, "optimizer.pt"))
            bench.store.delete(lost[0])

    bench.watch(look)
    with pytest.raises(Unverified):
        bench.sync.publish_pending()
    assert bench.is_whole(bench.manifests[1, 1])
    bench.sync.publish_pending()
    assert sorted(bench.manifests) == [(1, 2)]
    assert bench.is_whole(bench.manifests[1, 2])


def test_a_bucket_that_refuses_deletes_still_gets_checkpoints(bench: Bench) -> None:
    def look(operation: str, key: str) -> None:
        if operation == "delete":
            raise StorageDenied(f"no right to delete {key}")

    bench.watch(look)
    bench.publish(1, 2, 3)
    assert sorted(bench.manifests) == [(1, 1), (1, 2), (1, 3)]
    assert any("could not be removed" in note for note in bench.notes)


def test_a_file_that_holds_a_secret_is_left_out(bench: Bench) -> None:
    bench.redactor.add(["hf_abcdefghijklmnop", "every time"])  # the second could be a word
    bench.snapshot(2)
    (bench.home.snapshots / "2" / "tokenizer.json").write_text('{"token": "hf_abcdefghijklmnop"}')
    record = bench.home.snapshots / "2.json"
    said = codec.load(Snapshot, record.read_bytes(), where="x")
    files = {**said.files, "tokenizer.json": (bench.home.snapshots / "2" / "tokenizer.json").stat().st_size}
    record.write_bytes(codec.dump(Snapshot(2, 100, files)))
    bench.sync.publish_pending()
    assert "tokenizer.json" not in {f.name for f in bench.manifests[1, 2].files}
    assert any("tokenizer.json holds a secret" in note for note in bench.notes)
    bench.publish(3)
    assert "tokenizer.json" in {f.name for f in bench.manifests[1, 3].files}


def test_while_the_bucket_is_away_the_disk_keeps_only_the_newest(bench: Bench) -> None:
    for step in (1, 2, 3):
        bench.snapshot(step)

    def away(operation: str, _key: str) -> None:
        raise StorageUnavailable(operation)

    bench.store.fault = away
    bench.sync.start()
    bench.sync.poke()
    while not bench.sync.blocked:
        pass
    bench.sync.close()
    assert snapshots.pending(bench.home) == [3]
    assert len([n for n in bench.notes if "trying on" in n]) == 1


def result(bench: Bench) -> None:
    write_weights(bench.home.final, 100)
    sizes = {p.name: p.stat().st_size for p in bench.home.final.iterdir()}
    bench.home.final_record.write_bytes(codec.dump(Snapshot(100, 100, sizes, loss=0.5)))


def publish_artifact(bench: Bench) -> ArtifactManifest:
    return artifact.publish(
        bench.bucket,
        bench.publishing,
        bench.home,
        SPEC,
        redactor=bench.redactor,
        setting=(4, 2),
        made_at=bench.clock.now(),
    )


def test_an_artifact_is_true_from_its_last_write_on_and_pruning_leaves_it_alone(bench: Bench) -> None:
    result(bench)
    seen: list[str] = []
    bench.watch(lambda operation, key: seen.append(key) if operation in {"upload", "put_new"} else None)
    manifest = publish_artifact(bench)
    assert seen[-1] == keys.artifact(RUN_ID)
    assert manifest.attempt == 1
    bench.again()
    bench.publish(1, 2, 3)
    for file in manifest.files:
        assert bench.store.head(file.key).size == file.size


def test_the_first_attempt_that_finishes_wins(tmp_path: Path, bench: Bench) -> None:
    result(bench)
    publish_artifact(bench)
    second = Bench(tmp_path, number=bench.next_attempt(), bench=bench)
    result(second)
    assert publish_artifact(second).attempt == 1


@pytest.mark.parametrize("damage", ["no record", "short", "not the last step", "outside"])
def test_a_result_that_is_none_is_refused(bench: Bench, damage: str) -> None:
    result(bench)
    said = codec.load(Snapshot, bench.home.final_record.read_bytes(), where="x")
    if damage == "no record":
        bench.home.final_record.unlink()
    elif damage == "short":
        path = bench.home.final / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:40])
    elif damage == "outside":
        bench.home.final_record.write_bytes(codec.dump(Snapshot(100, 100, {"../../agent.json": 3})))
    else:
        bench.home.final_record.write_bytes(codec.dump(Snapshot(99, 100, said.files)))
    with pytest.raises(artifact.Invalid):
        publish_artifact(bench)
    assert not list(bench.store.scan(keys.artifact(RUN_ID)))


@pytest.mark.parametrize(
    ("written", "loading"),
    [
        ("owner/model", 'AutoPeftModelForCausalLM.from_pretrained("path/to/this/folder")'),
        ("package:some-model", "resolve('package:some-model')"),
    ],
)
def test_the_model_card_names_base_and_data_as_the_recipe_does(written: str, loading: str) -> None:
    data = [{"path": "data/rows.jsonl", "type": "alpaca", "held_out": False}]
    settings = {"base_model": "/cache/x", "base_model_as_written": written, "adapter": "lora", "datasets": data}
    card = artifact.model_card(
        {
            "settings": settings, "step": 5, "max_steps": 5, "data_sha256": "d" * 64, "recipe_sha256": "r" * 64,
            "trainer": "trl", "micro_batch_size": 2, "gradient_accumulation_steps": 2, "versions": {},
        },
        {"loss": 1.5},
    )  # fmt: skip
    assert f"**Base model:** `{written}`" in card
    assert "**Data:** `data/rows.jsonl`" in card
    assert loading in card
    assert "/cache" not in card, "a folder of a machine that is gone"
