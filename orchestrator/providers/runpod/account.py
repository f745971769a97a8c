"""What RunPod says of money."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from orchestrator.errors import ProviderRejected
from orchestrator.providers.runpod.lenient import Answer, Maybe, read
from orchestrator.providers.runpod.refusals import translate
from orchestrator.providers.runpod.rest import Refused, Rest, Unheard
from orchestrator.types import Bill, InstanceId

BALANCE = "query Balance { myself { clientBalance currentSpendPerHr } }"
SETTLED_S = 3600.0  # charged about every five minutes, in hourly buckets: an hour after the end the last one is closed
_NOT_TOLD = frozenset({403, 404, 405, 410})  # a key without the right to see bills, or an API that has gone


class _Record(Answer):
    podId: str  # noqa: N815 - their name
    totalAmount: Decimal  # noqa: N815
    gpuAmount: Maybe[Decimal] = None  # noqa: N815
    diskAmount: Maybe[Decimal] = None  # noqa: N815


class _Billing(Answer):
    records: list[_Record]


class RunPodAccount:
    """The balance, where GraphQL still tells it, and the bills of pods from REST v2."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        """What is left. None where GraphQL does not say: it is to go in 2027. A refused key is an error either way."""
        try:
            me = self._rest.graphql(BALANCE, {}, timeout_s=timeout_s).get("myself")
        except Refused as e:
            if e.status == 429:
                raise translate(e, doing="asking for the balance") from None
            self._prove_the_key(timeout_s)
            return None
        except Unheard as e:
            raise translate(e, doing="asking for the balance") from None
        told = me.get("clientBalance") if isinstance(me, dict) else None
        return Decimal(told) if isinstance(told, (Decimal, int)) and not isinstance(told, bool) else None

    def billed(
        self, instance_id: InstanceId, *, since: datetime, until: datetime, timeout_s: float = 30
    ) -> Bill | None:
        """What one pod has cost, living or gone. The hours at both ends are whole, and hold nothing of other pods."""
        query = {
            "podId": instance_id,
            "startTime": _text(since),
            "endTime": _text(max(until, since + timedelta(seconds=1))),
            "bucketSize": "hour",
        }
        try:
            told = read(_Billing, self._rest.call("GET", "/v2/billing/pods", query=query, timeout_s=timeout_s))
        except (Refused, Unheard) as e:
            if isinstance(e, Refused) and e.status in _NOT_TOLD:
                return None
            raise translate(e, doing=f"reading the bill of pod {instance_id}") from None
        records = [r for r in told.records if r.podId == instance_id]
        if not records:
            return None  # not charged yet, or no longer kept
        gpu = sum((r.gpuAmount or Decimal(0) for r in records), Decimal(0))
        disk = sum((r.diskAmount or Decimal(0) for r in records), Decimal(0))
        total = sum((r.totalAmount for r in records), Decimal(0))
        is_final = (self._rest.clock.now() - until).total_seconds() >= SETTLED_S
        return Bill(gpu_usd=gpu, disk_usd=disk, other_usd=max(Decimal(0), total - gpu - disk), is_final=is_final)

    def rebid(self, instance_id: InstanceId, usd_per_hour: Decimal, *, timeout_s: float = 30) -> None:  # noqa: ARG002
        """RunPod takes no bids."""
        raise ProviderRejected(f"RunPod takes no bids: pod {instance_id} has a fixed price")

    def _prove_the_key(self, timeout_s: float) -> None:
        """GraphQL may refuse a key that v2 takes. Raises AuthRejected for one that v2 refuses, too."""
        try:
            self._rest.call("GET", "/v2/pods", timeout_s=timeout_s)
        except (Refused, Unheard) as e:
            raise translate(e, doing="trying the key") from None


def _text(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
