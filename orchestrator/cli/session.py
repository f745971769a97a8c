"""One command's hands: the settings, the store, the clock, the printer, and a way to reach every provider."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator.cli import invocation, settings
from orchestrator.cli.render import Renderer
from orchestrator.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.cli.settings import Settings
    from orchestrator.clock import Clock
    from orchestrator.observe import Context
    from orchestrator.providers.registry import Bound, ProviderSettings, Row
    from orchestrator.storage.grants import Grant
    from orchestrator.storage.runs import RunStore
    from orchestrator.sweep import SweepReport
    from orchestrator.types import Namespace, Run


# What a training may need besides the bucket's keys; each goes to an instance only if it is set here.
PASSED_ON = ("HF_TOKEN", "WANDB_API_KEY", "COMET_API_KEY", "SWANLAB_API_KEY")
BUCKET_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class Session:
    """Everything is opened when it is first needed, so that `tune status` never touches a provider."""

    def __init__(self, *, recipe_storage: str | None = None) -> None:
        """`recipe_storage`: where a recipe wants its run kept. The command line still wins."""
        self.render = Renderer.current()
        self.clock: Clock = SystemClock()
        self._recipe_storage = recipe_storage
        self._bound: dict[str, Bound] = {}

    @cached_property
    def settings(self) -> Settings:
        common = invocation.current()
        return settings.load(config=common.config, storage=common.storage or self._recipe_storage)

    @property
    def storage_is_the_recipes(self) -> bool:
        """Later commands will not look there by themselves."""
        return bool(self._recipe_storage) and not invocation.current().storage

    @cached_property
    def runs(self) -> RunStore:
        from orchestrator.storage.open import open_store
        from orchestrator.storage.runs import RunStore

        return RunStore(open_store(self.settings.storage, options=self.settings.storage_options))

    def provider_settings(self, name: str) -> ProviderSettings:
        from orchestrator.providers.registry import ProviderSettings

        return ProviderSettings(self.settings.state_dir, self.settings.providers.get(name, {}))

    def provider(self, name: str) -> Bound:
        """The provider of that name, or the error that keeps it from being used."""
        from orchestrator.providers.market import split
        from orchestrator.providers.registry import get_provider

        if name not in self._bound:
            parts = split(name)
            if len(parts) > 1:
                self._bound[name] = self._market(parts)
            else:
                self._bound[name] = get_provider(name, settings=self.provider_settings(name))
        return self._bound[name]

    def _market(self, names: Sequence[str]) -> Bound:
        """Several marketplaces as one. One whose key is missing is left out, and said, as long as another is left."""
        from orchestrator.errors import CredentialsMissing
        from orchestrator.providers.market import bind

        members: dict[str, Bound] = {}
        missing: list[CredentialsMissing] = []
        for name in names:
            try:
                members[name] = self.provider(name)
            except CredentialsMissing as e:
                missing.append(e)
        if not members:
            raise missing[0]
        for one in missing:
            self.render.note(f"note: {one.message}; going on with {', '.join(members)}")
        return bind(members)

    def provider_name(self, asked: str) -> str:
        """How a run remembers whom it may rent from: sorted, and `any` is every marketplace that can be used now."""
        from orchestrator.errors import CredentialsMissing
        from orchestrator.providers.market import SEPARATOR, split

        if asked != "any":
            return SEPARATOR.join(split(asked)) or asked
        usable, missing = [], []
        for row in self.provider_rows():
            if row.capabilities and self.provider(row.name).is_elsewhere:
                usable.append(row.name)
            elif not row.capabilities:
                missing.append(f"{row.name}: {row.reason}")
        if not usable:
            raise CredentialsMissing("no marketplace can be used", hint="; ".join(missing) or "run `tune providers`")
        return SEPARATOR.join(usable)

    @cached_property
    def context(self) -> Context:
        """The world as a pass sees it."""
        from orchestrator.bootstrap import local_agent_script
        from orchestrator.handover import start_command
        from orchestrator.observe import Context

        self._remember_namespace()
        return Context(
            runs=self.runs,
            bound=self.provider,
            start_command=start_command(),
            agent_script=local_agent_script(),
            secrets=self.secrets(),
            storage_options=self.settings.storage_options,
            state_dir=self.settings.state_dir,
            grant=self.grant,
        )

    def grant(self, run: Run) -> Grant | None:
        """Keys to the bucket for one run's rented instance; none for this computer's own, which has ours."""
        from orchestrator import keys
        from orchestrator.storage import grants
        from orchestrator.storage.uri import parse

        if not self.provider(run.provider).is_elsewhere:
            return None
        return grants.mint(
            parse(self.settings.storage),
            self.settings.storage_options,
            run_prefix=keys.run(run.run_id),
            environment=os.environ,
        )

    def sweep(self, *, dry_run: bool = False) -> SweepReport:
        """Look at every usable provider for what nobody owns."""
        from orchestrator import sweep

        usable = [row.name for row in self.provider_rows() if row.capabilities]
        return sweep.sweep(self.context, usable, clock=self.clock, dry_run=dry_run)

    def sweep_without_storage(self, *, consent: bool) -> SweepReport:
        """End all that carries this computer's memory of the namespace. The bucket is not asked for anything."""
        from orchestrator import sweep

        usable = [row.name for row in self.provider_rows() if row.capabilities]
        return sweep.sweep_without_storage(
            [self.provider(name).provider for name in usable],
            self.cached_namespace(),
            clock=self.clock,
            consent=consent,
        )

    def cached_namespace(self) -> Namespace:
        """The namespace of this storage as this computer has seen it last."""
        from orchestrator.errors import UsageError
        from orchestrator.types import Namespace

        try:
            return Namespace(self._namespace_file().read_text().split()[0])
        except (OSError, IndexError):
            raise UsageError(
                f"this computer has never seen the runs in {self.settings.storage}",
                hint="run this where `tune launch` or `tune reconcile` has run, with the same --config",
            ) from None

    def _remember_namespace(self) -> None:
        """For the day when the bucket is gone; without it nobody could tell which instances were ours."""
        path, namespace = self._namespace_file(), self.runs.namespace()
        try:
            if path.exists() and path.read_text().split()[:1] == [namespace]:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            draft.write_text(f"{namespace} {self.settings.storage}\n")
            draft.replace(path)
        except OSError as e:
            self.render.note(
                f"warning: {path} cannot be written ({e.strerror}); `tune sweep --without-storage` will not work"
            )

    def _namespace_file(self) -> Path:
        from hashlib import sha256

        name = sha256(self.settings.storage.encode()).hexdigest()[:16]
        return self.settings.state_dir / "namespaces" / name

    def secrets(self) -> dict[str, str]:
        """What an instance is given to keep: the bucket's keys when there is a bucket, and what models ask for."""
        names = PASSED_ON + (BUCKET_KEYS if self.settings.storage.startswith("s3:") else ())
        found = {name: os.environ[name] for name in names if os.environ.get(name, "").strip()}
        if "HF_TOKEN" not in found:
            from orchestrator.preflight_hub import hub_token

            token = hub_token(os.environ)  # the file of `hf auth login` counts as much as the variable
            found |= {"HF_TOKEN": token.value} if token else {}
        return found

    def document(self, run: Run) -> dict[str, Any]:
        """A run in a list, or as the answer to a command: its record without a look at the instance."""
        from orchestrator.cli.view import summary

        return summary(run, now=self.runs.store.now())

    @staticmethod
    def plain(record: object) -> Any:
        """A stored record as plain JSON data."""
        from orchestrator import codec

        return json.loads(codec.dump(record))

    def provider_rows(self) -> tuple[Row, ...]:
        """A row per provider, usable or not, each built with its own options from the config."""
        from orchestrator.providers.registry import describe, names

        known = {name: describe(settings=self.provider_settings(name)) for name in names()}
        rows = {row.name: row for name in known for row in known[name] if row.name == name or row.name not in known}
        return tuple(rows[name] for name in sorted(rows))
