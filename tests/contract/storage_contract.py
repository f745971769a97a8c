"""What every store promises, whatever it is made of."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from orchestrator.errors import AlreadyExists, ObjectNotFound, StorageError, VersionConflict
from orchestrator.storage.base import Store

WRITERS = 20
MEASURE = """
import json, sys, tracemalloc
from pathlib import Path
from orchestrator.storage.open import open_store
url, options, source, copy = sys.argv[1:]
store = open_store(url, options=json.loads(options))
store.put("warm", b"up")  # what the SDK itself takes is not the question
tracemalloc.start()
store.upload("runs/x/big.bin", Path(source))
store.download("runs/x/big.bin", Path(copy))
sys.stdout.write(str(tracemalloc.get_traced_memory()[1]))
"""
ODD_KEYS = [
    "données 训练.jsonl",
    "a b+c%20d/100%",
    "q?x=1#frag&y/;:@!$'()*,=[]{}|\\^`~\"<>",
    "%tune/locks/00",
    "%",
    ".hidden/.x",
    "dir.with.dots/no-dot",
    "ünï/日本.json",
    "-/_",
    " lead and trail ",
]


class StorageContract:
    """Subclass it and give it a `store` that is empty, and a way to open the same one again."""

    open_again: Callable[[Store], Store]
    in_a_child: Callable[[Store], dict[str, str]] | None = None  # the options to open it with; None: only in here

    def test_what_was_put_is_read_back_with_the_version_it_belongs_to(self, store: Store) -> None:
        put = store.put("folder/one.json", b"first")
        got = store.get("folder/one.json")
        assert got.data == b"first"
        assert (got.info.key, got.info.size, got.info.version) == ("folder/one.json", 5, put.version)
        assert store.head("folder/one.json") == got.info

    def test_an_absent_key_is_said_to_be_absent(self, store: Store) -> None:
        for look in (store.get, store.head):
            with pytest.raises(ObjectNotFound, match="nothing/here"):
                look("nothing/here")

    def test_a_second_put_replaces_the_first_and_changes_the_version(self, store: Store) -> None:
        first = store.put("k", b"one")
        second = store.put("k", b"two")
        assert store.get("k").data == b"two"
        assert first.version != second.version

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put("active/x", b"")
        assert store.get("active/x").data == b""
        assert list(store.children("active/")) == ["x"]

    def test_put_new_never_replaces(self, store: Store) -> None:
        store.put_new("k", b"first")
        with pytest.raises(AlreadyExists):
            store.put_new("k", b"second")
        assert store.get("k").data == b"first"

    def test_put_new_works_again_after_a_delete(self, store: Store) -> None:
        store.put_new("k", b"first")
        store.delete("k")
        store.put_new("k", b"second")
        assert store.get("k").data == b"second"

    def test_of_many_put_new_exactly_one_wins_and_its_bytes_stand(self, store: Store) -> None:
        start = threading.Barrier(WRITERS)

        def write(number: int) -> bool:
            start.wait()
            try:
                store.put_new("names/wanted.json", b"writer %d" % number)
            except AlreadyExists:
                return False
            return True

        with ThreadPoolExecutor(WRITERS) as pool:
            won = list(pool.map(write, range(WRITERS)))
        assert won.count(True) == 1
        assert store.get("names/wanted.json").data == b"writer %d" % won.index(True)

    def test_put_if_replaces_only_the_version_it_names(self, store: Store) -> None:
        first = store.put_new("k", b"one")
        second = store.put_if("k", b"two", version=first.version)
        with pytest.raises(VersionConflict):
            store.put_if("k", b"three", version=first.version)
        assert store.get("k").data == b"two"
        assert store.get("k").info.version == second.version

    def test_put_if_on_an_object_that_is_gone_is_a_conflict(self, store: Store) -> None:
        first = store.put("k", b"one")
        store.delete("k")
        with pytest.raises(VersionConflict):
            store.put_if("k", b"two", version=first.version)
        assert list(store.scan("")) == []

    def test_concurrent_increments_lose_nothing(self, store: Store) -> None:
        store.put("counter", b"0")
        other = type(self).open_again(store)

        def add(number: int) -> None:
            mine = other if number % 2 else store
            while True:
                seen = mine.get("counter")
                try:
                    mine.put_if("counter", b"%d" % (int(seen.data) + 1), version=seen.info.version)
                except VersionConflict:
                    continue
                return

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(40)))
        assert store.get("counter").data == b"40"

    def test_a_second_opening_sees_what_the_first_one_wrote(self, store: Store) -> None:
        store.put("runs/x/run.json", b"{}")
        again = type(self).open_again(store)
        assert again.url == store.url
        assert again.head("runs/x/run.json") == store.head("runs/x/run.json")

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_round_trip(self, store: Store, key: str) -> None:
        store.put(key, key.encode())
        assert store.get(key).data == key.encode()
        assert [info.key for info in store.scan("")] == [key]
        with pytest.raises(AlreadyExists):
            store.put_new(key, b"")
        store.delete(key)
        assert list(store.children("")) == []

    @pytest.mark.parametrize(
        "key", ["", "/abs", "../up", "a/../b", "a/./b", "a//b", "a/", "nul\0", "line\nbreak", "x" * 1025, "half\ud800"]
    )
    def test_what_is_no_key_is_refused_and_nothing_is_written(self, store: Store, key: str) -> None:
        with pytest.raises(StorageError, match="not a key"):
            store.put(key, b"x")
        assert list(store.scan("")) == []

    def test_a_key_may_be_the_folder_of_another(self, store: Store) -> None:
        keys = ["a", "a/b", "a/b/c", "a.x", "a.x/b"]
        for key in reversed(keys):
            store.put_new(key, key.encode())
        assert [store.get(key).data.decode() for key in keys] == keys
        store.delete("a")
        assert store.get("a/b").data == b"a/b"

    def test_scan_goes_in_key_order_and_only_below_the_prefix(self, store: Store) -> None:
        keys = ["r/1/x", "r/1-b", "r/10/x", "r/1", "r/2", "s", "r.x", "r/1/a/z", "R/1"]
        for key in keys:
            store.put(key, b"")
        assert [info.key for info in store.scan("")] == sorted(keys)
        assert [info.key for info in store.scan("r/1")] == ["r/1", "r/1-b", "r/1/a/z", "r/1/x", "r/10/x"]
        assert [info.key for info in store.scan("r/1/")] == ["r/1/a/z", "r/1/x"]
        assert list(store.scan("nothing/")) == []

    def test_children_are_names_and_folders_in_order_each_once(self, store: Store) -> None:
        for key in ["runs/b/1", "runs/b/2", "runs/a/x/y", "runs/b-1", "runs/b0", "runs.json", "z"]:
            store.put(key, b"")
        assert list(store.children("")) == ["runs.json", "runs/", "z"]
        assert list(store.children("runs/")) == ["a/", "b-1", "b/", "b0"]
        assert list(store.children("runs/", start_after="a/")) == ["b-1", "b/", "b0"]
        assert list(store.children("runs/", start_after="b/")) == ["b0"]
        assert list(store.children("none/")) == []
        with pytest.raises(StorageError, match="must end"):
            list(store.children("runs"))

    def test_listings_have_no_last_page_problem(self, store: Store) -> None:
        keys = [f"many/{number:04d}/x" for number in range(1022)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"."), keys))
        assert [info.key for info in store.scan("many/")] == keys
        assert list(store.children("many/")) == [f"{number:04d}/" for number in range(1022)]

    def test_delete_is_idempotent_and_leaves_no_folder(self, store: Store) -> None:
        store.put("deep/er/still.txt", b"x")
        store.put("deep/other.txt", b"x")
        store.delete("deep/er/still.txt")
        store.delete("deep/er/still.txt")
        store.delete("never/was")
        assert list(store.children("deep/")) == ["other.txt"]
        store.delete("deep/other.txt")
        assert list(store.children("")) == []

    def test_a_folder_that_others_empty_can_be_written_to_all_the_same(self, store: Store) -> None:
        def churn(number: int) -> None:
            for turn in range(10):
                key = f"shared/{number % 2}/{number}-{turn}.x"
                store.put(key, b"x")
                store.delete(key)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(churn, range(4)))
        assert list(store.scan("")) == []

    def test_files_stream_both_ways_in_bounded_memory(self, store: Store, tmp_path: Path) -> None:
        size = 24 * 2**20
        source = tmp_path / "source.bin"
        source.write_bytes(secrets.token_bytes(size))
        there: list[int] = []
        back: list[int] = []
        sent = store.upload("runs/x/big file.bin", source, progress=there.append)
        got = store.download("runs/x/big file.bin", tmp_path / "copy.bin", progress=back.append)
        assert (tmp_path / "copy.bin").read_bytes() == source.read_bytes()
        assert sent.size == got.size == sum(there) == sum(back) == size
        assert sent.version == got.version
        if self.in_a_child:
            assert _peak_of_a_child(store, source, tmp_path / "again.bin", self.in_a_child(store)) < size // 2

    def test_an_empty_file_can_be_uploaded_and_downloaded(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "empty").write_bytes(b"")
        assert store.upload("empty.bin", tmp_path / "empty").size == 0
        assert store.download("empty.bin", tmp_path / "copy").size == 0
        assert (tmp_path / "copy").read_bytes() == b""

    def test_uploading_a_file_that_is_not_there_is_a_storage_error(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=r"gone\.bin"):
            store.upload("k", tmp_path / "gone.bin")
        assert list(store.scan("")) == []

    def test_an_interrupted_download_leaves_the_old_file_and_nothing_else(self, store: Store, tmp_path: Path) -> None:
        store.put("k", b"new" * 1000)
        target = tmp_path / "place" / "k"
        target.parent.mkdir()
        target.write_bytes(b"old")

        def interrupt(_moved: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.download("k", target, progress=interrupt)
        with pytest.raises(ObjectNotFound):
            store.download("absent", target)
        assert target.read_bytes() == b"old"
        assert list(target.parent.iterdir()) == [target]

    def test_time_is_aware_utc_and_goes_with_what_is_written(self, store: Store) -> None:
        slack = timedelta(seconds=1)  # a bucket counts whole seconds
        before = store.now()
        store.put("k", b"x")
        written = store.head("k").modified_at
        assert before.tzinfo is UTC
        assert written.tzinfo is UTC
        assert before - slack <= written <= store.now() + slack
        assert [info.modified_at for info in store.scan("")] == [written]


def _peak_of_a_child(store: Store, source: Path, copy: Path, options: dict[str, str]) -> int:
    """Bytes of Python memory that an upload and a download take, apart from the server's."""
    argv = [sys.executable, "-c", MEASURE, store.url, json.dumps(options), str(source), str(copy)]
    peak = int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert copy.read_bytes() == source.read_bytes()
    return peak
