"""The nouns. Frozen, without behaviour beyond what follows from their fields."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import NewType

RunId = NewType("RunId", str)
InstanceId = NewType("InstanceId", str)
Namespace = NewType("Namespace", str)
Token = NewType("Token", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i, l, o, u to misread
_TIME_CHARS = 6  # 30 bits of seconds: good for 34 years from the epoch below
_RANDOM_CHARS = 4
_EPOCH_S = 1_735_689_600  # 2025-01-01T00:00:00Z
RUN_ID_LENGTH = _TIME_CHARS + _RANDOM_CHARS
NAMESPACE_LENGTH = 6
_TOKEN = re.compile(
    rf"^tune-([{_ALPHABET}]{{{NAMESPACE_LENGTH}}})-([{_ALPHABET}]{{{RUN_ID_LENGTH}}})-a([1-9][0-9]{{0,5}})$"
)


def new_run_id(now: datetime) -> RunId:
    """Ten characters, fixed width, sorted by time of birth."""
    seconds = max(0, int(now.timestamp()) - _EPOCH_S)
    stamp = "".join(_ALPHABET[(seconds >> shift) & 31] for shift in range(5 * (_TIME_CHARS - 1), -1, -5))
    return RunId(stamp + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_CHARS)))


def is_run_id(text: str) -> bool:
    """Whether a text has the form of a run id."""
    return len(text) == RUN_ID_LENGTH and all(letter in _ALPHABET for letter in text)


def new_namespace() -> Namespace:
    """Six random characters, kept at the storage root, so that a sweep never touches a colleague's instance."""
    return Namespace("".join(secrets.choice(_ALPHABET) for _ in range(NAMESPACE_LENGTH)))


def token_for(namespace: Namespace, run_id: RunId, attempt: int) -> Token:
    """The label that ties an instance to one attempt."""
    return Token(f"tune-{namespace}-{run_id}-a{attempt}")


@dataclass(frozen=True, slots=True)
class TokenParts:
    """What a token says."""

    namespace: Namespace
    run_id: RunId
    attempt: int


def parse_token(label: str) -> TokenParts | None:
    """The parts, or None for any label that is not exactly ours."""
    match = _TOKEN.fullmatch(label)
    if match is None:
        return None
    return TokenParts(Namespace(match[1]), RunId(match[2]), int(match[3]))


class Phase(StrEnum):
    """Where a run is."""

    PENDING = "pending"
    PROVISIONING = "provisioning"
    BOOTSTRAPPING = "bootstrapping"
    RUNNING = "running"
    TERMINATING = "terminating"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Nothing is billing and nothing will happen by itself."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


