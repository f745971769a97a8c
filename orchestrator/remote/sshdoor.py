"""Getting in: where an instance's SSH may answer, and one try at it, which says how far it came.

An instance's SSH comes up in stages: the port is refused, then open and closed at once, then silent, then there while
our key is not. Seen in paramiko/paramiko#1533 and #1752, dstackai/dstack#2277, skypilot-org/skypilot#8820.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.remote.sshcall import words

if TYPE_CHECKING:
    import paramiko

_LOG = "tune.ssh"  # paramiko tells every refused connection to the root logger otherwise
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # how a host proves that it has the key it calls ssh-rsa


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each step may take, in seconds."""

    budget: float = 20.0  # for all tries of one connect; passes repeat it
    tcp: float = 10.0  # a port that drops packets never answers
    banner: float = 15.0  # until it says its first word, and as long again until the keys are exchanged
    auth: float = 15.0
    look: float = 10.0  # for the first command
    sftp: float = 20.0  # a server without it mostly says so at once
    between: float = 2.0
    keepalive: int = 15  # NAT boxes forget idle connections after a minute or more


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place where an instance's SSH may answer."""

    host: str
    port: int
    user: str
    is_proxy: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class NotReady(Exception):
    """One try failed, at the stage it names."""


def endpoints(address: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Where to knock, the direct way first: it is faster, and a proxy may not carry files."""
    found = []
    for kind, user in (("direct", address.get("user")), ("proxy", address.get("proxy_user"))):
        host, port = address.get(f"{kind}_host", ""), address.get(f"{kind}_port", "")
        if host and port.isdecimal() and 0 < int(port) < 65536:
            found.append(Endpoint(host, int(port), user or address.get("user") or "root", is_proxy=kind == "proxy"))
    return tuple(found)


def knock(
    place: Endpoint, *, host_key_type: str, patience: Patience, left_s: Callable[[], float]
) -> paramiko.Transport:
    """Come to where the host has shown its key, and nobody has logged in.

    `host_key_type`: what to ask for first, so that a host with several keys shows the one it has shown before.
    `left_s`: what remains of the budget.
    """
    sock = _connected(place, min(patience.tcp, left_s()))
    try:
        _hear(sock, min(patience.banner, left_s()))
        return _negotiated(sock, host_key_type, min(patience.banner, left_s()))
    except BaseException:
        sock.close()
        raise


def log_in(transport: paramiko.Transport, user: str, key: paramiko.PKey, *, timeout_s: float) -> None:
    """With this key and no other: no agent is asked, no file is looked for."""
    import paramiko

    _require(timeout_s)
    transport.auth_timeout = timeout_s
    try:
        transport.auth_publickey(user, key)
    except paramiko.AuthenticationException as e:
        raise NotReady(f"SSH answers, but the key is refused ({words(e).rstrip('.')})") from e
    except (paramiko.SSHException, EOFError, OSError) as e:
        raise NotReady(f"SSH answers, but the login breaks off: {words(e)}") from e
    if not transport.is_authenticated():
        raise NotReady("SSH answers, but wants more than a key")


def _connected(place: Endpoint, timeout_s: float) -> socket.socket:
    _require(timeout_s)
    try:
        return socket.create_connection((place.host, place.port), timeout=timeout_s)
    except TimeoutError:
        raise NotReady(f"its port does not answer within {timeout_s:.3g} s") from None
    except (OSError, UnicodeError) as e:  # a host name that is none is told by UnicodeError
        raise NotReady(f"no connection: {getattr(e, 'strerror', None) or e}") from e


def _hear(sock: socket.socket, timeout_s: float) -> None:
    """Wait for the first byte. Nothing is taken from the stream."""
    _require(timeout_s)
    sock.settimeout(timeout_s)
    try:
        if not sock.recv(1, socket.MSG_PEEK):
            raise NotReady("its port is open, but the connection is closed at once")
    except TimeoutError:
        raise NotReady(f"its port is open, but silent for {timeout_s:.3g} s") from None
    except OSError as e:
        raise NotReady(f"its port is open, but the connection breaks: {e.strerror or e}") from e


def _negotiated(sock: socket.socket, host_key_type: str, timeout_s: float) -> paramiko.Transport:
    import paramiko

    _require(timeout_s)
    transport = None
    try:
        transport = paramiko.Transport(sock)
        _hush(transport)
        transport.banner_timeout = timeout_s
        options = transport.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda name: not _fits(name, host_key_type))
        transport.start_client(timeout=timeout_s)
        transport.get_remote_server_key()  # fails when the time was up: start_client does not
    except (paramiko.SSHException, EOFError, OSError) as e:
        with contextlib.suppress(Exception):
            if transport is not None:
                transport.close()
        raise NotReady(f"what answers does not get to the end of SSH's greeting: {words(e)}") from e
    return transport


def _require(left_s: float) -> None:
    if left_s <= 0:
        raise NotReady("no time was left for another step")


def _fits(algorithm: str, host_key_type: str) -> bool:
    return algorithm in _RSA if host_key_type == "ssh-rsa" else algorithm == host_key_type


def _hush(transport: paramiko.Transport) -> None:
    log = logging.getLogger(_LOG)
    log.propagate = False
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    transport.set_log_channel(_LOG)
