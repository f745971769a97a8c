"""Vast.ai's contracts as instances."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from orchestrator.errors import (
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    ProviderRejected,
    ProviderUnavailable,
    TuneError,
    UsageError,
)
from orchestrator.providers.base import Capabilities
from orchestrator.providers.boot import Farewell, boot_script
from orchestrator.providers.vastai import prices
from orchestrator.providers.vastai.api import Api, Refused, Unheard, contract_of, sdk
from orchestrator.providers.vastai.instances import CONSOLE_URL, instance
from orchestrator.providers.vastai.refusals import translate
from orchestrator.providers.vastai.rows import Contract, read
from orchestrator.providers.vastai.search import MIN_RELIABILITY, search
from orchestrator.types import (
    Instance,
    InstanceId,
    InstanceState,
    LaunchSpec,
    Namespace,
    Offer,
    Requirements,
    Token,
    parse_token,
)

NAME = "vastai"
# Vast.ai's own: the tag is chosen by its server to suit the host's driver, hosts have it cached, and it has curl and a
# Python. The trainer's packages come with the bootstrap, so a smaller image starts sooner.
DEFAULT_IMAGE = "vastai/base-image:@vastai-automatic-tag"
CREATE_TIMEOUT_S = 100.0
RENT_SHARE, STEP_SHARE = 0.6, 0.1  # of that time for the create call; for each of up to four calls after it
LIST_LAG_S = 30.0  # nothing is promised; new ids have been missing for twenty seconds
MAX_LABEL_LEN = 256
MOST_PAGES = 400  # of 25 instances
_ID = re.compile(r"[1-9][0-9]{0,18}")
_OFFER_ID = re.compile(r"([1-9][0-9]{0,18})(-bid)?")
_PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+=* ?[^\r\n]*")
_DEADLINE = "TUNE_DEADLINE_S"


class VastProvider:
    """Interruptible and on-demand containers with GPUs. Safe for many threads."""

    def __init__(self, api: Api, options: Mapping[str, str] | None = None) -> None:
        self._api = api
        self._min_reliability = _share((options or {}).get("min_reliability", ""))

    @property
    def name(self) -> str:
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            spot=True,
            list_lag_s=LIST_LAG_S,
            create_timeout_s=CREATE_TIMEOUT_S,
            stopped_bills=True,  # its disk, until it is destroyed
            eviction_notice_s=0,  # none is documented
            max_label_len=MAX_LABEL_LEN,
            rebid=True,
            starting_bills=False,
        )

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
        """The cheapest that could be rented now, bids and fixed prices, cheapest first."""
        try:
            return search(self._api, want, provider=NAME, timeout_s=timeout_s, min_reliability=self._min_reliability)
        except (Refused, Unheard) as e:
            raise translate(e, doing="searching offers") from None

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        """Rent, once, and look at what was rented. What is not as offered is destroyed. See `Provider.create`."""
        limit_s = min(timeout_s, CREATE_TIMEOUT_S)
        ask, body = _create_body(offer, spec, token, self._api.base_url)
        doing = f"renting {offer.offer_id}"
        try:
            told = self._api.call("PUT", f"/asks/{ask}/", body=body, timeout_s=limit_s * RENT_SHARE)
        except (Refused, Unheard) as e:
            refusal = translate(e, doing=doing, token=token)
            if e.contract is None:
                raise refusal from None
            self._undo(e.contract, refusal.message, token, limit_s * STEP_SHARE)
            # Nothing is left behind, so what was unclear is clear now.
            raise (InsufficientCapacity(refusal.message) if isinstance(refusal, OutcomeUnknown) else refusal) from None
        contract = contract_of(told)
        if contract is None:
            raise OutcomeUnknown(f"Vast.ai, {doing}: an answer without an id", token=token)
        created = self._as_offered(contract, offer, token, limit_s * STEP_SHARE)
        with contextlib.suppress(Refused, Unheard):  # the start command lets the key in as well
            key = {"ssh_key": spec.public_key.strip()}
            self._api.call("POST", f"/instances/{contract}/ssh/", body=key, timeout_s=limit_s * STEP_SHARE)
        return created

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:
        """As it is now."""
        return instance(self._show(instance_id, timeout_s), provider=NAME)

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:
        """Every instance labelled with a token of the namespace. Labels are not filtered by prefix: all are read."""
        try:
            rows = {row["id"]: row for row in self._list({}, timeout_s) if _is_of(row, namespace)}
        except (Refused, Unheard) as e:
            raise translate(e, doing="listing the instances") from None
        found = [read(Contract, row) for row in rows.values()]
        if None in found:
            raise ProviderUnavailable("Vast.ai, listing the instances: one of ours cannot be read")
        return [instance(row, provider=NAME) for row in found if row]

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:
        """Ask for destruction, disk included."""
        path = instance_path(instance_id)
        try:
            self._api.call("DELETE", path, body={}, timeout_s=timeout_s)
        except (Refused, Unheard) as e:
            raise translate(e, doing=f"destroying instance {instance_id}", instance_id=instance_id) from None

    def _show(self, instance_id: InstanceId, timeout_s: float) -> Contract:
        path, doing = instance_path(instance_id), f"looking at instance {instance_id}"
        try:
            told = self._api.call("GET", path, query={"owner": "me"}, timeout_s=timeout_s)
        except (Refused, Unheard) as e:
            raise translate(e, doing=doing, instance_id=instance_id) from None
        if "instances" in told and told["instances"] is None:
            raise InstanceNotFound(f"Vast.ai has no instance {instance_id}")
        row = read(Contract, told.get("instances"))
        if row is None or str(row.id) != instance_id:
            raise ProviderUnavailable(f"Vast.ai, {doing}: an answer about something else")
        return row

    def _list(self, filters: Mapping[str, Any], timeout_s: float) -> Iterator[Mapping[str, Any]]:
        """All pages within the time, or an error: half a list would look like instances that are gone."""
        ends = self._api.clock.monotonic() + timeout_s
        query: dict[str, Any] = {
            "select_filters": dict(filters),
            "order_by": [{"col": "id", "dir": "asc"}],
            "limit": 25,  # the server's own maximum
        }
        seen: set[str] = set()
        while True:
            left_s = ends - self._api.clock.monotonic()
            if left_s <= 0 or len(seen) >= MOST_PAGES:
                raise Unheard(f"the list did not end: {len(seen)} pages in {timeout_s:g} s")
            told = self._api.call("GET", "/api/v1/instances/", query=query, timeout_s=left_s)
            rows, next_token = told.get("instances"), told.get("next_token")
            if not isinstance(rows, list):
                raise Unheard("a list without instances")
            yield from (row for row in rows if isinstance(row, dict))
            if not next_token:
                return
            if next_token in seen:
                raise Unheard("a list that comes back to where it was")
            seen.add(next_token)
            query["after_token"] = next_token

    def _as_offered(self, contract: int, offer: Offer, token: Token, step_s: float) -> Instance:
        """What was rented, read back; destroyed if it is not what was offered. Not to be seen yet is no fault."""
        row = self._read_back(contract, token, step_s)
        if row is None:
            return Instance(
                instance_id=InstanceId(str(contract)),
                token=token,
                provider=NAME,
                state=InstanceState.STARTING,
                usd_per_hour=offer.usd_per_hour,
                host_id=offer.host_id,
                console_url=CONSOLE_URL,
                says="rented; not shown yet",
            )
        if wrong := _difference(row, offer, token):
            reason = f"{offer.offer_id} {wrong}"
            self._undo(contract, reason, token, step_s)
            raise InsufficientCapacity(f"Vast.ai: {reason}; it was destroyed")
        return instance(row, provider=NAME)

    def _read_back(self, contract: int, token: Token, step_s: float) -> Contract | None:
        """By its label first: showing one instance is allowed every two seconds only, and undoing needs that."""
        with contextlib.suppress(Refused, Unheard):
            for row in self._list({"label": {"in": [str(token)]}}, step_s):
                if row.get("id") == contract:
                    return read(Contract, row)
        with contextlib.suppress(TuneError):
            return self._show(InstanceId(str(contract)), step_s)
        return None

    def _undo(self, contract: int, wrong: str, token: Token, step_s: float) -> None:
        """Destroy what was rented a moment ago, and see it gone. Raises OutcomeUnknown for any doubt.

        "Not found" counts only after an accepted destruction: what is this new may just not be known everywhere.
        """
        instance_id = InstanceId(str(contract))
        try:
            self.terminate(instance_id, timeout_s=step_s)
        except TuneError as e:
            raise OutcomeUnknown(
                f"{wrong}; destroying {instance_id} is not confirmed: {e.message}", token=token
            ) from None
        try:
            self.get(instance_id, timeout_s=step_s)
        except InstanceNotFound:
            return
        except TuneError as e:
            raise OutcomeUnknown(f"{wrong}; {instance_id} may still be there: {e.message}", token=token) from None
        raise OutcomeUnknown(f"{wrong}; {instance_id} was destroyed and is still listed", token=token)


def farewell(base_url: str) -> Farewell:
    """How an instance ends itself: with the key that Vast.ai has made for this one instance."""
    return Farewell(
        id_variable="CONTAINER_ID",
        key_variable="CONTAINER_API_KEY",
        url=f"{base_url}/api/v0/instances/{{id}}/",
    )


def is_id(instance_id: str) -> bool:
    """Whether Vast.ai could have given it out."""
    return _ID.fullmatch(instance_id) is not None


def instance_path(instance_id: InstanceId) -> str:
    """Where an instance lies. What cannot be an id was never given out, and is not asked about."""
    if not is_id(instance_id):
        raise InstanceNotFound(f"Vast.ai has no instance {instance_id!r}")
    return f"/instances/{instance_id}/"


def _create_body(offer: Offer, spec: LaunchSpec, token: Token, base_url: str) -> tuple[str, Mapping[str, Any]]:
    """The ask to accept, and the body as the SDK builds it. Raises ProviderRejected for what would be of no use.

    Without a price an ask is rented on demand, whatever kind of offers was searched (vast-ai/vast-cli#403).
    """
    match = _OFFER_ID.fullmatch(offer.offer_id)
    if offer.provider != NAME or match is None or bool(match[2]) != offer.spot:
        raise ProviderRejected(f"{offer.offer_id!r} is not an offer of {NAME}'s")
    if offer.spot and not offer.details.get("bid"):
        raise ProviderRejected(f"{offer.offer_id} says nothing of what to bid")
    if not token or len(token) > MAX_LABEL_LEN:
        raise ProviderRejected(f"a label has 1 to {MAX_LABEL_LEN} characters, not {len(token)}")
    if not _PUBLIC_KEY.fullmatch(spec.public_key.strip()):
        raise ProviderRejected("the launch has no public key: nobody could log in to the instance")
    body: Mapping[str, Any] = sdk().api.instances.build_create_instance_payload(
        image=spec.image or DEFAULT_IMAGE,
        disk=prices.disk_gb(spec.disk_gb),
        env={_DEADLINE: spec.env.get(_DEADLINE, str(int(spec.deadline_s)))},
        price=float(offer.details["bid"]) if offer.spot else None,
        label=str(token),
        onstart_cmd=boot_script(spec, token, farewell(base_url), foreground=False),
        ssh=True,
        direct=True,
        cancel_unavail=True,  # else a stopped contract is left behind, and bills for its disk
    )
    return match[1], body


def _difference(row: Contract, offer: Offer, token: Token) -> str:
    """What was rented that was not offered; empty when all is as it should be, or is not told."""
    at_most = Decimal(offer.details.get("at_most") or prices.ceiling(offer.usd_per_hour, None))
    if row.is_bid is not None and row.is_bid is not offer.spot:
        return "was rented on demand, not as a bid" if offer.spot else "was rented as a bid, not on demand"
    if row.dph_total is not None and row.dph_total > at_most:
        return f"costs ${prices.usd(row.dph_total)}/h instead of ${offer.usd_per_hour}/h"
    if row.num_gpus is not None and row.num_gpus != offer.gpu_count:
        return f"came with {row.num_gpus} GPUs instead of {offer.gpu_count}"
    if row.label is not None and row.label != token:
        return "came under another name"
    if offer.spot and instance(row, provider=NAME).state is InstanceState.STOPPED:
        return "was bid for, and somebody else bids more"
    return ""


def _is_of(row: Mapping[str, Any], namespace: Namespace) -> bool:
    """Whether a row is of ours. One of ours without an id is an error: it could neither be counted nor ended."""
    label = row.get("label")
    parts = parse_token(label) if isinstance(label, str) else None
    if parts is None or parts.namespace != namespace:
        return False
    if not isinstance(row.get("id"), int):
        raise Unheard("one of ours has no id")
    return True


def _share(option: str) -> float:
    try:
        share = float(option or MIN_RELIABILITY)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(
            f"min_reliability = {option!r} is not between 0 and 1", hint="mend the option in the config file"
        )
    return share
