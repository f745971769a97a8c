"""Providers by name: built in, plugged in, announced, unknown, broken."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from orchestrator.errors import CredentialsMissing, ProviderRejected, UsageError
from orchestrator.providers import registry
from orchestrator.providers.local import LocalProvider
from orchestrator.providers.registry import Bound, ProviderSettings
from orchestrator.providers.retrying import Retrying
from orchestrator.types import Requirements

HERE = __name__


@pytest.fixture
def settings(tmp_path: Path) -> ProviderSettings:
    return ProviderSettings(tmp_path, {"usd_per_hour": "0.5"})


def plugin(name: str, attribute: str) -> EntryPoint:
    return EntryPoint(name, f"{HERE}:{attribute}" if ":" not in attribute else attribute, registry.PLUGIN_GROUP)


def build_good(settings: ProviderSettings) -> Bound:
    return Bound(LocalProvider(settings.state_dir, settings.options), connect=lambda instance: None)  # type: ignore[arg-type,return-value]


def build_without_key(settings: ProviderSettings) -> Bound:
    raise CredentialsMissing("ACME_KEY is not set", hint="set ACME_KEY")


def build_broken(settings: ProviderSettings) -> Bound:
    return settings.no_such_attribute  # type: ignore[attr-defined,no-any-return]


def test_the_local_provider_comes_with_its_options_patience_and_a_way_in(settings: ProviderSettings) -> None:
    bound = registry.get_provider("local", settings=settings)
    assert isinstance(bound.provider, Retrying)
    assert bound.provider.name == "local"
    assert str(bound.provider.offers(Requirements())[0].usd_per_hour) == "0.5"
    assert callable(bound.connect)


def test_a_plugin_joins_the_built_in_ones(settings: ProviderSettings) -> None:
    plugins = [plugin("acme", "build_good")]
    assert registry.names(plugins=plugins) == ("acme", "local", "runpod", "sim", "vastai")
    assert registry.get_provider("acme", settings=settings, plugins=plugins).provider.offers(Requirements())


def test_a_plugin_never_replaces_a_provider(settings: ProviderSettings) -> None:
    plugins = [plugin("local", "build_good")]
    with pytest.raises(UsageError, match="two providers are called local"):
        registry.get_provider("local", settings=settings, plugins=plugins)
    row = next(r for r in registry.describe(settings=settings, plugins=plugins) if r.name == "local")
    assert row.capabilities is None
    assert "build_good" in row.reason


def test_the_same_plugin_found_twice_is_one(settings: ProviderSettings) -> None:
    plugins = [plugin("acme", "build_good"), plugin("acme", "build_good")]
    assert registry.get_provider("acme", settings=settings, plugins=plugins)


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ("build_without_key", "ACME_KEY is not set"),
        ("build_broken", "no_such_attribute"),
        ("build_missing", "build_missing"),
        ("no_such_module:build", "no_such_module"),
    ],
)
def test_a_provider_that_cannot_be_used_is_a_row_with_a_reason(
    settings: ProviderSettings, attribute: str, reason: str
) -> None:
    rows = registry.describe(settings=settings, plugins=[plugin("acme", attribute)])
    acme = next(row for row in rows if row.name == "acme")
    assert acme.capabilities is None
    assert reason in acme.reason
    assert next(row for row in rows if row.name == "local").capabilities is not None, "the others are still shown"


def test_a_missing_key_is_said_as_the_provider_said_it(settings: ProviderSettings) -> None:
    with pytest.raises(CredentialsMissing, match="ACME_KEY"):
        registry.get_provider("acme", settings=settings, plugins=[plugin("acme", "build_without_key")])
    with pytest.raises(ProviderRejected, match="no_such_module"):
        registry.get_provider("acme", settings=settings, plugins=[plugin("acme", "no_such_module:build")])


@pytest.mark.parametrize("name", ["runpod", "vastai"])
def test_a_marketplace_without_a_key_is_a_row_with_a_reason(settings: ProviderSettings, name: str) -> None:
    with pytest.raises(CredentialsMissing):
        registry.get_provider(name, settings=settings)
    row = next(r for r in registry.describe(settings=settings) if r.name == name)
    assert row.capabilities is None
    assert row.reason


def test_a_mistyped_name_is_answered_with_the_nearest(settings: ProviderSettings) -> None:
    with pytest.raises(UsageError, match="did you mean local") as caught:
        registry.get_provider("locl", settings=settings)
    assert "sim" in caught.value.hint
    with pytest.raises(UsageError, match="no provider ''"):
        registry.get_provider("", settings=settings)


def test_asking_for_the_names_imports_no_provider() -> None:
    code = (
        "import sys; from orchestrator.providers import registry; registry.names();"
        "print([m for m in sys.modules if m.startswith(('orchestrator.providers.', 'psutil', 'tenacity', 'pydantic'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['orchestrator.providers.base', 'orchestrator.providers.registry']"
