"""From a provider's name as people write it to the marketplaces that can be asked, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import CredentialsMissing, TuneError, UsageError

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.providers.registry import Bound

ANY = "any"


@dataclass(frozen=True, slots=True)
class Reached:
    """Whom a name stands for."""

    name: str  # as a run remembers it
    bounds: Mapping[str, Bound]
    missing: Mapping[str, TuneError]  # those whose key is not there

    @property
    def is_elsewhere(self) -> bool:
        """Their instances are other people's computers. What asks for a key is never this one."""
        return bool(self.missing) or any(bound.is_elsewhere for bound in self.bounds.values())


def reach(session: Session, asked: str) -> Reached:
    """One provider, several with commas between them, or `any`. A missing key is told later, with all that is wrong."""
    from orchestrator.providers.market import split

    try:
        name = session.provider_name(asked)
    except CredentialsMissing as e:
        return Reached(asked, {}, {asked: e})
    bounds: dict[str, Bound] = {}
    missing: dict[str, TuneError] = {}
    for part in split(name) or (name,):
        try:
            bounds[part] = session.provider(part)
        except CredentialsMissing as e:
            missing[part] = e
    embedded = [part for part, bound in bounds.items() if not bound.is_elsewhere]
    if embedded and len(bounds) + len(missing) > 1:
        raise UsageError(
            f"{embedded[0]} cannot stand in for another provider", hint="name it alone, or marketplaces only"
        )
    return Reached(name, bounds, missing)


def refuse_local_store(session: Session, reached: Reached) -> None:
    """A folder on this computer is nothing that a rented instance could write to."""
    if reached.is_elsewhere and session.settings.storage.startswith("file:"):
        raise UsageError(
            f"instances of {reached.name} cannot reach {session.settings.storage}: it is a folder on this computer",
            hint='name a bucket: storage = "s3://my-bucket/tune" in the config, or --storage s3://my-bucket/tune',
        )
