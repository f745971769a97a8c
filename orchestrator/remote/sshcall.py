"""One command on an open SSH connection, from its first byte to its exit code, within its time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import RemoteError
from orchestrator.remote.base import Completed
from orchestrator.remote.sshshell import Framed, framed, kill_command

if TYPE_CHECKING:
    import paramiko

MAX_OUTPUT_BYTES = 64 * 2**20  # per stream; more is a mistake, and would fill this computer's memory
_CHUNK_BYTES = 65_536
_OPEN_TIMEOUT_S = 30.0
_GRACE_S = 5.0  # to end what has not ended by itself, and as long again before the connection is cut
_SAID_CHARACTERS = 200


@dataclass(slots=True)
class Fuse:
    """Whether an operation had to be cut off."""

    has_blown: bool = False


@contextlib.contextmanager
def fuse(seconds: float, cut: Callable[[], None]) -> Iterator[Fuse]:
    """Cut what is still going on by then.

    paramiko has waits without an end: for the answer to a request on a channel (`Channel._wait_for_event`), and for
    room in the socket of a peer that has gone silent (`Packetizer.write_all`); seen in 5.1.0.
    """
    state = Fuse()

    def blow() -> None:
        state.has_blown = True
        cut()

    timer = threading.Timer(seconds, blow)
    timer.daemon = True
    timer.start()
    try:
        yield state
    finally:
        timer.cancel()


def words(error: BaseException) -> str:
    """What an error says, or what it is."""
    return str(error) or type(error).__name__


class Caller:
    """Runs commands on one connection."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport

    def __call__(self, script: str, *, timeout_s: float, stdin: bytes = b"", doing: str = "a command") -> Completed:
        """Run a POSIX sh script. At its timeout it is killed there, as far as that can be done from here."""
        import paramiko

        frame = framed(script)
        with fuse(timeout_s + 2 * _GRACE_S, self._transport.close) as hard:
            try:
                with contextlib.closing(
                    self._transport.open_session(timeout=min(timeout_s, _OPEN_TIMEOUT_S))
                ) as channel:
                    return self._converse(channel, frame, stdin, timeout_s)
            except TimeoutError:
                raise RemoteError(f"{doing} did not end within {timeout_s:g} s and was killed") from None
            except paramiko.ChannelException as e:
                raise RemoteError(f"no command can be run: {e.text}") from e
            except (paramiko.SSHException, EOFError, OSError) as e:
                if hard.has_blown:
                    raise RemoteError(f"no answer to {doing} within {timeout_s:g} s; the connection is closed") from e
                raise RemoteError(f"the connection broke: {words(e)}") from e

    def _converse(self, channel: paramiko.Channel, frame: Framed, stdin: bytes, timeout_s: float) -> Completed:
        """Both streams are read at the same time, and the input sent meanwhile: no side can wait for the other.

        It is over when the frame is closed on both. A process that the command has left behind may hold the streams
        open for much longer, and a server then keeps the channel.
        """
        channel.exec_command(frame.command)
        over = threading.Event()
        streams = [_Stream(frame, read, over) for read in (channel.recv, channel.recv_stderr)]
        for stream in streams:
            stream.peers = streams
        threads = [threading.Thread(target=stream.drain, daemon=True) for stream in streams]
        threads.append(threading.Thread(target=_feed, args=(channel, stdin), daemon=True))
        try:
            for thread in threads:
                thread.start()
            _wait(over, timeout_s)
            return _result(frame, *streams)
        except BaseException:
            self._kill(frame.pid(streams[0].data))
            raise
        finally:
            channel.close()
            for thread in threads:
                thread.join(_GRACE_S)

    def _kill(self, pid: int | None) -> None:
        import paramiko

        if pid is None or not self._transport.is_active():
            return
        with (
            contextlib.suppress(paramiko.SSHException, EOFError, OSError),
            contextlib.closing(self._transport.open_session(timeout=_GRACE_S)) as channel,
            fuse(_GRACE_S, channel.close),
        ):
            channel.exec_command(kill_command(pid))
            channel.recv(1)


class _Stream:
    """What comes out of one of the two streams."""

    def __init__(self, frame: Framed, read: Callable[[int], bytes], over: threading.Event) -> None:
        self.data = bytearray()
        self.code: int | None = None
        self.is_over = False
        self.peers: list[_Stream] = []
        self._frame, self._read, self._over = frame, read, over

    def drain(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while self.code is None and len(self.data) <= MAX_OUTPUT_BYTES and (chunk := self._read(_CHUNK_BYTES)):
                known = len(self.data)
                self.data += chunk
                self.code = self._frame.code(self.data, known)
        self.is_over = True
        if len(self.data) > MAX_OUTPUT_BYTES or all(peer.is_over for peer in self.peers):
            self._over.set()


def _wait(over: threading.Event, timeout_s: float) -> None:
    if not over.wait(timeout_s):
        raise TimeoutError


def _result(frame: Framed, out: _Stream, err: _Stream) -> Completed:
    if max(len(out.data), len(err.data)) > MAX_OUTPUT_BYTES:
        raise RemoteError(f"a command wrote more than {MAX_OUTPUT_BYTES} bytes")
    if out.code is not None:
        return Completed(out.code, frame.inside(out.data), frame.inside(err.data))
    if frame.pid(out.data) is not None:
        raise RemoteError("the connection broke before the command had ended")
    said = bytes(err.data + out.data).decode(errors="replace").strip()[-_SAID_CHARACTERS:]
    raise RemoteError(f"the instance has not run the command; it said: {said or 'nothing'}")


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    with contextlib.suppress(OSError, EOFError):
        if data:
            channel.sendall(data)
        channel.shutdown_write()
