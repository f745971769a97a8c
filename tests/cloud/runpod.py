"""RunPod on loopback: REST v2 and what is left of GraphQL, with real pods behind a real SSH server.

Requests are held against RunPod's OpenAPI document, and so are the answers. It lies as the real one does: a list that
lags, runtimes and ports that come one after the other, private addresses among them, ports of pods that have exited,
availability that the create call does not confirm.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator.clock import Clock
from tests.cloud.clock import LeapingClock
from tests.cloud.machines import Machines, Quirks
from tests.cloud.meter import Meter, Rates
from tests.cloud.runpod_pods import DISK_USD_PER_GB_HOUR, Pod, usual_catalog
from tests.cloud.runpod_schemas import check, problems, query_problems
from tests.cloud.wire import Answer, Refusal, Request, Route, Wire

NO_CAPACITY = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again."
)
DATACENTER = "US-KS-2"
# Each of them rents or resumes, at a price that nobody has agreed to. tune makes none of these calls.
NEVER = ("podRentInterruptable", "podBidResume", "podResume", "podFindAndDeployOnDemand")
_TITLES = {
    400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found",
    422: "Unprocessable Entity", 429: "Too Many Requests", 500: "Internal Server Error",
}  # fmt: skip
_WINDOWS = {"RateLimit": '"minute";r=176;t=1, "hour";r=7193;t=2701', "RateLimit-Policy": '"minute";q=180;w=60'}


def problem(status: int, detail: str, *errors: str) -> Answer:
    """`application/problem+json`, as every refusal of v2."""
    told: dict[str, Any] = {"title": _TITLES.get(status, "Error"), "status": status, "detail": detail}
    if errors:
        told["errors"] = list(errors)
    answer = Answer.json(check("ErrorResponse", told), status)
    return Answer(status, answer.body, "application/problem+json", _WINDOWS)


class FakeRunPod(Wire):
    """One account. `under` is where the pods' machines lie; without it pods are words only, which is enough for many tests."""

    def __init__(self, under: Path | None = None, *, clock: Clock | None = None) -> None:
        self.clock = clock or LeapingClock()
        self.is_real = under is not None
        self.machines = Machines(under or Path("/nonexistent"))
        self.meter = Meter(self.clock)
        self.account_key = f"rpa_{secrets.token_hex(20)}"
        self.catalog = usual_catalog()
        self.pods: dict[str, Pod] = {}
        self.pod_keys: dict[str, str] = {}  # whose they are, or were
        self.balance: Decimal | None = Decimal("25.50")
        # How it behaves
        self.quirks = Quirks()
        self.stage_s = 0.1 if self.is_real else 1.0  # each of the stages in which a pod comes up
        self.list_lag_s = 0.0  # until a new pod is listed; by its id it is known at once
        self.dies_for_s = 0.0  # a pod that is being destroyed is shown as TERMINATED for so long
        self.page_size = 0  # 0: a list in one piece, without `pagination`
        self.has_graphql = True
        self.v2_takes_pod_keys = True
        # What a create call meets
        self.refuses: Answer | None = None
        self.surcharge = Decimal(0)  # per hour, on top of the list price
        self.gives_gpus: int | None = None
        self.gives_name: str | None = None
        super().__init__()

    # For tests

    def preempt(self, instance_id: str, how: str = "outbid") -> None:
        """Take a pod away: `outbid` stops it (its container disk is wiped), `vanish` leaves nothing."""
        with self.lock:
            if how == "vanish":
                self._destroy(self.pods.pop(instance_id))
                return
            self.pods[instance_id].is_stopped = True
            self.meter.stopped(instance_id)
            if self.is_real:
                self.machines.stop(instance_id, wipes=True)

    def rent_by_hand(self, name: str) -> str:
        """As somebody with the same account does in the console; the id."""
        body = {"name": name, "image": "ubuntu", "gpu": {"id": "NVIDIA L4", "count": 1}, "disk": 5}
        with self.lock:
            return self._rent(body, Decimal("0.43")).pod_id

    def listed(self) -> list[str]:
        """The ids of all pods that are not gone."""
        with self.lock:
            self._bury()
            return list(self.pods)

    # The wire

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/v2/catalog/gpus", "catalog", self._catalog),
            Route("GET", "/v2/pods", "list", self._list),
            Route("POST", "/v2/pods", "create", self._create),
            Route("GET", "/v2/pods/{id}", "get", self._get),
            Route("DELETE", "/v2/pods/{id}", "delete", self._delete),
            Route("GET", "/v2/billing/pods", "billing", self._billing),
            Route("POST", "/graphql", "graphql", self._graphql),
        ]

    def identify(self, request: Request) -> str:
        if request.bearer == self.account_key:
            return "account"
        pod_id = self.pod_keys.get(request.bearer)
        return f"pod {pod_id}" if pod_id else ""

    def error_body(self, status: int) -> bytes:
        return problem(
            status, "rate limit exceeded for the minute window" if status == 429 else "upstream failure"
        ).body

    def _who(self, request: Request) -> str:
        who = self.identify(request)
        if not who:
            raise Refusal(problem(401, "missing bearer token" if not request.bearer else "invalid bearer token"))
        if not re.match(r"(spot-tune|curl|\S+/)", request.headers.get("user-agent", "")):
            raise Refusal(Answer(403, b"<html>error code: 1010</html>", "text/html"))  # the edge wants an agent's name
        return who

    def _only_account(self, request: Request) -> None:
        if self._who(request) != "account":
            raise Refusal(problem(403, "access denied"))

    def _asked(self, request: Request) -> None:
        self._only_account(request)
        if found := query_problems(request.call, request.query):
            raise Refusal(problem(422, "Request validation failed.", *found))

    # Offers

    def _catalog(self, request: Request) -> Answer:
        self._asked(request)
        asked = {name: values[0] for name, values in request.query.items()}
        if ("include" in asked) != ("product" in asked):
            raise Refusal(problem(400, "include=AVAILABILITY requires product"))
        count, cloud = int(asked.get("count", 1)), asked.get("cloud", "SECURE").lower()
        rows = [dict(row) for row in self.catalog]
        for row in rows:
            if row["maxCount"][cloud] < count:
                row["availability"] = "NONE"
            if row["availability"] == "NONE":
                row.pop("dataCenters", None)
        # Where a type is not sold the price is null, whatever the document says: so it was seen with GraphQL's prices.
        sold = [{**row, "price": {k: v if v is not None else 0 for k, v in row["price"].items()}} for row in rows]
        check("ListGpuTypesResponse", {"gpus": sold})
        return Answer.json({"gpus": rows}, RateLimit=_WINDOWS["RateLimit"])

    # Pods

    def _create(self, request: Request) -> Answer:
        self._only_account(request)
        try:
            body = request.json()
        except ValueError:
            raise Refusal(problem(422, "Request validation failed.", "$: not JSON")) from None
        if found := problems("CreatePodRequest", body):
            raise Refusal(problem(422, "Request validation failed.", *found))
        if ("gpu" in body) == ("cpu" in body):
            raise Refusal(problem(400, "exactly one of gpu and cpu must be set"))
        if self.refuses is not None:
            raise Refusal(self.refuses)
        cloud = body.get("cloud", "SECURE").lower()
        count = body["gpu"].get("count", 1)
        row = next((row for row in self.catalog if row["id"] == body["gpu"]["id"]), None)
        if row is None or row["availability"] == "NONE" or row["maxCount"][cloud] < count:
            raise Refusal(problem(400, NO_CAPACITY))
        price = Decimal(str(row["price"][cloud])) * count + self.surcharge
        return Answer.json(self._told(self._rent(body, price)), 201)

    def _rent(self, body: Mapping[str, Any], cost: Decimal) -> Pod:
        pod_id = secrets.token_hex(7)
        count = body["gpu"].get("count", 1) if self.gives_gpus is None else self.gives_gpus
        name = self.gives_name or body["name"]
        pod = Pod(pod_id, body, self.clock.now(), cost, count, name, ("127.0.0.1", 9))
        disk = pod.disk_gb * DISK_USD_PER_GB_HOUR
        self.meter.created(pod_id, Rates(cost, disk, idle_disk_usd_per_hour=Decimal(0)))
        self.meter.running(pod_id)
        self.pods[pod_id] = pod
        self.pod_keys[pod.key] = pod_id
        if self.is_real:
            env = pod.environment(datacenter=DATACENTER)
            found = self.machines.start(pod_id, env=env, command=body.get("args", ""), quirks=self.quirks)
            pod.endpoint = (found.host, found.port)
        return pod

    def _list(self, request: Request) -> Answer:
        self._asked(request)
        self._bury()
        now = self.clock.now()
        shown = [p for p in self.pods.values() if now - p.created_at >= timedelta(seconds=self.list_lag_s)]
        start = int(request.query.get("cursor", ["c0"])[0].removeprefix("c"))
        end = start + self.page_size if self.page_size else len(shown)
        told: dict[str, Any] = check("ListPodsResponse", {"pods": [self._told(pod) for pod in shown[start:end]]})
        if self.page_size:
            more = end < len(shown)
            told["pagination"] = {"hasNextPage": more, "nextCursor": f"c{end}" if more else None}
        return Answer.json(told)

    def _get(self, request: Request) -> Answer:
        return Answer.json(self._told(self._pod(request)))

    def _delete(self, request: Request) -> Answer:
        pod = self._pod(request)
        self._end(pod)
        return Answer(204)

    def _pod(self, request: Request) -> Pod:
        who = self._who(request)
        wanted = request.parts["id"]
        if who != "account" and (not self.v2_takes_pod_keys or who != f"pod {wanted}"):
            raise Refusal(problem(403, "access denied"))
        self._bury()
        if wanted not in self.pods:
            raise Refusal(problem(404, "pod not found"))
        return self.pods[wanted]

    def _told(self, pod: Pod) -> dict[str, Any]:
        told: dict[str, Any] = pod.told(self.clock.now(), stage_s=self.stage_s, datacenter=DATACENTER)
        check("Pod", told)
        return told

    def _end(self, pod: Pod) -> None:
        if pod.dies_at is None:
            pod.dies_at = self.clock.now() + timedelta(seconds=self.dies_for_s)
            self._destroy(pod)
        self._bury()

    def _destroy(self, pod: Pod) -> None:
        self.meter.gone(pod.pod_id)
        if self.is_real:
            self.machines.destroy(pod.pod_id)

    def _bury(self) -> None:
        now = self.clock.now()
        for pod_id in [p.pod_id for p in self.pods.values() if p.dies_at and p.dies_at <= now]:
            del self.pods[pod_id]

    # Money

    def _billing(self, request: Request) -> Answer:
        self._asked(request)
        asked = {name: values[0] for name, values in request.query.items()}
        since, until = (_aligned(asked[name], up=up) for name, up in (("startTime", False), ("endTime", True)))
        wanted = asked.get("podId")
        rows = [
            row for pod_id in self.meter.ever() if wanted in (None, pod_id) for row in self._rows(pod_id, since, until)
        ]
        query = {"startTime": since, "endTime": until, "bucketSize": asked.get("bucketSize", "day"), "podId": wanted}
        names = ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount")
        totals = {name: sum(row[name] for row in rows) for name in names}
        count = len({row["podId"] for row in rows})
        about = {"query": query, "recordCount": len(rows), "totals": totals, "uniquePodCount": count}
        return Answer.json(check("ListPodBillingResponse", {"records": rows, "metadata": about}))

    def _rows(self, pod_id: str, since: str, until: str) -> list[dict[str, Any]]:
        """In two buckets, so that whoever reads one of them reads half."""
        charges = self.meter.charges(pod_id)
        gpu, disk = float(charges.gpu_usd) / 2, float(charges.disk_usd) / 2
        amounts = {"gpuAmount": gpu, "cpuAmount": 0.0, "diskAmount": disk, "totalAmount": gpu + disk}
        row = {"podId": pod_id, "startTime": since, "endTime": until, **amounts}
        return [row, row] if charges.usd else []

    def _graphql(self, request: Request) -> Answer:
        who = self._who(request)
        if not self.has_graphql:
            return Answer.json({"error": "this API has been retired", "status": 410}, 410)
        body = request.json()
        assert set(body) == {"query", "variables"}, "values travel as variables"
        query, variables = body["query"], body["variables"]
        assert '"' not in query, f"a value was pasted into {query}"
        assert not any(call in query for call in NEVER), f"a call that rents was made: {query}"
        if "podTerminate(input: $input)" in query:
            pod = self.pods.get(variables["input"]["podId"])
            if pod is None or who not in ("account", f"pod {pod.pod_id}"):
                return Answer.json({"errors": [{"message": "pod not found to terminate"}], "data": None})
            self._end(pod)
            return Answer.json({"data": {"podTerminate": None}})
        assert "clientBalance" in query, query
        if who != "account":
            return Answer.json({"errors": [{"message": "access denied"}], "data": None})
        spending = sum((p.cost for p in self.pods.values() if not p.is_stopped), Decimal(0))
        balance = None if self.balance is None else float(self.balance)
        return Answer.json({"data": {"myself": {"clientBalance": balance, "currentSpendPerHr": float(spending)}}})


def _aligned(text: str, *, up: bool) -> str:
    """Snapped to whole hours, as the document says."""
    when = datetime.fromisoformat(text)
    whole = when.replace(minute=0, second=0, microsecond=0)
    return (whole + timedelta(hours=1) if up and whole != when else whole).strftime("%Y-%m-%dT%H:%M:%SZ")
