"""Which marketplaces there are, and how to get one. Nothing is imported before it is asked for by name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import ProviderRejected, TuneError, UsageError
from orchestrator.providers.base import Account, Capabilities, Provider
from orchestrator.types import Instance

if TYPE_CHECKING:
    from orchestrator.providers.boot import Farewell
    from orchestrator.remote.base import Remote

PLUGIN_GROUP = "tune.providers"

_BUILT_IN = {
    "local": "orchestrator.providers.local:build",
    "runpod": "orchestrator.providers.runpod:build",
    "sim": "orchestrator.providers.sim:build",
    "vastai": "orchestrator.providers.vastai:build",
}


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """What a provider may know of this computer: where to keep things, and what the user's config file says."""

    state_dir: Path
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """A provider, and the way into the instances that it rents."""

    provider: Provider
    connect: Callable[[Instance], Remote]
    account: Account | None = None  # where the marketplace tells of money
    is_elsewhere: bool = False  # its instances are other people's computers: see `bootstrap`
    key_source: str = ""  # where its key was found, such as $VAST_API_KEY; never the key
    farewell: Farewell | None = None  # how its instances end themselves
    members: Mapping[str, Bound] = field(default_factory=dict)  # of several marketplaces that stand for one


Builder = Callable[[ProviderSettings], Bound]
"""What a provider's module, or a plugin, offers under its entry: `build(settings) -> Bound`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One provider as `tune providers` shows it. Without capabilities it cannot be used, for the reason given."""

    name: str
    source: str  # where its code comes from
    capabilities: Capabilities | None = None
    reason: str = ""


def names(*, plugins: Iterable[EntryPoint] | None = None) -> tuple[str, ...]:
    """Every provider that could be asked for, usable or not."""
    return tuple(sorted(_table(plugins)))


def get_provider(
    name: str,
    *,
    settings: ProviderSettings,
    clock: Clock | None = None,
    plugins: Iterable[EntryPoint] | None = None,
) -> Bound:
    """The provider, patient with a marketplace that does not answer, and the way into its instances.

    Whatever keeps it from being used is an error of ours: CredentialsMissing as the provider raised it, UsageError for
    a name that means nothing or two things, ProviderRejected for code that does not load.
    """
    from orchestrator.providers.retrying import Retrying, RetryingAccount

    clock = clock or SystemClock()
    bound = _build(name, settings, _table(plugins))
    account = RetryingAccount(bound.account, clock=clock) if bound.account else None
    return replace(bound, provider=Retrying(bound.provider, clock=clock), account=account)


def describe(*, settings: ProviderSettings, plugins: Iterable[EntryPoint] | None = None) -> tuple[Row, ...]:
    """A row per provider. One that cannot be loaded, or has no key, is a row with a reason."""
    table = _table(plugins)
    rows = []
    for name in sorted(table):
        source = " and ".join(table[name])
        try:
            rows.append(Row(name, source, _build(name, settings, table).provider.capabilities))
        except TuneError as e:
            rows.append(Row(name, source, reason=e.message))
        except Exception as e:  # a plugin's own code: it must not hide the other rows
            rows.append(Row(name, source, reason=f"{type(e).__name__}: {e}"))
    return tuple(rows)


def lazy(where: str) -> Callable[..., Any]:
    """A callable known as `module:attribute`, imported when it is first called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _load(where)(*args, **kwargs)

    return call


def _table(plugins: Iterable[EntryPoint] | None) -> Mapping[str, list[str]]:
    """Where each name is defined. More than one place is a clash, told when the name is used."""
    table = {name: [where] for name, where in _BUILT_IN.items()}
    for plugin in entry_points(group=PLUGIN_GROUP) if plugins is None else plugins:
        places = table.setdefault(plugin.name, [])
        if plugin.value not in places:  # the same distribution may be found twice on the path
            places.append(plugin.value)
    return table


def _build(name: str, settings: ProviderSettings, table: Mapping[str, list[str]]) -> Bound:
    places = table.get(name)
    if places is None:
        raise _unknown(name, table)
    if len(places) > 1:
        raise UsageError(
            f"two providers are called {name}: {' and '.join(places)}", hint="uninstall the one that you do not want"
        )
    try:
        build: Builder = _load(places[0])
    except Exception as e:  # whatever an import can raise
        raise ProviderRejected(f"provider {name} cannot be loaded: {type(e).__name__}: {e}") from e
    return build(settings)


def _unknown(name: str, table: Mapping[str, list[str]]) -> UsageError:
    usable = f"providers here: {', '.join(sorted(table))}"
    near = difflib.get_close_matches(name, [*table], n=1)
    return UsageError(f"there is no provider {name!r}" + (f"; did you mean {near[0]}?" if near else ""), hint=usable)


def _load(where: str) -> Any:
    module, _, attribute = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
