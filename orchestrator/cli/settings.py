"""The user's config: one TOML file, three variables, and defaults that need neither."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = ("storage", "state_dir", "provider", "storage_options", "providers")
VARIABLES = {"storage": "TUNE_STORAGE", "state_dir": "TUNE_STATE_DIR", "provider": "TUNE_PROVIDER"}
DEFAULT_PROVIDER = "local"
# What may stand under [storage] beside `url`. None is a key or a token: those come from the environment or AWS's files.
STORAGE_KEYS = (
    "endpoint_url",
    "region",
    "addressing_style",
    "profile",
    "single_writer",
    "role_arn",
    "sts_endpoint_url",
    "send_own_keys",
    "grant_hours",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Where runs are kept, where this computer keeps what concerns only itself, and whom to rent from."""

    storage: str
    state_dir: Path
    provider: str = DEFAULT_PROVIDER
    storage_options: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # options per provider
    source: Path | None = None  # the file that was read
    origins: Mapping[str, str] = field(default_factory=dict)  # key -> where its value came from


def load(*, config: str | None = None, storage: str | None = None) -> Settings:
    """Command line before variables before file before defaults. An empty variable counts as not set."""
    path = find(config)
    table, problems = _read(path) if path else ({}, [])
    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    for key, variable in VARIABLES.items():
        from_variable = os.environ.get(variable, "").strip()
        if from_variable:
            values[key], origins[key] = from_variable, f"${variable}"
        elif table.get(key):
            values[key], origins[key] = table[key], str(path)
    if storage:
        values["storage"], origins["storage"] = storage, "--storage"
    if problems:
        raise UsageError(
            "\n  ".join([f"{path}: {_count(len(problems))}", *map(str, problems)]),
            hint="`tune doctor` checks the whole setup",
        )
    if not values.get("storage") and table.get("storage_options") and "storage" in table:
        raise UsageError(
            f"{path}: [storage] says how, and nothing says where",
            hint='add url = "s3://my-bucket/tune" below [storage]',
        )
    here = path.parent if path and origins.get("state_dir") == str(path) else Path.cwd()
    state_dir = (here / Path(values["state_dir"]).expanduser()) if "state_dir" in values else state_home() / "tune"
    return Settings(
        storage=_storage(
            values.get("storage"), path.parent if path and origins.get("storage") == str(path) else Path.cwd()
        ),
        state_dir=state_dir,
        provider=values.get("provider", DEFAULT_PROVIDER),
        storage_options=table.get("storage_options", {}),
        providers=table.get("providers", {}),
        source=path,
        origins=origins,
    )


def find(config: str | None) -> Path | None:
    """The config file: named ones must exist, the usual place may be empty."""
    for name, origin in ((config, "--config"), (os.environ.get("TUNE_CONFIG", "").strip(), "$TUNE_CONFIG")):
        if name:
            path = Path(name).expanduser().absolute()
            if not path.is_file():
                raise UsageError(
                    f"{origin} names {path}, which is not a file",
                    hint="`configs/config.example.toml` shows what goes in",
                )
            return path
    try:
        usual = _home("XDG_CONFIG_HOME", ".config") / "tune" / "config.toml"
    except UsageError:
        return None  # no home at all: everything may still come from variables
    return usual if usual.is_file() else None


def config_home() -> Path:
    return _home("XDG_CONFIG_HOME", ".config")


def data_home() -> Path:
    return _home("XDG_DATA_HOME", ".local/share")


def state_home() -> Path:
    return _home("XDG_STATE_HOME", ".local/state")


def _home(variable: str, below: str) -> Path:
    """The XDG folder; the home is taken from the user database when HOME is missing, as it is under cron."""
    named = os.environ.get(variable, "")
    if named.startswith("/"):
        return Path(named)
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        import pwd

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = ""
    if not home.startswith("/"):
        raise UsageError(
            f"there is no HOME and no user {os.getuid()} in the user database",
            hint="give --config with storage and state_dir set",
        )
    return Path(home) / below


