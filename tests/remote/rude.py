"""An SSH server that gets on with the protocol only as far as it likes."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

import paramiko


class RudeHost:
    """`auth`: its answer to every key. `never_answers`: a request to run a command is left lying."""

    def __init__(self, *, auth: int = paramiko.AUTH_SUCCESSFUL, never_answers: bool = False) -> None:
        self.auth, self.never_answers = auth, never_answers
        self.over = threading.Event()
        self._key = paramiko.ECDSAKey.generate()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._transports: list[paramiko.Transport] = []
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for transport in self._transports:
            transport.close()
            transport.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                transport = paramiko.Transport(connection)
                transport.set_log_channel("tests.quiet")
                transport.add_server_key(self._key)
                self._transports.append(transport)
                with contextlib.suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=_Manners(self))


class _Manners(paramiko.ServerInterface):
    def __init__(self, host: RudeHost) -> None:
        self._host = host

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return self._host.auth

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED if self._host.never_answers else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._host.over.wait()
        return False
