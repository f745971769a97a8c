"""Which checkpoint to continue from, and which may go."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from orchestrator import checkpoints, keys
from orchestrator.checkpoints import Found, candidates, found, prune_plan
from orchestrator.storage.base import ObjectInfo
from orchestrator.types import CheckpointManifest, StoredFile

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def one(step: int, attempt: int = 1, when: float = 0) -> Found:
    return Found(keys.checkpoint("r", step, attempt), step, attempt, at(when))


def manifest(checkpoint: Found, *shas: str) -> CheckpointManifest:
    files = tuple(StoredFile(s, keys.blob("r", checkpoint.attempt, s), 1, s) for s in shas)
    return CheckpointManifest("r", checkpoint.step, 9, checkpoint.attempt, T0, files, "", "", 1, 1)


def blobs(attempt: int, *shas: str) -> list[str]:
    return [keys.blob("r", attempt, s) for s in shas]


def test_steps_are_compared_as_numbers_and_foreign_names_passed_over() -> None:
    names = ["900-a1.json", "1000-a1.json", "10000-a1.json", "final-a1.json", "1000-a1.json.tmp", "tmp-11000-a1.json"]
    names += ["0100-a1.json", "20000-a0.json", "20000-a01.json", "checkpoint-30000", "-5-a1.json", "20000-a1.json/x"]
    listed = found(ObjectInfo(f"runs/r/ckpt/{n}", 1, "v", T0) for n in names)
    assert [c.step for c in candidates(listed, intents={}).order] == [10000, 1000, 900]


def test_a_later_attempt_counts_more_than_a_higher_step() -> None:
    order = candidates([one(50, 1), one(30, 2), one(40, 2)], intents={}).order
    assert [(c.attempt, c.step) for c in order] == [(2, 40), (2, 30), (1, 50)]


def test_what_an_instance_wrote_after_the_hand_over_is_not_used_and_the_reason_is_said() -> None:
    choice = candidates([one(10, 1, when=5), one(20, 1, when=15)], intents={1: at(0), 2: at(10)})
    assert [c.step for c in choice.order] == [10]
    assert [i.reason for i in choice.ignored] == ["written by attempt 1 after attempt 2 took over"]


def test_the_newest_stay_and_only_what_no_kept_manifest_names_goes() -> None:
    all_ = [one(1), one(2), one(3)]
    manifests = {c.key: manifest(c, f"w{c.step}", "shared") for c in all_}
    plan = prune_plan(
        candidates(all_, intents={}),
        manifests=manifests,
        verified=set(manifests),
        blobs=blobs(1, "w1", "w2", "w3", "shared", "litter"),
        keep=2,
        owned_attempts={1},
    )
    assert plan.manifests == (all_[0].key,)
    assert set(plan.blobs) == set(blobs(1, "w1", "litter"))


def test_nothing_goes_while_nothing_is_verified() -> None:
    all_ = [one(1), one(2)]
    manifests = {c.key: manifest(c, f"w{c.step}") for c in all_}
    choice = candidates(all_, intents={})
    plan = prune_plan(choice, manifests=manifests, verified=(), blobs=blobs(1, "w1", "x"), keep=1, owned_attempts={1})
    assert plan == checkpoints.PrunePlan()


def test_the_best_one_stays_when_it_is_asked_for() -> None:
    all_ = [one(1), one(2), one(3)]
    manifests = {c.key: manifest(c, f"w{c.step}") for c in all_}
    plan = prune_plan(
        candidates(all_, intents={}),
        manifests=manifests,
        verified=set(manifests),
        blobs=blobs(1, "w1", "w2", "w3"),
        keep=1,
        best=all_[0].key,
        owned_attempts={1},
    )
    assert (plan.manifests, plan.blobs) == ((all_[1].key,), tuple(blobs(1, "w2")))


def test_an_unverified_newer_one_is_left_until_a_newer_whole_one_exists() -> None:
    all_ = [one(100), one(200), one(300)]
    manifests = {c.key: manifest(c, f"w{c.step}") for c in all_}
    choice = candidates(all_[:2], intents={})
    arguments = {"manifests": manifests, "blobs": blobs(1, "w100", "w200", "w300"), "keep": 1, "owned_attempts": {1}}
    assert prune_plan(choice, verified={all_[0].key}, **arguments).manifests == ()
    later = prune_plan(candidates(all_, intents={}), verified={all_[2].key}, **arguments)
    assert later.manifests == (all_[0].key, all_[1].key)


def test_an_unreadable_manifest_that_stays_protects_every_blob_of_its_attempt() -> None:
    newest, broken = one(2), one(3)
    plan = prune_plan(
        candidates([one(1), newest, broken], intents={}),
        manifests={c.key: manifest(c, f"w{c.step}") for c in (one(1), newest)},
        verified={newest.key},
        blobs=blobs(1, "w1", "w2", "unknown"),
        keep=1,
        owned_attempts={1},
    )
    assert plan.manifests == (one(1).key,)
    assert plan.blobs == ()


def test_blobs_that_no_manifest_ever_named_stay_while_an_upload_may_be_under_way() -> None:
    all_ = [one(1), one(2)]
    manifests = {c.key: manifest(c, f"w{c.step}") for c in all_}
    plan = prune_plan(
        candidates(all_, intents={}),
        manifests=manifests,
        verified=set(manifests),
        blobs=blobs(1, "w1", "w2", "on-its-way"),
        keep=1,
        owned_attempts={1},
        unnamed_may_go=False,
    )
    assert plan.blobs == tuple(blobs(1, "w1"))


pairs = st.tuples(st.integers(0, 30), st.integers(1, 4))


@given(
    present=st.sets(pairs, max_size=12),
    verified=st.sets(pairs, max_size=12),
    unreadable=st.sets(pairs, max_size=3),
    keep=st.integers(0, 3),
    owned=st.sets(st.integers(1, 4)),
    intents=st.dictionaries(st.integers(1, 4), st.integers(0, 40).map(at)),
    named=st.sets(st.sampled_from(["s0", "s1", "s2", "s3"]), max_size=3),
)
def test_whatever_is_pruned_the_newest_verified_one_stays_whole(
    *, present, verified, unreadable, keep, owned, intents, named
) -> None:
    listed = [one(s, a, when=s) for s, a in present]
    manifests = {
        c.key: manifest(c, f"s{c.step % 5}", f"t{c.step}") for c in listed if (c.step, c.attempt) not in unreadable
    }
    good = {c.key for c in listed if (c.step, c.attempt) in verified} & set(manifests)
    stored = {f.key for m in manifests.values() for f in m.files} | {k for a in range(1, 5) for k in blobs(a, "litter")}
    choice = candidates(listed, intents=intents)
    protected = {k for a in range(1, 5) for k in blobs(a, *named)}
    plan = prune_plan(
        choice, manifests=manifests, verified=good, blobs=stored, keep=keep, also_named=protected, owned_attempts=owned
    )
    usable = [c for c in choice.order if c.key in good]
    kept = [c for c in listed if c.key not in plan.manifests]
    assert set(plan.manifests) <= {c.key for c in listed if c.attempt in owned}
    assert not set(plan.blobs) & protected
    for checkpoint in kept:
        if checkpoint.key in manifests:
            assert not {f.key for f in manifests[checkpoint.key].files} & set(plan.blobs)
    if usable:
        assert {c.key for c in usable[: max(1, keep)]} <= {c.key for c in kept}
    else:
        assert plan == checkpoints.PrunePlan()
    # A crash after any part of it leaves manifests that name what is stored.
    assert all(k.split("/")[2][1:] in {str(n) for n in owned} for k in plan.blobs)