class Outcome(StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"
    PREEMPTED = "preempted"  # the provider took the instance
    MOVED = "moved"  # the policy preferred another one
    HOST_FAULT = "host_fault"  # broken hardware or driver
    NOT_LAUNCHED = "not_launched"  # nothing was rented
    UNREACHABLE = "unreachable"  # it may have lived, but nobody heard from it
    SETUP_FAILED = "setup_failed"  # the agent or the trainer never got going
    OOM = "oom"
    HUNG = "hung"
    DIVERGED = "diverged"  # NaN, infinite or zero loss
    USER_ERROR = "user_error"  # the recipe itself failed
    BUDGET = "budget"
    CANCELLED = "cancelled"
    LOST_UPLOAD = "lost_upload"  # weights could not be stored in time


class InstanceState(StrEnum):
    """What the provider says of an instance, in our words. Anything but absent may bill."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"  # outbid, paused, exited: computes nothing, may still bill for its disk
    UNKNOWN = "unknown"  # the provider used a word we do not know, or the host is offline


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the hardware must offer. `vram_gib` is per GPU."""

    gpu_count: int = 0
    vram_gib: float = 0.0
    disk_gb: float = 0.0
    host_ram_gib: float = 0.0
    spot: str = "prefer"  # prefer | require | never
    max_usd_per_hour: Decimal | None = None
    gpu_names: tuple[str, ...] = ()  # any of these, in our canonical spelling; empty: any
    min_cuda: float = 0.0  # the driver must take at least this CUDA version
    download_gb: float = 0.0  # what an attempt fetches from and sends to the network, for offers that charge traffic
    upload_gb: float = 0.0
    expected_hours: float = 0.0  # 0: unknown
    image: str = ""  # container image; empty: the adapter's default


@dataclass(frozen=True, slots=True)
class Limits:
    """What the recipe allows: how long each thing may take, and how much the whole may cost.

    The price cap per hour and the wish for spot capacity are in `Requirements`, because offers are filtered by them.
    """

    checkpoint_every_s: float = 1200.0
    keep_checkpoints: int = 2
    hang_timeout_s: float = 1800.0
    launch_timeout_s: float = 900.0
    bootstrap_timeout_s: float = 1800.0
    unreachable_grace_s: float = 1800.0
    upload_grace_s: float = 86_400.0
    instance_deadline_s: float = 86_400.0  # after which an instance ends itself, whatever happens
    max_attempts: int = 10
    budget_usd: Decimal | None = None
    deadline_s: float | None = None  # for the whole run, from its creation or last re-opening
    allow_optimizer_reset: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Something rentable now. `usd_per_hour` is the full price: GPU, disk and what else runs by the hour."""

    provider: str
    offer_id: str
    usd_per_hour: Decimal
    spot: bool
    gpu_name: str = ""
    gpu_count: int = 0
    vram_gib: float = 0.0  # per GPU
    disk_gb: float = 0.0
    host_ram_gib: float = 0.0
    host_id: str = ""  # the machine behind the offer, to be remembered when it is to blame
    idle_usd_per_hour: Decimal | None = None  # the part of the price that is billed while it is stopped; None: all
    starting_bills: bool = True  # the whole price runs while it starts; False: only the idle part does
    download_usd_per_gb: Decimal = Decimal(0)  # traffic into the instance
    upload_usd_per_gb: Decimal = Decimal(0)  # traffic out of it
    cuda: float = 0.0  # highest CUDA version its driver takes; 0: unknown
    compute_capability: float = 0.0  # 8.9 for a 4090; 0: unknown
    download_mbps: float = 0.0
    upload_mbps: float = 0.0
    reliability: float | None = None  # 0 to 1, as the marketplace rates the host
    region: str = ""  # ISO country code where it is told, else the marketplace's word
    lasts_s: float | None = None  # until the host's own contract ends; None: no such limit
    details: Mapping[str, str] = field(default_factory=dict)  # the adapter's own: the bid, the tier


@dataclass(frozen=True, slots=True)
class Bill:
    """What a marketplace says an instance has cost. `is_final` once nothing more will be added."""

    gpu_usd: Decimal = Decimal(0)
    disk_usd: Decimal = Decimal(0)
    traffic_usd: Decimal = Decimal(0)
    other_usd: Decimal = Decimal(0)
    is_final: bool = False

    @property
    def usd(self) -> Decimal:
        return self.gpu_usd + self.disk_usd + self.traffic_usd + self.other_usd


@dataclass(frozen=True, slots=True)
class Instance:
    """Something rented; costs money until confirmed gone."""

    instance_id: InstanceId
    token: str  # the label, which may be anybody's
    provider: str
    state: InstanceState
    usd_per_hour: Decimal = Decimal(0)
    host_id: str = ""
    created_at: datetime | None = None
    address: Mapping[str, str] = field(default_factory=dict)  # what `remote` needs to reach it
    console_url: str = ""
    spot: bool | None = None  # as the marketplace bills it; None: it does not say
    says: str = ""  # the marketplace's own words for its state, for people


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What `create` needs beyond the offer: how the instance starts, and how long it may live by itself."""

    start_command: str  # POSIX sh; restarts the agent and ends the instance at the deadline
    deadline_s: float  # hard limit on the instance's life, counted from its first boot
    disk_gb: float = 0.0
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)  # never a long-lived secret
    public_key: str = ""  # one OpenSSH line; who holds its other half may log in
    proof_secret: str = ""  # with it the instance vouches for its own host keys: see remote/sshpins.py


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a checkpoint or artifact: its name there, and the key, size and hash of its bytes."""

    name: str
    key: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """`ckpt/<step>-a<attempt>.json`: written last, create-only; its existence makes the checkpoint true."""

    run_id: str
    step: int
    max_steps: int
    attempt: int
    created_at: datetime
    files: tuple[StoredFile, ...]
    recipe_sha256: str
    data_sha256: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    world_size: int = 1
    loss: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = 1


@dataclass(frozen=True, slots=True)
class ArtifactManifest:
    """`artifact/manifest.json`: written last, create-only; names the attempt that finished the run."""

    run_id: str
    step: int
    max_steps: int
    attempt: int
    created_at: datetime
    files: tuple[StoredFile, ...]
    recipe_sha256: str
    data_sha256: str
    metrics: Mapping[str, float | int | str | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = 1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`a<k>/heartbeat.json`: the agent is alive. Its age is the store's Last-Modified, never a field."""

    attempt: int
    seq: int  # counts up; a restarted agent goes on from the last one it finds
    # probing | setting up | fetching | restoring | training | saving | uploading | finishing | upload_blocked | ended
    stage: str
    step: int = 0
    max_steps: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    tokens_per_s: float | None = None
    losses: tuple[float, ...] = ()  # the latest, for a sparkline
    checkpoint_step: int | None = None  # newest one whose manifest is stored by this attempt
    checkpoint_age_s: float | None = None  # at the time of this heartbeat
    restored_step: int | None = None  # where this attempt started from
    restored_from: str = ""  # the manifest key
    notes: tuple[str, ...] = ()  # reasons worth a user's eye: older checkpoint used, batch halved, disk short
    trainer_starts: int = 0
    agent_starts: int = 0
    disk_free_gb: float | None = None
    ram_used_gb: float | None = None
    gpus: tuple[Mapping[str, float], ...] = ()
    can_end_itself: bool = False
    ends_at_latest_s: float | None = None  # seconds until the hard deadline
    micro_batch_size: int = 0
    gradient_accumulation_steps: int = 0
    format: int = 1


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """`a<k>/exit.json`: create-only; `code` 0 only after the artifact manifest is stored."""

    attempt: int
    code: int
    outcome: Outcome
    reason: str
    step: int = 0
    max_steps: int = 0
    tail: tuple[str, ...] = ()  # last lines of the trainer's log
    format: int = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One instance's try at a run, as `run.json` remembers it. Times are the store's clock."""

    number: int
    token: Token
    provider: str
    offer: Offer
    intended_at: datetime  # when the intent was saved, before `create`
    quiet_after: datetime  # only past this does absence from a list mean anything
    instance_id: InstanceId | None = None
    created_at: datetime | None = None  # when the id was recorded
    first_seen_at: datetime | None = None
    running_at: datetime | None = None
    missing_since: datetime | None = None  # first of the two answers that it takes to believe an absence
    silent_since: datetime | None = None  # no heartbeat and no answer over the remote since then
    ended_at: datetime | None = None  # when it was proved gone
    terminate_asked_at: datetime | None = None
    outcome: Outcome | None = None
    reason: str = ""
    last_step: int = 0
    bootstrapped_at: datetime | None = None  # when the agent's files were all in place
    refused: bool = False  # the provider said no before anything was rented: does not count against max_attempts
    exit_code: int | None = None  # from its exit record, once read
    usd_per_hour: Decimal | None = None  # as the marketplace bills it, read back from the instance
    host_id: str = ""  # of the instance, where it is another than the offer's
    stopped_at: datetime | None = None  # first seen stopped: from then on only its disk bills
    keys_at: datetime | None = None  # when the bucket's keys were last put on the instance
    keys_until: datetime | None = None  # until when those keys are good; None: no such limit
    bill: Bill | None = None  # what the marketplace says it has cost


@dataclass(frozen=True, slots=True)
class Run:
    """`run.json`: what is wanted, and everything that must not be forgotten. Times are the store's clock."""

    run_id: RunId
    name: str
    namespace: Namespace
    created_at: datetime
    recipe_sha256: str
    data_sha256: str
    provider: str
    phase: Phase = Phase.PENDING
    attempts: tuple[Attempt, ...] = ()
    phase_since: datetime | None = None
    phase_deadline: datetime | None = None
    claim_until: datetime | None = None  # an orchestrator is bootstrapping until then
    not_before: datetime | None = None
    waiting_for: str = ""
    stop_requested_at: datetime | None = None
    stop_now: bool = False  # skip save_and_exit
    request: str = ""  # "save_and_exit": what the agent is asked to do
    request_until: datetime | None = None
    request_outcome: Outcome | None = None  # why the agent is asked: CANCELLED, BUDGET or MOVED
    resumes: int = 0  # how often `tune resume` re-opened it
    resumed_at: datetime | None = None
    attempts_at_resume: int = 0  # number of the last attempt before the last re-opening; limits count from there
    outcome: Outcome | None = None  # of the whole run, once terminal
    reason: str = ""
    excluded_hosts: tuple[str, ...] = ()
    excluded_offers: tuple[str, ...] = ()
    want: Requirements = field(default_factory=Requirements)
    limits: Limits = field(default_factory=Limits)
    environment: str = "auto"  # whose interpreter trains on a rented instance: auto | image | pinned | a path
    needs: tuple[str, ...] = ()  # names of the secrets that its recipe needs on an instance, such as HF_TOKEN
    writer: str = ""  # a nonce per save, so that a writer recognises its own bytes after an unclear answer
    format: int = 1

    @property
    def attempt(self) -> Attempt | None:
        """The current attempt: the highest number."""
        return self.attempts[-1] if self.attempts else None
