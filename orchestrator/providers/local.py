"""The machine at hand as a marketplace: the default provider, which needs no account.

An instance is a tree of processes with a folder, an environment and a label of its own, looked after by a host process
that outlives whoever rented it. It can be preempted, stopped, destroyed, and found again after a crash of anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Literal

from orchestrator import codec, processes
from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import (
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    ProviderRejected,
    ProviderUnavailable,
    RecordCorrupt,
)
from orchestrator.providers import local_folder as layout
from orchestrator.providers import local_host
from orchestrator.providers.base import Capabilities
from orchestrator.providers.registry import Bound, ProviderSettings, lazy
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

NAME = "local"
OPTIONS = {
    "offers": "how many machines to pretend (1)",
    "usd_per_hour": "a pretended price (0)",
    "max_instances": "refuse to rent more than this at once (no limit)",
}
CREATE_TIMEOUT_S = 10.0  # starting an interpreter takes 0.1 s, on a machine at full load several
STUCK_S = 10.0  # a host answers within 0.2 s; one that has not for so long is killed
MAX_LABEL_LEN = 255
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where cron leaves none

Spawn = Callable[[Path, int, float], None]
"""Start a host for a folder, hand it the lock, and return within so many seconds."""


def build(settings: ProviderSettings) -> Bound:
    """The provider and the way into its instances."""
    return Bound(LocalProvider(settings.state_dir, settings.options), lazy("orchestrator.remote.local:connect"))


class LocalProvider:
    """Instances on this machine. Safe for many threads and many processes at once."""

    def __init__(
        self,
        state_dir: Path,
        options: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        self._root = Path(os.path.abspath(state_dir)) / "local" / "instances"  # noqa: PTH100 - links stay as they are
        self._options = {} if options is None else options
        self._clock = clock or SystemClock()
        self._spawn = spawn or start_host

    @property
    def name(self) -> str:
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            spot=True,  # `preempt` takes an instance away at any time
            list_lag_s=0,
            create_timeout_s=CREATE_TIMEOUT_S,
            stopped_bills=True,  # it keeps its disk until it is terminated
            eviction_notice_s=0,
            max_label_len=MAX_LABEL_LEN,
            rebid=False,
        )

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:  # noqa: ARG002 - nothing waits
        """The machine at hand, as many times as the option `offers` says."""
        import psutil

        with _answering("looking at this machine"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            offer = Offer(
                provider=NAME,
                offer_id=NAME,
                usd_per_hour=self._price(),
                spot=want.spot != "never",  # one machine, either way
                disk_gb=shutil.disk_usage(self._root).free / 1e9,
                host_ram_gib=psutil.virtual_memory().total / 2**30,
                host_id=platform.node() or NAME,
            )
        count = self._count("offers", default=1)
        if count == 1:
            return [offer]
        return [replace(offer, offer_id=f"{NAME}-{n}", host_id=f"{offer.host_id}-{n}") for n in range(1, count + 1)]

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        """Rent: the folder with its token first, then the host. See `Provider.create`."""
        self._refuse(offer, spec, token)
        with _answering("making an instance"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            layout.sweep(self._root, clock=self._clock)
        instance_id = InstanceId(f"{NAME}-{secrets.token_hex(4)}")
        folder = self._root / instance_id
        with contextlib.ExitStack() as held:
            with self._turn(), _answering("making an instance"):
                record, lock_fd = self._place(folder, offer, spec, token, held)
            try:
                layout.sync(self._root)
                self._spawn(folder, lock_fd, min(timeout_s, CREATE_TIMEOUT_S))
            except (OSError, subprocess.SubprocessError) as e:
                raise OutcomeUnknown(f"{instance_id} may or may not have started: {e}", token=token) from e
        return self._instance(folder, record, InstanceState.STARTING)

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:  # noqa: ARG002 - nothing waits
        """As it is now. InstanceNotFound only when its folder is gone."""
        with _answering(f"looking at {instance_id}"):
            seen = self._look(self._folder(instance_id))
        if seen is None:
            raise InstanceNotFound(f"there is no instance {instance_id}")
        return seen

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:  # noqa: ARG002
        """Every instance of the namespace. Folders that are not ours are passed over, and left alone."""
        with _answering("listing the instances"):
            folders = sorted(self._root.iterdir()) if self._root.exists() else []
            seen = [self._look(folder) for folder in folders if not folder.name.startswith(".")]
        return [i for i in seen if i and (parts := parse_token(i.token)) and parts.namespace == namespace]

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:  # noqa: ARG002 - nothing waits
        """Ask the host to end it; do so ourselves where there is no host, or one that no longer answers."""
        self._ask(instance_id, layout.TERMINATE)

    def preempt(self, instance_id: InstanceId, mode: Literal["vanish", "outbid"] = "vanish") -> None:
        """Take the instance away without notice, as a marketplace does: gone at once, or stopped and still listed."""
        self._ask(instance_id, layout.OUTBID if mode == "outbid" else layout.VANISH)

    def stop(self, instance_id: InstanceId) -> None:
        """Halt it as its owner's console would: it computes nothing and stays listed until terminated."""
        self._ask(instance_id, layout.STOP)

    def _refuse(self, offer: Offer, spec: LaunchSpec, token: Token) -> None:
        texts = [spec.start_command, *spec.env, *spec.env.values()]
        if offer.provider != NAME:
            raise ProviderRejected(f"{offer.offer_id} is an offer of {offer.provider}, not of {NAME}")
        if not token or len(token) > MAX_LABEL_LEN:
            raise ProviderRejected(f"a label has 1 to {MAX_LABEL_LEN} characters, not {len(token)}")
        if not spec.start_command.strip() or any("\0" in text for text in texts):
            raise ProviderRejected("the start command is empty, or something in the launch holds a NUL character")
        if bad := [name for name in spec.env if not name or "=" in name]:
            raise ProviderRejected(f"not names of environment variables: {', '.join(map(repr, bad))}")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Capacity is counted and taken by one creator at a time. A creator that dies gives the turn away."""
        limit = self._count("max_instances", default=0)
        if not limit:
            yield
            return
        with contextlib.ExitStack() as held:
            with _answering("waiting for a turn"):
                fd = os.open(self._root / ".turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                held.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX)
                taken = sum(not path.name.startswith(".") for path in self._root.iterdir())
            if taken >= limit:
                raise InsufficientCapacity(f"{taken} of {limit} instances are in use on this machine")
            yield

    def _place(
        self, folder: Path, offer: Offer, spec: LaunchSpec, token: Token, held: contextlib.ExitStack
    ) -> tuple[layout.Record, int]:
        """The complete folder, renamed into place in one step, with its lock in our hands from the very first."""
        free_gb = shutil.disk_usage(self._root).free / 1e9
        if spec.disk_gb > free_gb:
            raise InsufficientCapacity(f"{spec.disk_gb:.1f} GB of disk are wanted, {free_gb:.1f} GB are free")
        record = layout.Record(
            instance_id=folder.name,
            token=token,
            offer_id=offer.offer_id,
            usd_per_hour=offer.usd_per_hour,
            host_id=offer.host_id,
            created_at=self._clock.now(),
            spec=spec,
        )
        boot = {
            "start_command": spec.start_command,
            "env": _environment(folder, spec.env),
            "deadline_s": spec.deadline_s,
        }
        staged = folder.with_name(f"{layout.STAGED}{folder.name}")
        try:
            staged.mkdir(mode=0o700)
            lock_fd = os.open(staged / layout.ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, lock_fd)
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in (layout.HOME, layout.USER, layout.TMP):
                (staged / name).mkdir(mode=0o700)
            layout.write_json(staged / layout.BOOT, boot)
            layout.write(staged / layout.RECORD, codec.dump(record), durable=True)
            layout.sync(staged)
            staged.rename(folder)  # from here on find() shows it
        except OSError:
            layout.remove_tree(staged)
            raise
        return record, lock_fd

    def _ask(self, instance_id: InstanceId, wish: str) -> None:
        folder = self._folder(instance_id)
        try:
            layout.request(folder, wish)
            asked_s_ago = self._clock.now().timestamp() - (folder / wish).stat().st_mtime
            if asked_s_ago > STUCK_S:
                layout.kill_host(folder)
            if not processes.lock_is_held(folder / layout.ALIVE):
                self._end_without_host(folder, wish)
        except (FileNotFoundError, NotADirectoryError):
            raise InstanceNotFound(f"there is no instance {instance_id}") from None
        except OSError as e:
            raise ProviderUnavailable(f"asking {instance_id} to {wish}: {e}") from e

    def _end_without_host(self, folder: Path, wish: str) -> None:
        with layout.sole_killer(folder) as alone:
            if not alone:
                return  # accepted: somebody else is at it
            layout.request(folder, layout.ENDING)
            if not processes.end_all(lambda: layout.members(folder), clock=self._clock):
                return  # accepted, and still listed: somebody will not die yet
            if reason := layout.WISHES[wish]:
                layout.halt(folder, reason)
            else:
                layout.vanish(folder)

    def _folder(self, instance_id: InstanceId) -> Path:
        """Where it lies. An id that could lead anywhere else was never given out."""
        if not instance_id or instance_id.startswith(".") or "/" in instance_id or "\0" in instance_id:
            raise InstanceNotFound(f"there is no instance {instance_id!r}")
        return self._root / instance_id

    def _look(self, folder: Path) -> Instance | None:
        """None when it is gone, or never was a folder."""
        try:
            record = codec.load(layout.Record, (folder / layout.RECORD).read_bytes(), where=str(folder))
            state = layout.state(folder)
        except (FileNotFoundError, IsADirectoryError, RecordCorrupt):
            if not folder.is_dir():
                return None
            return Instance(InstanceId(folder.name), "", NAME, InstanceState.UNKNOWN)
        except NotADirectoryError:
            return None
        return self._instance(folder, record, state) if folder.is_dir() else None

    def _instance(self, folder: Path, record: layout.Record, state: InstanceState) -> Instance:
        places = {"home": layout.HOME, "boot": layout.BOOT, "alive": layout.ALIVE, "ending": layout.ENDING}
        return Instance(
            instance_id=InstanceId(folder.name),
            token=record.token,
            provider=NAME,
            state=state,
            usd_per_hour=record.usd_per_hour,
            host_id=record.host_id,
            created_at=record.created_at,
            address={name: str(folder / file) for name, file in places.items()},
            console_url=(folder / layout.CONSOLE).as_uri(),
        )

    def _price(self) -> Decimal:
        text = self._options.get("usd_per_hour", "0")
        try:
            price = Decimal(text)
        except InvalidOperation:
            price = Decimal(-1)
        if not price.is_finite() or price < 0:
            raise ProviderRejected(f"usd_per_hour = {text!r} is not a price", hint="mend the option in the config file")
        return price

    def _count(self, option: str, *, default: int) -> int:
        text = self._options.get(option, str(default))
        if not (text.isascii() and text.isdigit()):
            raise ProviderRejected(f"{option} = {text!r} is not a number", hint="mend the option in the config file")
        return int(text)


@contextlib.contextmanager
def _answering(doing: str) -> Iterator[None]:
    """What the file system says, in a marketplace's words: it did not answer, and that proves nothing."""
    try:
        yield
    except OSError as e:
        raise ProviderUnavailable(f"{doing}: {e}") from e


def _base_environment() -> dict[str, str]:
    """All that an instance or its host takes over from the caller: where programs and their libraries are."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if os.environ.get(name)}
    return {"PATH": os.environ.get("PATH") or _DEFAULT_PATH, "LANG": "C.UTF-8", **kept}


def _environment(folder: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """What the instance sees. No key of the caller's is in it, and nothing wanted can point it at another place."""
    return {
        **_base_environment(),
        **wanted,
        "HOME": str(folder / layout.USER),
        "TMPDIR": str(folder / layout.TMP),
        "TUNE_HOME": str(folder / layout.HOME),
        "TUNE_FAREWELL": f": > {shlex.quote(str(folder / layout.END))}",
        processes.MARKER: folder.name,
    }


def start_host(folder: Path, lock_fd: int, timeout_s: float) -> None:
    """Start the host of an instance. It leaves our session and family at once: no signal meant for us reaches it."""
    with (folder / layout.HOST_LOG).open("ab") as log:
        subprocess.run(
            local_host.command(folder, lock_fd),
            cwd="/",
            env={**_base_environment(), processes.HOST_MARKER: folder.name},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock_fd],
            start_new_session=True,
            timeout=timeout_s,
            check=True,
        )
