"""What `tune doctor` finds of accounts: marketplaces, the hub, and the libraries that speak to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import TYPE_CHECKING

from orchestrator.errors import CredentialsMissing, TuneError, UsageError
from orchestrator.findings import FAIL, NOTE, OK, WARN, Finding

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.providers.registry import Row

# name -> (oldest, first that is too new, what it is for). Before 1.0, `vastai` was the command line only and its
# results were printed, not returned. `runpod` 1.12 wants another major version of `cryptography` than `vastai` does.
SDKS = {
    "vastai": ((1, 0), (2, 0), "rents at Vast.ai"),
    "runpod": ((1, 11), (2, 0), "speaks to RunPod's older interface"),
}


def providers(session: Session) -> Iterator[Finding]:
    """Every provider, and of each account whether its key is taken and what is left."""
    from orchestrator.providers.market import split

    chosen = split(session.settings.provider)
    rows = session.provider_rows()
    usable = [row for row in rows if row.capabilities]
    if not usable:
        told: list[list[Finding]] = []
    else:
        with ThreadPoolExecutor(max_workers=len(usable)) as pool:
            told = list(pool.map(lambda row: _account(session, row, is_chosen=row.name in chosen), usable))
    accounts = dict(zip((row.name for row in usable), told, strict=True))
    for row in rows:
        mark = " (the default)" if row.name in chosen else ""
        if row.name in accounts:
            yield Finding(OK, "provider", f"{row.name}{mark}: usable")
            yield from accounts[row.name]
        elif row.name in chosen:
            hint = f"`tune providers` says more; or set provider to another one than {row.name}"
            yield Finding(FAIL, "provider", f"{row.name}{mark}: {row.reason}", hint, CredentialsMissing)
        else:
            yield Finding(WARN, "provider", f"{row.name}: {row.reason}")
    for name in chosen:
        if name not in {row.name for row in rows} and name != "any":
            yield Finding(FAIL, "provider", f"there is no provider {name!r}", "run `tune providers`", UsageError)


def rents_elsewhere(session: Session) -> bool:
    """Whether the default is anybody's computer but this one."""
    from orchestrator.providers.market import split
    from orchestrator.recipe.tune_block import STEPPED

    return any(name not in STEPPED for name in split(session.settings.provider))


def _account(session: Session, row: Row, *, is_chosen: bool) -> list[Finding]:
    """The marketplace's own word about the key. A refused key matters only where one would rent."""
    try:
        bound = session.provider(row.name)
        if bound.account is None:
            return []
        source = f"key from {bound.key_source}" if bound.key_source else "its key"
        balance = bound.account.balance_usd()
    except CredentialsMissing as e:
        return [Finding(FAIL if is_chosen else WARN, "account", f"{row.name}: {e.message}", e.hint, type(e))]
    except TuneError as e:
        return [Finding(WARN, "account", f"{row.name} does not answer: {e.message}", e.hint)]
    if balance is None:
        return [Finding(NOTE, "account", f"{row.name}: {source}; it does not tell the balance")]
    if balance <= 0:
        return [
            Finding(WARN, "account", f"{row.name}: {source} works; ${balance:.2f} left", "add credit before renting")
        ]
    return [Finding(OK, "account", f"{row.name}: {source} works; ${balance:.2f} left")]


def hub(_session: Session) -> Iterator[Finding]:
    """The token for models and data sets, where it was found and whose it is."""
    from orchestrator.preflight_hub import Hub, is_offline

    asked = Hub(os.environ)
    if asked.token is None:
        yield Finding(NOTE, "hub", "no token: open models and data sets only", "export HF_TOKEN=… for gated ones")
    elif is_offline(os.environ):
        yield Finding(NOTE, "hub", f"token from {asked.token.source}; not asked, for HF_HUB_OFFLINE is set")
    else:
        yield asked.owner()


def sdks(_session: Session) -> Iterator[Finding]:
    """Versions that this one was made with; a missing one hurts only who needs it."""
    for name, (oldest, too_new, purpose) in SDKS.items():
        wanted = f"{'.'.join(map(str, oldest))} or newer, below {too_new[0]}"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(
                WARN, "sdk", f"{name} is not installed; it {purpose}", f"pip install '{name}>={oldest[0]}.{oldest[1]}'"
            )
            continue
        if oldest <= _numbers(version) < too_new:
            yield Finding(OK, "sdk", f"{name} {version}")
        else:
            hint = f"pip install --upgrade '{name}>={oldest[0]}.{oldest[1]},<{too_new[0]}'"
            yield Finding(WARN, "sdk", f"{name} {version}; {wanted} is needed: it {purpose}", hint)


def _numbers(version: str) -> tuple[int, ...]:
    parts: list[int] = []
    for part in version.split(".")[:2]:
        digits = "".join(letter for letter in part if letter.isdigit())
        parts.append(int(digits or 0))
    return tuple(parts)
