"""How a folder keeps its promises: names, versions, unfinished files, locks, and a disk that says no."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.errors import (
    AlreadyExists,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    VersionConflict,
)
from orchestrator.storage.filenames import decoded, encoded
from orchestrator.storage.local import LocalStore
from orchestrator.storage.temporary import whole
from tests.storage.clocks import SteppedClock

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def _unfinished(store: LocalStore) -> list[Path]:
    return list((store.root / "%tune" / "unfinished").iterdir())


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("runs/abc/run.json", "runs/abc/run.json"),
        ("active/abc", "active/abc%"),
        ("v1.2/x", "v1.2%/x%"),
        ("100%/a%b.c", "100%25/a%25b.c"),
        ("%tune/x.y", "%25tune/x.y"),
    ],
)
def test_keys_look_like_themselves_on_disk_where_they_can(key: str, path: str) -> None:
    parts = encoded(key)
    assert b"/".join(parts).decode() == path
    back = [decoded(part, is_folder=True) for part in parts[:-1]] + [decoded(parts[-1], is_folder=False)]
    assert back == key.split("/")


@pytest.mark.parametrize("name", [b"%tune", b"README", b"bad%41.txt", b"\xff.json", b"%", b"x.json%"])
def test_files_that_the_store_did_not_write_are_no_objects(name: bytes, store: LocalStore) -> None:
    store.put("k.json", b"")
    if name != b"%tune":  # that one is there already
        (store.root / os.fsdecode(name)).write_bytes(b"foreign")
    assert [info.key for info in store.scan("")] == ["k.json"]
    assert list(store.children("")) == ["k.json"]


def test_a_name_too_long_for_a_file_is_refused_in_words(store: LocalStore) -> None:
    store.put("a/" + "n" * 251 + ".txt", b"fits")
    with pytest.raises(StorageError, match="too long"):
        store.put("a/" + "n" * 252 + ".txt", b"x")
    with pytest.raises(StorageError, match="too long"):
        store.get("ü" * 128 + "/x")
    with pytest.raises(StorageError, match="too long"):
        list(store.scan("f" * 256 + "/"))


def test_a_relative_root_is_refused_with_the_absolute_one() -> None:
    with pytest.raises(StorageError, match="absolute") as caught:
        LocalStore(Path("store"))
    assert "file:///" in caught.value.hint


def test_every_write_has_a_version_of_its_own_even_when_the_clock_stands_still(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, clock=SteppedClock())
    versions = {store.put("k", b"same").version for _ in range(50)}
    assert len(versions) == 50


def test_there_and_back_again_is_still_a_change(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, clock=SteppedClock())
    first = store.put("k", b"A")
    store.put("k", b"B")
    store.put("k", b"A")
    with pytest.raises(VersionConflict):
        store.put_if("k", b"C", version=first.version)


def test_a_clock_set_back_makes_no_old_version_valid(tmp_path: Path) -> None:
    clock = SteppedClock()
    store = LocalStore(tmp_path, clock=clock)
    first = store.put("k", b"A")
    clock.step(-3600)
    second = store.put("k", b"B")
    assert second.modified_at >= first.modified_at
    assert second.version != first.version


def test_the_time_of_an_object_is_the_stores_clock(tmp_path: Path) -> None:
    clock = SteppedClock()
    store = LocalStore(tmp_path, clock=clock)
    assert store.put("k", b"x").modified_at == clock.now() == store.head("k").modified_at == store.now()


def test_readers_see_the_old_bytes_or_the_new_ones(store: LocalStore) -> None:
    sizes = (10, 3_000_000)
    store.put("k", b"0" * sizes[0])
    done = threading.Event()
    odd: list[int] = []

    def read() -> None:
        while not done.is_set():
            got = store.get("k")
            if len(got.data) not in sizes or got.info.size != len(got.data):
                odd.append(len(got.data))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(30):
        store.put("k", b"0" * sizes[turn % 2])
    done.set()
    reader.join()
    assert odd == []


@pytest.mark.parametrize(("write", "naming"), [("put", "replace"), ("put_new", "link")])
def test_bytes_reach_the_disk_before_their_name_and_the_name_before_the_answer(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: str, naming: str
) -> None:
    store.put("folder/other", b"x")
    done: list[str] = []
    sync, name = os.fsync, getattr(os, naming)

    def noted_sync(fd: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "bytes")
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, naming, lambda *paths: (done.append("name"), name(*paths))[1])
    getattr(store, write)("folder/k", b"x")
    assert done == ["bytes", "name", "folder"]


def test_writers_never_share_an_unfinished_file_and_leave_none(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bytes] = []
    really = os.replace
    monkeypatch.setattr(os, "replace", lambda source, path: (used.append(source), really(source, path))[1])
    threads = [threading.Thread(target=store.put, args=("k", b"%d" % number)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(used)) == 20
    assert _unfinished(store) == []


def test_what_dead_writers_left_is_removed_and_what_living_ones_write_is_not(store: LocalStore) -> None:
    store.put("k", b"x")
    folder = store.root / "%tune" / "unfinished"
    (folder / "dead.part").write_bytes(b"half")
    with (folder / "living.part").open("wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        LocalStore(store.root).put("other", b"x")
        assert [path.name for path in _unfinished(store)] == ["living.part"]
    LocalStore(store.root).put("another", b"x")
    assert _unfinished(store) == []


def test_a_killed_download_is_cleared_away_by_the_next_one(store: LocalStore, tmp_path: Path) -> None:
    target = tmp_path / "in" / "model.bin"
    target.parent.mkdir()
    store.put("k", b"whole")
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom orchestrator.storage.temporary import whole\n"
        "with whole(Path(sys.argv[1])) as file:\n    file.write(b'half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(target)], cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(target.parent.iterdir())) == 1
    store.download("k", target)
    assert [path.name for path in target.parent.iterdir()] == ["model.bin"]


def test_a_lock_dies_with_its_holder(store: LocalStore) -> None:
    store.put("k", b"x")
    script = (
        "import os, sys, signal\nfrom pathlib import Path\nfrom orchestrator.storage.local import LocalStore\n"
        "os.utime = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"  # called while the lock is held
        "LocalStore(Path(sys.argv[1])).put('k', b'never')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(store.root)], cwd=ROOT)
    assert ended.returncode == -signal.SIGKILL
    store.put("k", b"at once")
    assert store.get("k").data == b"at once"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, (StorageUnavailable, "free some space")),
        (errno.EDQUOT, (StorageUnavailable, "quota")),
        (errno.EIO, (StorageUnavailable, "disk")),
        (errno.EACCES, (StorageDenied, "permissions")),
        (errno.EROFS, (StorageDenied, "read-only")),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "link"])
def test_a_disk_that_says_no_is_reported_and_the_old_bytes_stay(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, expected: tuple[type[StorageError], str], call: str
) -> None:
    kind, hint = expected
    store.put("k", b"old")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as disk:
        disk.setattr(os, call, refuse)
        with pytest.raises(kind, match=os.strerror(number)) as caught:
            store.put_new("new", b"new") if call == "link" else store.put("k", b"new")
    assert hint in caught.value.hint
    assert store.get("k").data == b"old"
    assert [info.key for info in store.scan("")] == ["k"]
    assert _unfinished(store) == []


def test_a_file_system_without_hard_links_still_has_one_winner(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store.put_new("k", b"first")
    with pytest.raises(AlreadyExists):
        store.put_new("k", b"second")
    assert store.get("k").data == b"first"


def test_a_full_local_disk_ends_a_download_without_a_trace(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.put("k", b"x")
    (tmp_path / "in").mkdir()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(StorageUnavailable, match="No space left"):
            store.download("k", tmp_path / "in" / "k")
    assert list((tmp_path / "in").iterdir()) == []


def test_an_empty_folder_that_a_crash_left_is_not_listed(store: LocalStore) -> None:
    store.put("runs/x/run.json", b"{}")
    (store.root / "runs" / "empty" / "deeper").mkdir(parents=True)
    assert list(store.children("runs/")) == ["x/"]


def test_a_whole_store_that_was_removed_is_made_anew(store: LocalStore) -> None:
    import shutil

    store.put("a/b", b"x")
    shutil.rmtree(store.root)
    with pytest.raises(ObjectNotFound):
        store.get("a/b")
    store.put("a/c", b"y")
    assert [info.key for info in store.scan("")] == ["a/c"]


def test_listing_costs_what_is_listed_not_what_lies_below(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in range(5):
        for number in range(40):
            store.put(f"runs/{run}/{number:03d}.x", b"")
    looked: list[object] = []
    really = os.stat
    monkeypatch.setattr(os, "stat", lambda *a, **k: (looked.append(a), really(*a, **k))[1])
    assert len(list(store.children("runs/"))) == 5
    assert looked == []


def test_a_partly_written_file_replaces_nothing_when_its_writer_fails(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")

    def fail() -> None:
        with whole(target) as file:
            file.write(b"new")
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        fail()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.glob(".*part")) == []
