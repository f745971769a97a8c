"""RunPod, spoken to in its REST v2; GraphQL only tells the balance.

Its SDK (runpod 1.11) speaks GraphQL alone, builds it by pasting text, and cannot tell one refusal from another: unused.
"""

from __future__ import annotations

import functools
import os

from orchestrator.providers.registry import Bound, ProviderSettings, lazy

OPTIONS = {
    "api_url": "where /v2 and /graphql lie (https://api.runpod.io)",
    "cloud": "secure or community, to rent in one of them only (both)",
}


def build(settings: ProviderSettings) -> Bound:
    """The provider, the way into its instances, and its account. Asks nobody: a wrong key shows at the first call."""
    from orchestrator.providers.runpod.account import RunPodAccount
    from orchestrator.providers.runpod.credentials import api_key, base_url
    from orchestrator.providers.runpod.provider import RunPodProvider, farewell
    from orchestrator.providers.runpod.rest import Rest

    url = base_url(os.environ, settings.options)
    key, source = api_key(os.environ)
    rest = Rest(url, key)
    return Bound(
        RunPodProvider(rest, settings.options),
        functools.partial(lazy("orchestrator.remote.ssh:connect"), state_dir=settings.state_dir),
        account=RunPodAccount(rest),
        is_elsewhere=True,
        farewell=farewell(url),
        key_source=source,
    )
