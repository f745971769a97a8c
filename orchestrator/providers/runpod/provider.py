"""RunPod's pods as instances."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from orchestrator.errors import (
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    TuneError,
    UsageError,
)
from orchestrator.providers.base import Capabilities
from orchestrator.providers.boot import Farewell, boot_script
from orchestrator.providers.runpod import catalog, prices
from orchestrator.providers.runpod.lenient import read
from orchestrator.providers.runpod.pods import Pod, PodPage, instance
from orchestrator.providers.runpod.refusals import translate
from orchestrator.providers.runpod.rest import Refused, Rest, Unheard
from orchestrator.types import Instance, InstanceId, LaunchSpec, Namespace, Offer, Requirements, Token, parse_token

NAME = "runpod"
# Spot pods ended on 11 September 2026 (gpuhunt 310de51, runpodctl PR #267; dstack 0.22.5 refuses them), and v2 never
# had them. The GraphQL calls for them are not made even where they still answer: the bids they took in August were the
# on-demand prices.
NO_SPOT = "RunPod sells no interruptible capacity"
DEFAULT_IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"  # their own: cached on hosts, has sshd and a PyTorch
CREATE_TIMEOUT_S = 90.0  # renting takes tens of seconds at times; twice UNDO_TIMEOUT_S of it are for taking it back
UNDO_TIMEOUT_S = 10.0
LIST_LAG_S = 60.0  # dstack and SkyPilot look for a pod by its name for about as long after an unclear create
MAX_LABEL_LEN = 191  # of a pod's name in v1; v2 names no limit
MAX_PAGES = 1000
MAX_ENV = 50
COST_SLACK_USD = Decimal("0.001")  # a price told in other decimals is no other price
_POD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+=* ?[^\r\n]*")


class RunPodProvider:
    """Pods with GPUs, on demand, in the secure and the community cloud. Safe for many threads."""

    def __init__(self, rest: Rest, options: Mapping[str, str] | None = None) -> None:
        self._rest = rest
        self._clouds = _clouds((options or {}).get("cloud", ""))

    @property
    def name(self) -> str:
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            spot=False,
            list_lag_s=LIST_LAG_S,
            create_timeout_s=CREATE_TIMEOUT_S,
            stopped_bills=False,  # what we rent has no volume, and container disk is free while stopped
            eviction_notice_s=0,
            max_label_len=MAX_LABEL_LEN,
            rebid=False,
            no_spot_reason=NO_SPOT,
        )

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
        """What has stock in either cloud, cheapest first; of one cloud where the other does not answer."""
        with ThreadPoolExecutor(len(self._clouds)) as pool:
            asked = [pool.submit(self._offers, want, cloud, timeout_s) for cloud in self._clouds]
        errors = [e for a in asked if (e := a.exception())]
        if len(errors) == len(asked) or any(not isinstance(e, ProviderError) for e in errors):
            raise errors[0]
        found = [offer for a in asked if not a.exception() for offer in a.result()]
        return sorted(found, key=lambda o: (o.usd_per_hour, o.offer_id))

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        """Rent, once. What turns out dearer or other than offered is given back at once. See `Provider.create`."""
        body = _create_body(offer, spec, token, self._rest.base_url)
        limit_s = max(1.0, min(timeout_s, CREATE_TIMEOUT_S) - 2 * UNDO_TIMEOUT_S)
        try:
            pod = read(Pod, self._rest.call("POST", "/v2/pods", body=body, timeout_s=limit_s))
        except (Refused, Unheard) as e:
            raise translate(e, doing=f"renting {offer.offer_id}", token=token) from None
        if wrong := _difference(pod, offer, token):
            self._undo(InstanceId(pod.id), f"{offer.offer_id} {wrong}", token)
        return instance(pod, provider=NAME)

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:
        """As it is now."""
        doing = f"looking at pod {instance_id}"
        try:
            pod = read(Pod, self._rest.call("GET", _path(instance_id), timeout_s=timeout_s))
        except (Refused, Unheard) as e:
            raise translate(e, doing=doing, instance_id=instance_id) from None
        if pod.id != instance_id:
            raise ProviderUnavailable(f"RunPod, {doing}: an answer about {pod.id[:64]!r} instead")
        return instance(pod, provider=NAME)

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:
        """Every pod named by a token of the namespace. RunPod filters by no name: all pages are read."""
        try:
            pods = {pod.id: pod for page in self._pages(timeout_s) for pod in page.pods}
        except (Refused, Unheard) as e:
            raise translate(e, doing="listing the pods") from None
        ours = [pod for pod in pods.values() if (p := parse_token(pod.name or "")) and p.namespace == namespace]
        return [instance(pod, provider=NAME) for pod in ours]

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:
        """Ask for destruction, disks included."""
        try:
            self._rest.call("DELETE", _path(instance_id), timeout_s=timeout_s)
        except (Refused, Unheard) as e:
            raise translate(e, doing=f"terminating pod {instance_id}", instance_id=instance_id) from None

    def _offers(self, want: Requirements, cloud: str, timeout_s: float) -> list[Offer]:
        query = catalog.query(want, cloud)
        try:
            told = read(catalog.Catalog, self._rest.call("GET", "/v2/catalog/gpus", query=query, timeout_s=timeout_s))
        except (Refused, Unheard) as e:
            raise translate(e, doing=f"reading the {cloud.lower()} catalogue") from None
        found = (catalog.offer(gpu, want, cloud=cloud, provider=NAME) for gpu in told.gpus)
        return list({o.offer_id: o for o in found if o}.values())

    def _pages(self, timeout_s: float) -> Iterator[PodPage]:
        """All of them within the time, or an error: half a list would look like instances that are gone."""
        ends = self._rest.clock.monotonic() + timeout_s
        query: dict[str, str] = {}
        seen: set[str] = set()
        while True:
            left_s = ends - self._rest.clock.monotonic()
            if left_s <= 0 or len(seen) > MAX_PAGES:
                raise Unheard(f"the list did not end: {len(seen)} pages in {timeout_s:g} s")
            page = read(PodPage, self._rest.call("GET", "/v2/pods", query=query, timeout_s=left_s))
            yield page
            cursor = page.pagination.nextCursor if page.pagination else None
            if not cursor:
                if page.pagination and page.pagination.hasNextPage:
                    raise Unheard("a list that goes on and does not say where")
                return
            if cursor in seen:
                raise Unheard("a list that comes back to where it was")
            seen.add(cursor)
            query = {"cursor": cursor}

    def _undo(self, instance_id: InstanceId, wrong: str, token: Token) -> None:
        """Give back what is not as offered, and see it gone. Always raises."""
        try:
            self.terminate(instance_id, timeout_s=UNDO_TIMEOUT_S)
            self.get(instance_id, timeout_s=UNDO_TIMEOUT_S)
        except InstanceNotFound:
            raise InsufficientCapacity(f"{wrong}; it was given back") from None
        except TuneError as e:
            raise OutcomeUnknown(
                f"{wrong}; giving back {instance_id} is not confirmed: {e.message}", token=token
            ) from e
        raise OutcomeUnknown(f"{wrong}; {instance_id} was given back and is still listed", token=token)


def farewell(base_url: str) -> Farewell:
    """How an instance ends itself: with the pod-scoped key that RunPod puts into its environment.

    Whether v2 takes that key is not documented; the older API does, and is tried second.
    """
    return Farewell(
        id_variable="RUNPOD_POD_ID",
        key_variable="RUNPOD_API_KEY",
        url=f"{base_url}/v2/pods/{{id}}",
        fallback_url=f"{base_url}/graphql",
        fallback_body='{"query":"mutation End($input: PodTerminateInput!) { podTerminate(input: $input) }",'
        '"variables":{"input":{"podId":"{id}"}}}',
    )


def _create_body(offer: Offer, spec: LaunchSpec, token: Token, base_url: str) -> dict[str, Any]:
    """`CreatePodRequest` of OpenAPI 2.0.0. Raises ProviderRejected for what would rent something useless."""
    gpu_id, count, cloud = _parts(offer)
    env = {**spec.env, "PUBLIC_KEY": spec.public_key.strip()}
    if not token or len(token) > MAX_LABEL_LEN:
        raise ProviderRejected(f"a pod's name has 1 to {MAX_LABEL_LEN} characters, not {len(token)}")
    if not _PUBLIC_KEY.fullmatch(env["PUBLIC_KEY"]):
        raise ProviderRejected("the launch has no public key: nobody could log in to the pod")
    if len(env) > MAX_ENV:
        raise ProviderRejected(f"a pod takes {MAX_ENV} environment variables, not {len(env)}")
    gpu: dict[str, Any] = {"id": gpu_id, "count": count}
    if minimum := offer.details.get("min_cuda"):
        gpu["minCudaVersion"] = minimum
    return {
        "name": str(token),
        "image": spec.image or DEFAULT_IMAGE,
        "gpu": gpu,
        "cloud": cloud,
        "disk": prices.disk_gb(max(spec.disk_gb, offer.disk_gb)),
        "ports": ["22/tcp"],  # there is no default; without it there is no direct SSH
        "env": env,
        "startSsh": True,  # with PUBLIC_KEY set, the account's own keys stay out
        "args": start_args(boot_script(spec, token, farewell(base_url), foreground=True)),
    }


def start_args(script: str) -> str:
    """A script as one line of container arguments, which RunPod takes apart by its own rules.

    So nothing in it needs quoting beyond one pair of apostrophes, and there is no `$` to be expanded, as in what
    SkyPilot sends. Newer clients send `entrypoint` and `cmd` lists (dstack, September 2026), which the OpenAPI of
    August 2026 refuses as unknown. A bare `cd` leads home, where there is room to write.
    """
    packed = base64.b64encode(script.encode()).decode()
    return f"sh -c 'umask 077; cd; echo {packed} | base64 -d > .tune-boot.sh; exec sh .tune-boot.sh'"


def _parts(offer: Offer) -> tuple[str, int, str]:
    match = re.fullmatch(r"(.+)/([1-9][0-9]?)/(SECURE|COMMUNITY)", offer.offer_id)
    if offer.provider != NAME or match is None or offer.spot:
        raise ProviderRejected(f"{offer.offer_id!r} is not an offer of {NAME}'s")
    return match[1], int(match[2]), match[3]


def _difference(pod: Pod, offer: Offer, token: Token) -> str:
    """What was rented that was not offered; empty when all is as it should be, or is not told."""
    _gpu_id, count, _cloud = _parts(offer)
    if pod.cost is not None and pod.cost > offer.usd_per_hour + COST_SLACK_USD:
        return f"costs ${pod.cost}/h instead of ${offer.usd_per_hour}/h"
    if pod.gpu and pod.gpu.count is not None and pod.gpu.count != count:
        return f"came with {pod.gpu.count} GPUs instead of {count}"
    if pod.name is not None and pod.name != token:
        return "came under another name"
    return ""


def _path(instance_id: InstanceId) -> str:
    """Where a pod lies. What cannot be an id was never given out, and is not asked about."""
    if not _POD_ID.fullmatch(instance_id):
        raise InstanceNotFound(f"RunPod has no pod {instance_id!r}")
    return f"/v2/pods/{quote(instance_id, safe='')}"


def _clouds(option: str) -> tuple[str, ...]:
    wanted = option.strip().upper()
    if not wanted:
        return catalog.CLOUDS
    if wanted not in catalog.CLOUDS:
        raise UsageError(
            f"cloud = {option!r} is neither secure nor community", hint="mend the option in the config file"
        )
    return (wanted,)
