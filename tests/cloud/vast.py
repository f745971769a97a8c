"""A Vast.ai on loopback: its real JSON with its lies, its refusals of what it would refuse, and a meter.

After the requests that vastai 1.9.1 sends, vast-ai/docs of August 2026, and what clients report of the rest (dstack
#4036 and #4037, vast-ai/vast-cli#403). Machines behind it are real processes with real SSH, if it is given any.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from orchestrator.clock import Clock
from tests.cloud.machines import Endpoint, Machines
from tests.cloud.meter import Meter, Rates
from tests.cloud.vast_rows import FILTERS, OPERATORS, Ask, Contract, bad, no_ask, no_instance, strangers
from tests.cloud.wire import Answer, Refusal, Request, Route, Wire

ACCOUNT_KEY = "canary-vast-account-key"
LONGEST_ONSTART = 4096
_CONTROLS = frozenset({"order", "type", "limit", "allocated_storage"})
_CREATE_FIELDS = frozenset(
    {
        *("client_id", "image", "env", "price", "disk", "label", "extra", "onstart", "image_login", "python_utf8"),
        *("lang_utf8", "use_jupyter_lab", "jupyter_dir", "force", "cancel_unavail", "template_hash_id", "user"),
        *("runtype", "args", "volume_info"),
    }
)


class FakeVast(Wire):
    """One account's view of the market. Attributes are knobs; change them while it runs."""

    def __init__(self, clock: Clock, machines: Machines | None = None, asks: Sequence[Ask] = ()) -> None:
        self.clock = clock
        self.machines = machines
        self.meter = Meter(clock)
        self.asks = {ask.id: ask for ask in asks}
        self.contracts: dict[int, Contract] = {}
        self.credit = 25.0
        self.page_rows = 64  # of a search, whatever `limit` says
        self.list_rows = 25
        self.charge_rows = 500
        self.unordered = False  # answers by score, whatever `order` says
        self.ignored_filters: frozenset[str] = frozenset()
        self.listed_after_s = 0.0  # a new instance is not in the list before
        self.shown_after_s = 0.0  # nor shown by its id
        self.gone_after_s = 0.0  # a destroyed one is shown and listed so long
        self.searches_left = 10_000
        self.forgets_price = False  # rents on demand although a price came along
        self.leftover: tuple[int, str] | None = None  # create leaves a stopped contract, and says no with this status
        self.decimals = 9  # of charges; the real ones have three
        self.self_destruct_works = True
        self.spacing_s: Mapping[str, float] = {}  # call -> how soon after one another is too soon
        self._asked_at: dict[str, datetime] = {}
        self._next_id = 33_402_296
        super().__init__()

    def routes(self) -> Sequence[Route]:
        return [
            Route("POST", "/api/v0/bundles/", "search", self._search),
            Route("PUT", "/api/v0/asks/{id}/", "create", self._create),
            Route("GET", "/api/v0/instances/{id}/", "show", self._show),
            Route("GET", "/api/v1/instances/", "list", self._list),
            Route("GET", "/api/v0/instances/", "old list", self._retired),
            Route("DELETE", "/api/v0/instances/{id}/", "destroy", self._destroy),
            Route("PUT", "/api/v0/instances/bid_price/{id}/", "bid", self._rebid),
            Route("POST", "/api/v0/instances/{id}/ssh/", "attach", self._attach),
            Route("GET", "/api/v0/users/current", "user", self._user),
            Route("GET", "/api/v0/charges/", "charges", self._charges),
        ]

    def identify(self, request: Request) -> str:
        if request.bearer == ACCOUNT_KEY:
            return "account"
        with self.lock:
            owners = [c.id for c in self.contracts.values() if secrets.compare_digest(c.api_key, request.bearer)]
        return f"instance {owners[0]}" if owners else ""

    def error_body(self, status: int) -> bytes:
        if status == 429:
            return b'{"detail": "API requests too frequent endpoint threshold=4.5"}'
        return json.dumps({"error": "server_error", "msg": f"error {status}"}).encode()

    def close(self) -> None:
        super().close()
        if self.machines:
            self.machines.close()

    # What happens on the market

    def outbid(self, contract_id: int) -> None:
        """Somebody bids more: the container is killed, its disk stays and bills."""
        with self.lock:
            contract = self._living(contract_id)
            contract.ask.top_bid = contract.usd * 2
            self._halt(contract)

    def win_back(self, contract_id: int) -> None:
        """The other bidder leaves: it goes on by itself."""
        with self.lock:
            contract = self._living(contract_id)
            contract.ask.top_bid = 0
            self._resume(contract)

    def vanish(self, contract_id: int) -> None:
        """Destroyed, and nobody says so."""
        with self.lock:
            self._end(self._living(contract_id))
            self.contracts[contract_id].gone_at = datetime.min.replace(tzinfo=UTC)

    def exit(self, contract_id: int) -> None:
        """The container ends by itself, while it is meant to run."""
        with self.lock:
            contract = self._living(contract_id)
            contract.has_exited = True
            self._power_off(contract)

    def lose_host(self, contract_id: int) -> None:
        """Its host is away: nothing is charged, nothing answers."""
        with self.lock:
            contract = self._living(contract_id)
            contract.is_offline = True
            self.meter.offline(str(contract_id))
            if self.machines:
                self.machines.cut_off(str(contract_id))

    def living(self) -> list[int]:
        """What is rented, and bills."""
        with self.lock:
            return [c.id for c in self.contracts.values() if c.gone_at is None]

    # Calls

    def _handle(self, handler: Callable[[Request], Answer], request: Request) -> Answer:
        with self.lock:
            before, now = self._asked_at.get(request.call), self.clock.now()
            self._asked_at[request.call] = now
        if before and (now - before).total_seconds() < self.spacing_s.get(request.call, 0):
            return Answer(429, self.error_body(429))
        return super()._handle(handler, request)

    def _search(self, request: Request) -> Answer:
        self._account_only(request)
        body = self._json(request)
        if self.searches_left <= 0:
            said = {
                "success": False,
                "error": "search_quota_exceeded",
                "msg": "Daily search quota used",
                "limit": 20_000,
            }
            raise Refusal(Answer.json({**said, "retry_after": 40_000, "remaining": 0}, 429))
        self.searches_left -= 1
        filters = {name: wanted for name, wanted in body.items() if name not in _CONTROLS}
        for name, conditions in filters.items():
            if name not in FILTERS or not isinstance(conditions, dict) or not set(conditions) <= set(OPERATORS):
                raise bad(f"filter {name}: {conditions}")
        kind, disk_gb = body.get("type"), body.get("allocated_storage", 5.0)
        if kind not in ("bid", "on-demand", "reserved") or not isinstance(disk_gb, (int, float)):
            raise bad(f"type {kind}, allocated_storage {disk_gb}")
        kept = {name: wanted for name, wanted in filters.items() if name not in self.ignored_filters}
        found = [a for a in self.asks.values() if self._is_free(a) and a.matches(kept, kind, disk_gb)]
        rows = [ask.row(kind, disk_gb) for ask in found]
        order = [["score", "desc"]] if self.unordered else body.get("order", [["score", "desc"]])
        for name, direction in reversed(order):
            rows.sort(key=lambda row: row[name], reverse=direction == "desc")
        return Answer.json({"offers": rows[: min(self.page_rows, body.get("limit", 64))]})

    def _create(self, request: Request) -> Answer:
        self._account_only(request)
        body = self._json(request)
        self._check_create(body)
        ask = self.asks.get(int(request.parts["id"]))
        if ask is None:
            raise no_ask(request.parts["id"], 404)
        if not self._is_free(ask):
            raise no_ask(ask.id, 410)
        price = None if self.forgets_price else body["price"]
        contract = self._rent(ask, body, price)
        if self.leftover or (price is not None and price <= max(ask.top_bid, ask.min_bid - 1e-9)):
            self._halt(contract)
            status, error = self.leftover or (200, "")
            said = {"success": False, "new_contract": contract.id}
            return Answer.json(said | ({"error": error, "msg": f"error {status}: {error}"} if error else {}), status)
        self._advance()
        return Answer.json({"success": True, "new_contract": contract.id, "instance_api_key": contract.api_key})

    def _check_create(self, body: Mapping[str, Any]) -> None:
        if unknown := set(body) - _CREATE_FIELDS:
            raise bad(f"unknown fields {sorted(unknown)}")
        price, env = body.get("price"), body.get("env")
        if price is not None and (isinstance(price, bool) or not isinstance(price, (int, float))):
            raise bad("price is no number")
        if price is not None and not 0.001 <= price <= 128:
            raise Refusal(Answer.json({"success": False, "error": "invalid_price", "msg": f"bid {price}"}, 400))
        if not isinstance(env, dict) or not all(isinstance(v, str) for v in env.values()):
            raise bad("env")
        if not isinstance(body.get("image"), str) or body.get("client_id") != "me":
            raise bad("image or client_id")
        if not isinstance(body.get("disk"), (int, float)) or body["disk"] < 8:
            raise bad(f"disk {body.get('disk')}")
        if len(body.get("onstart") or "") > LONGEST_ONSTART or len(body.get("label") or "") > 256:
            raise bad("onstart or label too long")
        if "ssh" not in (body.get("runtype") or ""):
            raise bad("nobody could log in")

    def _rent(self, ask: Ask, body: Mapping[str, Any], price: float | None) -> Contract:
        self._next_id += 1
        usd = price if price is not None else ask.price_at_create or ask.usd
        contract = Contract(
            self._next_id, ask, body["label"], body["image"], body["disk"], body["onstart"] or "", body["env"],
            api_key=secrets.token_hex(32), created_at=self.clock.now(), is_bid=price is not None, usd=usd,
        )  # fmt: skip
        self.contracts[contract.id] = contract
        rates = Rates(
            gpu_usd_per_hour=Decimal(str(usd)), disk_usd_per_hour=Decimal(str(contract.disk_usd())),
            download_usd_per_gb=Decimal(str(ask.inet_down_cost)), upload_usd_per_gb=Decimal(str(ask.inet_up_cost)),
        )  # fmt: skip
        self.meter.created(str(contract.id), rates)
        return contract

    def _show(self, request: Request) -> Answer:
        contract = self._permitted(request)
        return Answer.json({"instances": contract.row(self.clock.now()) if contract else None})

    def _list(self, request: Request) -> Answer:
        self._account_only(request)
        wanted = json.loads(request.query.get("select_filters", ["{}"])[0]).get("label", {}).get("in")
        limit = min(self.list_rows, int(request.query.get("limit", ["25"])[0]))
        after = int(request.query.get("after_token", ["t0"])[0].removeprefix("t"))
        self._advance()
        now = self.clock.now()
        rows = [*strangers(), *(c.row(now) for c in self.contracts.values() if self._is_shown(c, self.listed_after_s))]
        if "label" not in self.ignored_filters and wanted is not None:
            rows = [row for row in rows if row["label"] in wanted]
        rows = [row for row in rows if row["id"] > after]
        page, more = rows[:limit], len(rows) > limit
        token = f"t{page[-1]['id']}" if more else None
        return Answer.json({"success": True, "instances_found": len(page), "instances": page, "next_token": token})

    def _retired(self, request: Request) -> Answer:
        return Answer.json({"success": False, "error": "deprecated_endpoint", "msg": "use /api/v1/instances/"}, 410)

    def _destroy(self, request: Request) -> Answer:
        contract = self._permitted(request, destroys=True)
        if contract is None or (contract.gone_at is not None and not self._is_shown(contract, 0)):
            raise no_instance(request.parts["id"])
        if self.identify(request) != "account" and not self.self_destruct_works:
            raise Refusal(Answer.json({"success": False, "error": "auth_error", "msg": "Invalid user key"}, 401))
        self._end(contract)
        return Answer.json({"success": True})

    def _rebid(self, request: Request) -> Answer:
        self._account_only(request)
        contract, body = self._permitted(request), self._json(request)
        if contract is None:
            raise no_instance(request.parts["id"])
        price = body.get("price")
        price = contract.ask.top_bid + 0.001 if price is None else price  # null bids whatever wins
        if (
            not contract.is_bid
            or set(body) != {"client_id", "price"}
            or not 0.001 <= price <= 32 * contract.ask.num_gpus
        ):
            raise bad("bid")
        contract.usd = price
        self.meter.repriced(str(contract.id), Decimal(str(price)))
        if contract.wanted == "stopped" and price > contract.ask.top_bid:
            self._resume(contract)
        return Answer.json({"success": True})

    def _attach(self, request: Request) -> Answer:
        self._account_only(request)
        contract, key = self._permitted(request), self._json(request).get("ssh_key")
        if contract is None or not isinstance(key, str) or not key.startswith("ssh-"):
            raise bad("ssh_key")
        contract.keys.append(key)
        if self.machines and contract.is_booted:
            self.machines.add_key(str(contract.id), key)
        return Answer.json({"success": True, "msg": "SSH key added to instance."})

    def _user(self, request: Request) -> Answer:
        self._account_only(request)
        return Answer.json({"id": 123, "credit": self.credit, "balance": 0, "api_key": "must not be shown"})

    def _charges(self, request: Request) -> Answer:
        self._account_only(request)
        day = json.loads(request.query.get("select_filters", ["{}"])[0]).get("day", {})
        if set(day) != {"gte", "lte"}:
            raise bad("Must provide both 'day' gte and lte filters for instance charges")
        after = int(request.query.get("after_token", ["0"])[0])
        limit = min(self.charge_rows, int(request.query.get("limit", ["100"])[0]))
        found = [c for c in self.contracts.values() if c.created_at.timestamp() <= day["lte"]]
        rows = [self._charge(contract) for contract in found[after : after + limit]]
        token = str(after + limit) if len(found) > after + limit else None
        said = {"success": True, "count": len(rows), "total": len(found), "results": rows, "next_token": token}
        return Answer.json(said)

    def _charge(self, contract: Contract) -> dict[str, Any]:
        charges = self.meter.charges(str(contract.id))
        amounts = {"gpu": charges.gpu_usd, "disk": charges.disk_usd, "bwd": charges.traffic_usd, "bwu": Decimal(0)}
        start = int(contract.created_at.timestamp()) // 86_400 * 86_400
        row = {"start": start, "end": start, "type": "instance", "source": f"instance-{contract.id}", "metadata": {}}
        items = [
            {**row, "type": kind, "source": None, "amount": float(round(usd, self.decimals)), "items": []}
            for kind, usd in amounts.items()
        ]
        return {**row, "amount": float(round(charges.usd, self.decimals)), "items": items}

    # Behind the calls

    def _account_only(self, request: Request) -> None:
        by = self.identify(request)
        if by != "account":
            status = 403 if by else 401
            raise Refusal(Answer.json({"success": False, "error": "auth_error", "msg": "Invalid user key"}, status))

    def _permitted(self, request: Request, *, destroys: bool = False) -> Contract | None:
        """The instance, for its own key or the account's; None where nothing is shown (any more, or yet)."""
        wanted = int(request.parts["id"]) if request.parts["id"].isdigit() else 0
        if self.identify(request) != f"instance {wanted}":
            self._account_only(request)
        self._advance()
        contract = self.contracts.get(wanted)
        return contract if contract and (destroys or self._is_shown(contract, self.shown_after_s)) else None

    def _is_shown(self, contract: Contract, after_s: float) -> bool:
        now = self.clock.now()
        if contract.gone_at is not None:
            return (now - contract.gone_at).total_seconds() < self.gone_after_s
        return (now - contract.created_at).total_seconds() >= after_s

    def _is_free(self, ask: Ask) -> bool:
        return sum(c.ask is ask and c.gone_at is None for c in self.contracts.values()) < ask.slots

    def _living(self, contract_id: int) -> Contract:
        self._advance()
        return self.contracts[contract_id]

    def _json(self, request: Request) -> dict[str, Any]:
        try:
            body = request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise bad("no JSON object")
        return body

    def _advance(self) -> None:
        """Let what has had its time come up."""
        for contract in self.contracts.values():
            age_s = (self.clock.now() - contract.created_at).total_seconds()
            is_due = not contract.is_booted and contract.gone_at is None and age_s >= contract.ask.boot_s
            if is_due and contract.wanted == "running" and contract.ask.boot == "running":
                contract.is_booted = True
                self.meter.running(str(contract.id))
                contract.endpoint = self._start(contract)

    def _start(self, contract: Contract) -> tuple[str, int]:
        if self.machines is None:
            return "127.0.0.1", 22
        env = {
            **contract.env, "CONTAINER_ID": str(contract.id), "CONTAINER_API_KEY": contract.api_key,
            "VAST_CONTAINERLABEL": f"C.{contract.id}", "GPU_COUNT": str(contract.ask.num_gpus),
        }  # fmt: skip
        endpoint: Endpoint = self.machines.start(
            str(contract.id),
            env=env,
            command=contract.onstart,
            authorized_keys=contract.keys,
            quirks=contract.ask.quirks,
        )
        return endpoint.host, endpoint.port

    def _halt(self, contract: Contract) -> None:
        contract.wanted = "stopped"
        self._power_off(contract)

    def _resume(self, contract: Contract) -> None:
        contract.wanted = "running"
        if contract.is_booted:
            self.meter.running(str(contract.id))
            if self.machines:
                self.machines.resume(str(contract.id))

    def _power_off(self, contract: Contract) -> None:
        self.meter.stopped(str(contract.id))
        if self.machines:
            self.machines.stop(str(contract.id))

    def _end(self, contract: Contract) -> None:
        contract.gone_at = contract.gone_at or self.clock.now()
        self.meter.gone(str(contract.id))
        if self.machines:
            self.machines.destroy(str(contract.id))
