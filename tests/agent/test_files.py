"""Files are read once, for their hash and for secrets; several things go on at a time."""

from hashlib import sha256
from pathlib import Path
from threading import Event

import pytest

from orchestrator.agent.files import examine
from orchestrator.agent.parallel import in_parallel
from orchestrator.agent.redact import Redactor

MIB = 1 << 20
SECRET = "hf_abcdefghijklmnop"


def examined(tmp_path: Path, name: str, data: bytes) -> bool:
    (tmp_path / name).write_bytes(data)
    found = examine(tmp_path / name, Redactor([SECRET]))
    assert (found.size, found.sha256) == (len(data), sha256(data).hexdigest())
    return found.holds_secret


@pytest.mark.parametrize("at", [0, MIB - len(SECRET), MIB - 7, MIB - 1, MIB, 2 * MIB - 9, 3 * MIB - len(SECRET)])
def test_a_secret_is_found_wherever_it_lies_also_across_two_pieces(tmp_path: Path, at: int) -> None:
    data = bytearray(3 * MIB)
    data[at : at + len(SECRET)] = SECRET.encode()
    assert examined(tmp_path, "tokenizer.json", bytes(data))


def test_no_half_of_a_secret_is_one(tmp_path: Path) -> None:
    half = len(SECRET) // 2
    assert not examined(
        tmp_path, "a.json", bytes(MIB - half) + SECRET[:half].encode() + bytes(9) + SECRET[half:].encode()
    )
    assert not examined(tmp_path, "empty.json", b"")


def test_tensors_are_searched_where_something_is_said_about_them(tmp_path: Path) -> None:
    assert examined(tmp_path, "training_args.bin", bytes(99) + SECRET.encode())
    assert examined(tmp_path, "model.safetensors", SECRET.encode() + bytes(2 * MIB))
    assert not examined(tmp_path, "model.safetensors", bytes(2 * MIB) + SECRET.encode())


def test_a_large_file_is_not_searched(tmp_path: Path) -> None:
    assert not examined(tmp_path, "dump", SECRET.encode() + bytes(33 * MIB))


def test_results_keep_the_order_of_what_was_asked() -> None:
    assert in_parallel(lambda n: n * n, range(50)) == [n * n for n in range(50)]
    assert in_parallel(str, []) == []


def test_after_an_error_what_has_not_begun_is_left() -> None:
    failed, begun = Event(), []

    def act(number: int) -> None:
        begun.append(number)
        if number == 0:
            failed.set()
            raise OSError("no")
        failed.wait()

    with pytest.raises(OSError, match="no"):
        in_parallel(act, range(10_000))
    assert len(begun) < 10_000
