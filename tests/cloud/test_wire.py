"""The fake marketplaces' own ground: faults befall the call they are meant for, and the meter counts every second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

import pytest
import requests

from tests.cloud import faults
from tests.cloud.meter import Meter, Rates
from tests.cloud.wire import Answer, Refusal, Request, Route, Wire
from tests.storage.clocks import SteppedClock


class Shelf(Wire):
    """A marketplace with one thing to change."""

    def __init__(self) -> None:
        self.things: list[str] = []
        super().__init__()

    def routes(self) -> Sequence[Route]:
        return [
            Route("PUT", "/things/{name}/", "put", self._put),
            Route("GET", "/things/", "list", lambda _: Answer.json(self.things)),
            Route("GET", "/broken/", "broken", lambda _: 1 / 0),  # type: ignore[arg-type, return-value]
        ]

    def identify(self, request: Request) -> str:
        return {"canary-key": "account"}.get(request.bearer, "")

    def _put(self, request: Request) -> Answer:
        if request.parts["name"] in self.things:
            raise Refusal(Answer.json({"error": "there is one"}, 409))
        self.things.append(request.parts["name"])
        return Answer.json({"success": True})


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    yield made
    made.close()


def put(shelf: Shelf, name: str = "a") -> requests.Response:
    headers = {"Authorization": "Bearer canary-key", "User-Agent": "me"}
    return requests.put(f"{shelf.url}/things/{name}/", json={"x": 1}, headers=headers, timeout=0.3)


def test_a_call_is_answered_and_logged_without_its_key(shelf: Shelf) -> None:
    assert put(shelf).json() == {"success": True}
    assert put(shelf).status_code == 409
    assert requests.get(f"{shelf.url}/elsewhere", timeout=5).status_code == 404
    first, second, third = shelf.log
    assert (first.call, first.by, first.status, first.body) == ("put", "account", 200, b'{"x": 1}')
    assert (second.status, third.call, third.by) == (409, "unknown", "")
    assert first.headers["user-agent"] == "me"
    assert "canary-key" not in repr(shelf.log)


@pytest.mark.parametrize("fault", faults.EVERY_KIND, ids=str)
def test_a_fault_befalls_one_call_and_leaves_its_effect_or_none(shelf: Shelf, fault: faults.Fault) -> None:
    shelf.faults.on("put", fault)
    assert requests.get(f"{shelf.url}/things/", timeout=5).json() == []
    if fault.is_silent:
        with pytest.raises(requests.ReadTimeout):
            put(shelf)
    elif fault.is_reset:
        with pytest.raises(requests.ConnectionError):
            put(shelf)
    else:
        answer = put(shelf)
        assert answer.status_code == fault.status
        assert answer.headers.get("Retry-After") == fault.headers.get("Retry-After")
    assert shelf.things == (["a"] if fault.has_effect else [])
    assert shelf.faults.pending() == 0
    assert put(shelf, "b").status_code == 200
    assert [logged.fault for logged in shelf.calls("put")] == [str(fault), ""]


def test_faults_can_be_meant_for_the_third_call_for_two_calls_and_for_all(shelf: Shelf) -> None:
    shelf.faults.on("put", faults.SERVER_ERROR, nth=3, times=2)
    assert [put(shelf, str(n)).status_code for n in range(5)] == [200, 200, 500, 500, 200]
    shelf.faults.from_now_on(faults.ANY, faults.UNAVAILABLE)
    assert [put(shelf, str(n)).status_code for n in (7, 8, 9)] == [503] * 3
    shelf.faults.clear()
    assert put(shelf, "9").status_code == 200
    assert shelf.faults.seen("put") == 9


def test_a_fake_that_breaks_says_so_in_the_end() -> None:
    shelf = Shelf()
    assert requests.get(f"{shelf.url}/broken/", timeout=5).status_code == 500
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        shelf.close()


def test_the_meter_counts_disk_from_creation_and_the_gpu_only_while_it_runs() -> None:
    clock = SteppedClock()
    meter = Meter(clock)
    meter.created("1", Rates(Decimal("0.40"), Decimal("0.01"), Decimal("0.02"), upload_usd_per_gb=Decimal("0.03")))
    clock.step(1800)  # loading
    meter.running("1")
    clock.step(3600)
    meter.repriced("1", Decimal("0.60"))
    clock.step(3600)
    meter.stopped("1")
    clock.step(3600)
    meter.offline("1")
    clock.step(3600)
    meter.offline("1", is_offline=False)
    meter.traffic("1", up_gb=2)
    assert meter.live() == ["1"]
    meter.gone("1")
    clock.step(3600)
    meter.gone("1")
    charges = meter.charges("1")
    assert (charges.gpu_usd, charges.disk_usd, charges.traffic_usd) == (Decimal(1), Decimal("0.05"), Decimal("0.06"))
    assert (meter.usd("1"), meter.total_usd()) == (Decimal("1.11"), Decimal("1.11"))
    assert (meter.live(), meter.ever()) == ([], ["1"])