def _storage(value: str | None, base: Path) -> str:
    """A URL. A path is a folder; a relative one lies beside whoever named it."""
    if value is None:
        return (data_home() / "tune" / "store").as_uri()
    if not value.startswith(("/", ".", "~")):
        return value  # a URL, or something that opening the store will refuse with the right spelling
    return (base / Path(value).expanduser()).absolute().as_uri()


def _read(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    import tomllib

    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror}", hint="check the file's owner and rights") from None
    except UnicodeDecodeError as e:
        raise UsageError(f"{path} is not UTF-8 text (byte {e.start})", hint="save it as UTF-8") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        place = re.search(r"\(at line (\d+), column \d+\)", str(e))
        line = f":{place[1]}" if place else ""
        what = str(e).removesuffix(place[0]).strip() if place else str(e)
        raise UsageError(
            f"{path}{line}: not TOML: {what}", hint='strings need quotes: storage = "file:///data/tune"'
        ) from None
    return _checked(table, text, path)


def _checked(table: Mapping[str, Any], text: str, path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """What is usable of the table, and everything that is not."""
    good: dict[str, Any] = {}
    problems: list[Problem] = []

    def wrong(key: str, message: str, hint: str = "") -> None:
        problems.append(Problem(key, message, hint=hint, path=str(path), line=_line(text, key)))

    for key, value in table.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            wrong(key, "unknown key", f"did you mean {near[0]}?" if near else f"known keys: {', '.join(KEYS)}")
        elif key == "storage" and isinstance(value, dict):
            _storage_table(value, good, wrong)
        elif key in VARIABLES:
            if not isinstance(value, str) or not value.strip():
                wrong(key, "must be a non-empty string")
            else:
                good[key] = value
        elif not isinstance(value, dict):
            wrong(key, f"must be a table: [{key}]")
        elif key == "storage_options":
            for name in value.keys() & good.get(key, {}).keys():
                wrong(f"storage_options.{name}", "stands under [storage], too", "keep one")
            good[key] = {**good.get(key, {}), **_strings(key, value, wrong)}
        else:
            for name, options in value.items():
                if not isinstance(options, dict):
                    wrong(f"providers.{name}", f"must be a table: [providers.{name}]")
            good[key] = {n: _strings(f"providers.{n}", o, wrong) for n, o in value.items() if isinstance(o, dict)}
    return good, problems


def _storage_table(table: Mapping[str, Any], good: dict[str, Any], wrong: Any) -> None:
    """`[storage]` with `url` and the options beside it: the same as `storage` and `[storage_options]`."""
    options = _strings("storage", table, wrong)
    for key in [key for key in options if key not in ("url", *STORAGE_KEYS)]:
        near = difflib.get_close_matches(key, ("url", *STORAGE_KEYS), n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: url, {', '.join(STORAGE_KEYS)}"
        wrong(f"storage.{key}", "unknown key", hint)
        del options[key]
    url = options.pop("url", "")
    if "url" in table and not url.strip():
        wrong("storage.url", "must be a non-empty string")
    good["storage"] = url
    for name in options.keys() & good.get("storage_options", {}).keys():
        wrong(f"storage_options.{name}", "stands under [storage], too", "keep one")
    good["storage_options"] = {**options, **good.get("storage_options", {})}


def _strings(where: str, table: Mapping[str, Any], wrong: Any) -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, bool):
            out[key] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            out[key] = str(value)
        else:
            wrong(f"{where}.{key}", "must be a string, a number or true/false")
    return out


def _line(text: str, key: str) -> int | None:
    """Where the last part of a dotted key is written; tomllib does not say."""
    last = re.escape(key.rpartition(".")[2])
    spot = re.search(rf"""^[ \t]*(?:\[.*?)?["']?{last}["']?[ \t]*(?:[=.\]])""", text, re.MULTILINE)
    return text.count("\n", 0, spot.start()) + 1 if spot else None


def _count(problems: int) -> str:
    return "1 problem" if problems == 1 else f"{problems} problems"
