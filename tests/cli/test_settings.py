"""The user's config: what wins over what, and every mistake named with its line."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from orchestrator.cli import settings
from orchestrator.errors import UsageError


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "config.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_file_says_where_runs_are_kept(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        'storage = "s3://bucket/tune"\nstate_dir = "/var/tune"\nprovider = "sim"\n'
        '[storage_options]\nendpoint_url = "http://127.0.0.1:9"\n[providers.local]\noffers = 3\n',
    )
    found = settings.load(config=config)
    assert (found.storage, found.state_dir, found.provider) == ("s3://bucket/tune", Path("/var/tune"), "sim")
    assert found.storage_options == {"endpoint_url": "http://127.0.0.1:9"}
    assert found.providers == {"local": {"offers": "3"}}


def test_a_table_says_where_runs_are_kept_and_how(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        '[storage]\nurl = "s3://bucket/tune"\nendpoint_url = "http://127.0.0.1:9"\nsingle_writer = true\n'
        '[storage_options]\nregion = "auto"\n[providers.vastai]\napi_url = "http://127.0.0.1:8"\n',
    )
    found = settings.load(config=config)
    assert found.storage == "s3://bucket/tune"
    assert found.storage_options == {"endpoint_url": "http://127.0.0.1:9", "single_writer": "true", "region": "auto"}
    assert found.providers == {"vastai": {"api_url": "http://127.0.0.1:8"}}


def test_mistakes_in_the_storage_table_are_told_with_their_lines(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        '[storage]\nurl = ""\nendpoint = "http://x"\nsingle_writer = []\nregion = "a"\n[storage_options]\nregion = "b"\n',
    )
    with pytest.raises(UsageError) as caught:
        settings.load(config=config)
    message = caught.value.message
    assert "4 problems" in message
    assert f"{config}:2: storage.url - must be a non-empty string" in message
    assert f"{config}:3: storage.endpoint - unknown key; did you mean endpoint_url?" in message
    assert f"{config}:4: storage.single_writer - must be a string" in message
    assert "storage_options.region - stands under [storage], too; keep one" in message


def test_a_storage_table_without_a_url_never_means_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, '[storage]\nendpoint_url = "http://127.0.0.1:9"\n')
    with pytest.raises(UsageError, match="nothing says where"):
        settings.load(config=config)
    monkeypatch.setenv("TUNE_STORAGE", "s3://from-variable")
    found = settings.load(config=config)
    assert (found.storage, found.storage_options) == ("s3://from-variable", {"endpoint_url": "http://127.0.0.1:9"})


def test_without_a_file_everything_lies_below_the_home(tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    found = settings.load()
    assert found.storage == (home / ".local/share/tune/store").as_uri()
    assert found.state_dir == home / ".local/state/tune"
    assert found.provider == "local"
    assert found.source is None


def test_the_usual_place_is_read_when_no_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tune").mkdir()
    write(tmp_path / "tune", 'storage = "s3://usual"')
    assert settings.load().storage == "s3://usual"


def test_without_home_the_user_database_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert settings.load().state_dir == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".local/state/tune"


def test_variables_win_over_the_file_and_the_command_line_over_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = write(tmp_path, 'storage = "s3://from-file"')
    monkeypatch.setenv("TUNE_STORAGE", "s3://from-variable")
    assert settings.load(config=config).storage == "s3://from-variable"
    assert settings.load(config=config, storage="s3://from-line").storage == "s3://from-line"


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_does_not_hide_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty: str) -> None:
    config = write(tmp_path, 'storage = "s3://from-file"')
    monkeypatch.setenv("TUNE_STORAGE", empty)
    monkeypatch.setenv("TUNE_CONFIG", empty)
    assert settings.load(config=config).storage == "s3://from-file"


def test_bom_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    config = write(tmp_path, b'\xef\xbb\xbfstorage = "s3://b"\r\nprovider = "sim"\r\n')
    found = settings.load(config=config)
    assert (found.storage, found.provider) == ("s3://b", "sim")


def test_relative_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    config = write(tmp_path, 'storage = "./bucket with space"\nstate_dir = "state"')
    found = settings.load(config=config)
    assert found.storage == (tmp_path / "bucket with space").as_uri()
    assert found.state_dir == tmp_path / "state"


def test_all_mistakes_are_told_at_once_with_line_and_cure(tmp_path: Path) -> None:
    config = write(
        tmp_path, '# mine\nstroage = "s3://b"\nprovider = 3\n\n[providers]\nlocal = "x"\n[storage_options]\na = []\n'
    )
    with pytest.raises(UsageError) as caught:
        settings.load(config=config)
    message = caught.value.message
    assert "4 problems" in message
    assert f"{config}:2: stroage - unknown key; did you mean storage?" in message
    assert f"{config}:3: provider - must be a non-empty string" in message
    assert f"{config}:6: providers.local - must be a table" in message
    assert f"{config}:8: storage_options.a - must be a string" in message


def test_a_file_that_is_not_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    config = write(tmp_path, 'provider = "sim"\nstorage = s3://b\n')
    with pytest.raises(UsageError, match=r"config\.toml:2: not TOML") as caught:
        settings.load(config=config)
    assert "quotes" in caught.value.hint


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path, b'storage = "\xff\xfe"')
    with pytest.raises(UsageError, match="not UTF-8"):
        settings.load(config=config)


def test_a_named_file_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config names .*gone"):
        settings.load(config=str(tmp_path / "gone.toml"))
    monkeypatch.setenv("TUNE_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(UsageError, match=r"\$TUNE_CONFIG names .*gone"):
        settings.load()


def test_the_example_is_a_config_that_works() -> None:
    example = Path(settings.__file__).resolve().parents[2] / "configs" / "config.example.toml"
    found = settings.load(config=str(example))
    assert (found.storage, found.provider) == ("file:///var/lib/tune/store", "local")
    uncommented = [
        line.removeprefix("# ") for line in example.read_text().splitlines() if line.startswith("# ") and " = " in line
    ]
    assert len(uncommented) >= 6, "every option is shown"
