"""What goes wrong between us and a marketplace, as a script: which call, the how-manieth, in which way."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

ANY = "*"  # instead of a call's name: every call


@dataclass(frozen=True, slots=True)
class Fault:
    """One way for a call to fail.

    `has_effect`: the call does its work, and only its answer is lost or replaced. `body` None: the error page that the
    server at hand has for this status.
    """

    name: str
    status: int = 200
    body: bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    has_effect: bool = False
    is_silent: bool = False  # no answer, until the caller gives up
    is_reset: bool = False  # the connection breaks

    def after_effect(self) -> Fault:
        """The same, after the work is done."""
        return replace(self, name=f"{self.name}, after its effect", has_effect=True)

    def __str__(self) -> str:
        return self.name


TIMEOUT = Fault("timeout", is_silent=True)
RESET = Fault("connection reset", is_reset=True)
RATE_LIMITED = Fault("429", 429)
SERVER_ERROR = Fault("500", 500)
UNAVAILABLE = Fault("503", 503)
HTML_502 = Fault(
    "502 in HTML",
    502,
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><center><h1>502 Bad Gateway</h1></center></body>\r\n</html>\r\n",
    "text/html",
)
UNSUCCESSFUL = Fault("200 success:false", 200, b'{"success": false, "error": "internal_error", "msg": "try again"}')
NULL = Fault("200 null", 200, b"null")
EMPTY = Fault("200 without a body", 200, b"")


def rate_limited_for(seconds: int) -> Fault:
    return Fault(f"429, again in {seconds} s", 429, headers={"Retry-After": str(seconds)})


EVERY_KIND = (
    TIMEOUT, TIMEOUT.after_effect(),
    RESET, RESET.after_effect(),
    RATE_LIMITED, rate_limited_for(7),
    SERVER_ERROR, SERVER_ERROR.after_effect(),
    HTML_502, HTML_502.after_effect(),
    UNSUCCESSFUL, UNSUCCESSFUL.after_effect(),
    NULL, NULL.after_effect(),
    EMPTY, EMPTY.after_effect(),
)  # fmt: skip
"""Every way in which a call fails, for tests that go through them all."""


@dataclass
class _Order:
    call: str
    first: int  # number of the first call that it meets, of calls of its name
    left: float  # how many more
    fault: Fault


class Faults:
    """The script of one fake server. Thread-safe."""

    def __init__(self) -> None:
        self._orders: list[_Order] = []
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.met: list[tuple[str, Fault]] = []  # every fault that was carried out

    def on(self, call: str, fault: Fault, *, nth: int = 1, times: int = 1) -> None:
        """The `nth` call of this name from now on (1 is the next), and `times - 1` after it."""
        with self._lock:
            self._orders.append(_Order(call, self._seen[call] + nth, times, fault))

    def from_now_on(self, call: str, fault: Fault) -> None:
        """Every call of this name until `clear`."""
        with self._lock:
            self._orders.append(_Order(call, 0, float("inf"), fault))

    def clear(self, call: str | None = None) -> None:
        """Forget what is planned, for one name or for all."""
        with self._lock:
            self._orders = [order for order in self._orders if call is not None and order.call != call]

    def seen(self, call: str = ANY) -> int:
        """How many calls of this name there were."""
        with self._lock:
            return self._seen[call]

    def pending(self) -> int:
        """How many orders have not been carried out yet: a test that plans a fault wants it met."""
        with self._lock:
            return len([order for order in self._orders if order.left != float("inf")])

    def take(self, call: str) -> Fault | None:
        """A call of this name has come in: what befalls it."""
        with self._lock:
            for name in (call, ANY):
                self._seen[name] += 1
            for order, name in itertools.product(self._orders, (call, ANY)):
                if order.call == name and order.first <= self._seen[name]:
                    order.left -= 1
                    if order.left < 1:
                        self._orders.remove(order)
                    self.met.append((call, order.fault))
                    return order.fault
            return None
