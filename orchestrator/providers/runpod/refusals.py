"""What RunPod's refusals mean for whoever asked. The only place that knows its error texts.

Statuses as in its OpenAPI 2.0.0; a 400 has no code of its own for "nothing free", only a text
(`POST /v2/pods`: "`400` covers both"), so that is read.
"""

from __future__ import annotations

import re

from orchestrator.errors import (
    AuthRejected,
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    OutOfFunds,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    TuneError,
)
from orchestrator.providers.runpod.rest import Refused, Unheard
from orchestrator.types import InstanceId, Token

KEYS_HINT = "make a key at https://console.runpod.io/user/settings with the right to read and write pods"
FUNDS_HINT = "add credit at https://console.runpod.io/user/billing"

# "There are no longer any instances available with the requested specifications. ...", "... with enough disk space.",
# "There are not enough free GPUs on the host machine ...", "... could not be placed".
_NOTHING_FREE = re.compile(
    r"instances? available|not enough|no longer|capacity|could not be placed|out of stock", re.IGNORECASE
)
_NO_MONEY = re.compile(r"balance|insufficient (funds|credit)|deficit", re.IGNORECASE)
_LIMIT = re.compile(r"spend(ing)? limit|quota|limit (reached|exceeded)", re.IGNORECASE)
_POOL = re.compile(r"\bpool\b|not available to your account", re.IGNORECASE)


def translate(
    error: Refused | Unheard, *, doing: str, instance_id: InstanceId | None = None, token: Token | None = None
) -> TuneError:
    """The error for the caller. `instance_id`: what was asked about; `token`: what was to be rented."""
    text = f"RunPod, {doing}: {error.text}"
    if isinstance(error, Unheard):
        if token is not None and error.was_sent:
            return OutcomeUnknown(text, token=token)
        return ProviderUnavailable(text)
    if error.status == 404 and instance_id is not None:
        return InstanceNotFound(f"RunPod has no pod {instance_id}: {error.text}")
    if token is not None and (refusal := _of_a_create(error, text)):
        return refusal
    match error.status:
        case 401 | 403:
            return AuthRejected(text, hint=KEYS_HINT)
        case 402:
            return OutOfFunds(text, hint=FUNDS_HINT)
        case 408 | 425:
            return OutcomeUnknown(text, token=token) if token is not None else ProviderUnavailable(text)
        case 410:
            return ProviderRejected(f"{text} (this API was retired)", hint="upgrade tune")
        case 429:
            return RateLimited(text, retry_after_s=error.retry_after_s)
    return ProviderRejected(text)


def _of_a_create(error: Refused, text: str) -> ProviderError | None:
    """A refusal to rent that is about this offer, or about the account's means. Nothing was rented."""
    if error.status == 403 and _POOL.search(error.text):
        return InsufficientCapacity(text)  # "your account cannot access the requested pool": another offer may do
    if error.status != 400:
        return None
    if _NO_MONEY.search(error.text):
        return OutOfFunds(text, hint=FUNDS_HINT)
    if _LIMIT.search(error.text):
        return QuotaExceeded(text)
    return InsufficientCapacity(text) if _NOTHING_FREE.search(error.text) else None
