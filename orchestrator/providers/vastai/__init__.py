"""Vast.ai, through its official SDK (vastai 1.9): interruptible and on-demand containers of a market of hosts.

Of the SDK its HTTP client and its builder of create requests are used. Its calls for instances raise TypeError over
half-made ones, anybody's, and take `success: false` for an answer like any other.
"""

from __future__ import annotations

import functools
import os

from orchestrator.providers.registry import Bound, ProviderSettings, lazy

OPTIONS = {
    "api_url": "where /api/v0 and /api/v1 lie (https://console.vast.ai)",
    "min_reliability": "the share of time that a host must have been there, 0 to 1 (0.9)",
}


def build(settings: ProviderSettings) -> Bound:
    """The provider, the way into its instances, and its account. Asks nobody: a wrong key shows at the first call."""
    from orchestrator.providers.vastai.account import VastAccount
    from orchestrator.providers.vastai.api import Api, check_sdk
    from orchestrator.providers.vastai.credentials import api_key, base_url
    from orchestrator.providers.vastai.provider import VastProvider, farewell

    check_sdk()
    url = base_url(os.environ, settings.options)
    key, source = api_key(os.environ)
    api = Api(url, key)
    return Bound(
        VastProvider(api, settings.options),
        functools.partial(lazy("orchestrator.remote.ssh:connect"), state_dir=settings.state_dir),
        account=VastAccount(api),
        is_elsewhere=True,
        farewell=farewell(url),
        key_source=source,
    )
