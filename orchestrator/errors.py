"""Every error a user can meet, named for what the caller should do next, with its exit code.

TuneError                              1   a bug: traceback, please report
├── UsageError                         2   the command line or the user's config file
├── RunFailed                          3   the recipe ended without success
├── RunCancelled                       4
├── BudgetSpent                        5   saved; says how to go on
├── RecipeError                       10   every problem, with its place
├── CredentialsMissing                11
│   └── AuthRejected                  11
├── NoOfferFits                       12
├── ProviderError                     16   permanent
│   ├── InsufficientCapacity          13   this offer is gone; the next may not be
│   ├── QuotaExceeded                 14   a person must act; never retried
│   │   └── OutOfFunds                14
│   ├── ProviderUnavailable           15   the same command again, later
│   │   └── RateLimited               15
│   ├── OutcomeUnknown                15   it may be rented: look before anything else
│   ├── InstanceNotFound              16   proof of absence
│   └── ProviderRejected              16   our bug, or their API changed
├── RemoteError                       17   ssh or bootstrap
├── StorageError                      18
│   ├── ObjectNotFound                18
│   ├── AlreadyExists                 18   put-if-absent lost
│   ├── VersionConflict               18   put-if-unchanged lost
│   ├── StorageDenied                 18   permanent until a person changes a right
│   ├── StorageUnavailable            18   try again
│   └── RecordCorrupt                 18   a stored record cannot be read; never overwritten
├── CheckpointCorrupt                 19   and no older one verifies either
├── RunConflict                       20
├── RunNotFound                       20
└── TerminationUnconfirmed            21   something may still be billing

Codes may be added; an unknown code means failure. 0 is done, 130 is "you interrupted, the run goes on".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class TuneError(Exception):
    """Base of all: a message, and a hint that says what to run or set next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TuneError):
    """A command or a config file that cannot be understood."""

    exit_code = 2


class RunFailed(TuneError):
    """The recipe ended without success."""

    exit_code = 3


class RunCancelled(TuneError):
    """The run was stopped by its user."""

    exit_code = 4


class BudgetSpent(TuneError):
    """The run's budget is used up; its work is saved."""

    exit_code = 5


class Problem:
    """One thing wrong with an input file: where, what, and how to mend it."""

    __slots__ = ("hint", "line", "message", "path", "where")

    def __init__(self, where: str, message: str, *, hint: str = "", path: str = "", line: int | None = None) -> None:
        self.where = where
        self.message = message
        self.hint = hint
        self.path = path
        self.line = line

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}: " if self.path and self.line else f"{self.path}: " if self.path else ""
        key = f"{self.where} - " if self.where else ""
        return f"{place}{key}{self.message}" + (f"; {self.hint}" if self.hint else "")


class RecipeError(TuneError):
    """The recipe, or the data it names, cannot be used. Carries every problem at once."""

    exit_code = 10

    def __init__(self, message: str, problems: Sequence[Problem] = (), *, hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__("\n  ".join([message, *map(str, self.problems)]), hint=hint)


class CredentialsMissing(TuneError):
    """A key is not set; says which variable."""

    exit_code = 11


class AuthRejected(CredentialsMissing):
    """A key is set, and was refused."""


class NoOfferFits(TuneError):
    """Nothing on the market satisfies the requirements; names the nearest misses."""

    exit_code = 12


class ProviderError(TuneError):
    """A marketplace said no, or said nothing."""

    exit_code = 16


class InsufficientCapacity(ProviderError):
    """The offer is gone, and nothing was rented."""

    exit_code = 13


class QuotaExceeded(ProviderError):
    """A limit of the account; only a person can lift it."""

    exit_code = 14


class OutOfFunds(QuotaExceeded):
    """The account has no money left."""


class ProviderUnavailable(ProviderError):
    """No answer worth believing; the same call may work later."""

    exit_code = 15


class RateLimited(ProviderUnavailable):
    """Asked too often."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class OutcomeUnknown(ProviderError):
    """A create may or may not have rented something under `token`: call find() before anything else."""

    exit_code = 15

    def __init__(self, message: str, *, token: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.token = token


class InstanceNotFound(ProviderError):
    """The provider says there is no such instance. The only proof of absence."""


class ProviderRejected(ProviderError):
    """The request is wrong and will stay wrong."""


class RemoteError(TuneError):
    """The instance could not be reached, or its setup failed."""

    exit_code = 17


class StorageError(TuneError):
    """The bucket could not be read or written."""

    exit_code = 18


class ObjectNotFound(StorageError):
    """No such key."""


class AlreadyExists(StorageError):
    """Put-if-absent found something there."""


class VersionConflict(StorageError):
    """Put-if-unchanged found another version."""


class StorageDenied(StorageError):
    """The bucket refuses these credentials; trying again will not help until someone changes a right or a key."""


class StorageUnavailable(StorageError):
    """The bucket does not answer properly now; trying again may help."""


class RecordCorrupt(StorageError):
    """A stored record is torn, or written by something else. It is reported and never overwritten."""


class CheckpointCorrupt(TuneError):
    """No checkpoint of the run verifies."""

    exit_code = 19


class RunConflict(TuneError):
    """Someone else moved the run, or the name is taken by another recipe."""

    exit_code = 20


class RunNotFound(TuneError):
    """No such run."""

    exit_code = 20


class TerminationUnconfirmed(TuneError):
    """An instance may still be billing. Names ids and where to look."""

    exit_code = 21

    def __init__(self, message: str, *, instances: Sequence[tuple[str, str]] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.instances = tuple(instances)  # (provider, instance id)
