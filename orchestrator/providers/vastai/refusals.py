"""What Vast.ai's refusals mean for whoever asked. The only place that knows its error words.

Codes and texts as its documentation gives them (docs.vast.ai, create instance and show instance, August 2026), and as
dstack 0.22.5 and other clients report them.
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
from orchestrator.providers.vastai.api import Refused, Unheard
from orchestrator.types import InstanceId, Token

KEYS_HINT = "make a key at https://cloud.vast.ai/manage-keys/ with the right to read and write instances"
FUNDS_HINT = "add credit at https://cloud.vast.ai/billing/"
DAY_S = 86_400.0

# "error 410/3907: no_such_ask Instance type 1234567 is no longer available.", a bid that somebody else has topped
# meanwhile, a VM that takes no key but the account's: this offer is of no use, the next may be.
_OFFER_CODES = frozenset({"no_such_ask", "invalid_price", "no_ssh_key_for_vm"})
_OFFER_GONE = re.compile(
    r"no_such_ask|no longer available|is not available|already rented|your own machine", re.IGNORECASE
)
_FUNDS = re.compile(r"insufficient_credit|missing_billing|insufficient credit|lacks credit", re.IGNORECASE)
_SPEND = re.compile(r"spend_rate_limit|spend rate", re.IGNORECASE)
_GONE = re.compile(r"no_such_instance|no such instance|already destroyed", re.IGNORECASE)
_SETTLED_CODES = (
    frozenset({"invalid_args", "auth_error"}) | _OFFER_CODES
)  # nothing was rented, even where HTTP says 200


def translate(
    error: Refused | Unheard, *, doing: str, instance_id: InstanceId | None = None, token: Token | None = None
) -> TuneError:
    """The error for the caller. `instance_id`: what was asked about; `token`: what was to be rented."""
    text = f"Vast.ai, {doing}: {error.text}"
    if isinstance(error, Unheard):
        if token is not None and error.was_sent:
            return OutcomeUnknown(text, token=token)
        return ProviderUnavailable(text)
    words = f"{error.code} {error.text}"
    if error.status == 429:
        return _too_often(error, text)
    if error.status == 401 or error.code == "auth_error":
        return AuthRejected(text, hint=KEYS_HINT)
    if error.status == 402 or _FUNDS.search(words):
        return OutOfFunds(text, hint=FUNDS_HINT)
    if _SPEND.search(words):
        return QuotaExceeded(text, hint="Vast.ai limits what new accounts may spend by the hour; ask it to lift that")
    if token is not None and (refusal := _of_a_create(error, words, text, token)):
        return refusal
    if instance_id is not None and error.status in (200, 404):
        if _GONE.search(words) or (error.status == 404 and error.is_own):
            return InstanceNotFound(f"Vast.ai has no instance {instance_id}: {error.text}")
        if error.status == 404:
            return ProviderUnavailable(text)  # somebody in between knows no such page; that says nothing of an instance
    return _of_any(error, text)


def _too_often(error: Refused, text: str) -> ProviderError:
    """Slow down; or the day's searches are used up, which no wait of ours mends."""
    if error.code != "search_quota_exceeded":
        return RateLimited(text, retry_after_s=error.retry_after_s)
    return RateLimited(
        f"{text} (no more searches today: the quota begins anew at 00:00 UTC)",
        retry_after_s=error.retry_after_s or DAY_S,
        hint="try again after 00:00 UTC, or name another provider",
    )


def _of_a_create(error: Refused, words: str, text: str, token: Token) -> ProviderError | None:
    """A refusal to rent. It counts only where it is certain that nothing was rented."""
    if error.code in _OFFER_CODES or error.status in (404, 410) or _OFFER_GONE.search(words):
        return InsufficientCapacity(text)
    if error.status in (408, 425) or (error.status < 300 and error.code not in _SETTLED_CODES):
        return OutcomeUnknown(text, token=token)  # such as "resources_unavailable ... state change queued"
    return None


def _of_any(error: Refused, text: str) -> TuneError:
    if error.status == 403:
        return AuthRejected(text, hint=KEYS_HINT)
    if error.status == 410:
        return ProviderRejected(f"{text} (this API was retired)", hint="upgrade tune")
    if error.status in (408, 425) or (error.status < 300 and error.code not in _SETTLED_CODES):
        return ProviderUnavailable(text)
    return ProviderRejected(text)
