"""Whether the hub will hand out what a recipe names, and take what it publishes, asked before anything is rented.

The hub's answers as `huggingface_hub` reads them (its `utils/_http.py`, 1.x): the status, and in the header
`X-Error-Code` one of RepoNotFound, GatedRepo, RevisionNotFound, EntryNotFound. Without a token it says 401 for what
does not exist as well as for what is private, so that nobody learns which.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orchestrator.errors import AuthRejected, CredentialsMissing, RecipeError, TuneError
from orchestrator.findings import NOTE, OK, WARN, Finding
from orchestrator.recipe.needs import HUB_TOKEN, HubRepo

if TYPE_CHECKING:
    import requests

DEFAULT_HUB = "https://huggingface.co"
TIMEOUT_S = 15.0
_TRUE = {"1", "on", "yes", "true"}
_WRITES = ("admin", "write", "contributor")  # roles in an organisation that may create repositories


@dataclass(frozen=True, slots=True)
class HubToken:
    """The user's key to the hub, and where it was found. Never shown."""

    value: str
    source: str


def hub_token(environment: Mapping[str, str]) -> HubToken | None:
    """The token that `huggingface_hub` would use: variables first, then the file that `hf auth login` writes.

    An empty variable counts as not set, and spaces and line ends around a token as nothing.
    """
    for name in (HUB_TOKEN, "HUGGING_FACE_HUB_TOKEN"):
        value = environment.get(name, "").strip("\ufeff \t\r\n")
        if value:
            return HubToken(value, f"${name}")
    for path in _token_files(environment):
        try:
            value = path.read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if value:
            return HubToken(value, str(path))
    return None


def _token_files(environment: Mapping[str, str]) -> Iterator[Path]:
    if named := environment.get("HF_TOKEN_PATH", "").strip():
        yield Path(named).expanduser()
    if hub_home := environment.get("HF_HOME", "").strip():
        yield Path(hub_home).expanduser() / "token"
    elif cache := environment.get("XDG_CACHE_HOME", "").strip():
        yield Path(cache) / "huggingface" / "token"
    elif home := environment.get("HOME", "").strip():
        yield Path(home) / ".cache" / "huggingface" / "token"


def is_offline(environment: Mapping[str, str]) -> bool:
    """Whether the user has told Hugging Face's own libraries to stay off the network."""
    return environment.get("HF_HUB_OFFLINE", "").strip().lower() in _TRUE


class Hub:
    """Asks the hub; one connection, nothing asked twice, the token sent to the hub's own host only."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.url = environment.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_HUB
        self.token = hub_token(environment)

    def repo(self, wanted: HubRepo) -> Finding:
        """Whether an instance with this computer's token could fetch it."""
        what = wanted.kind
        where = f"/api/{wanted.kind}s/{quote(wanted.name)}"
        try:
            first = self._get(f"{where}/revision/{quote(wanted.revision or 'main', safe='')}")
            trouble = self._trouble(first, wanted)
            if trouble is None and first.ok:
                access = self._get(f"{where}/auth-check")
                # A mirror that does not know this question answers 404 to it; the first answer stands then.
                trouble = None if access.status_code == 404 else self._trouble(access, wanted)
        except (OSError, ValueError) as e:
            return Finding(WARN, what, f"{wanted.name}: {self.url} does not answer ({_reason(e)}); not checked")
        if isinstance(trouble, TuneError):
            return Finding.of(what, trouble)
        if isinstance(trouble, str):
            return Finding(WARN, what, f"{wanted.name}: {trouble}; not checked")
        at = f" at {wanted.revision}" if wanted.revision else ""
        return Finding(OK, what, f"{wanted.name}{at} can be fetched")

    def _trouble(self, answer: requests.Response, wanted: HubRepo) -> TuneError | str | None:
        """An error for a refusal, a text for an answer that says nothing, None for yes."""
        code, said = answer.status_code, answer.headers.get("X-Error-Code", "")
        page = f"{self.url}/{'datasets/' if wanted.kind == 'dataset' else ''}{wanted.name}"
        place = f"{wanted.where}: " if wanted.where else ""
        if code == 401 and self.token is None and said == "GatedRepo":
            return CredentialsMissing(
                f"{place}the {wanted.kind} {wanted.name} is gated, and there is no {HUB_TOKEN}",
                hint=f"accept its licence at {page}, then export {HUB_TOKEN}=…",
            )
        if code == 401 and self.token is None:
            return CredentialsMissing(
                f"{place}the {wanted.kind} {wanted.name} is private, gated or does not exist: "
                f"the hub does not say which without {HUB_TOKEN}",
                hint=f"look at {page}; for a private or gated one export {HUB_TOKEN}=…",
            )
        if code == 401 and self.token is not None and said not in ("GatedRepo", "RepoNotFound"):
            return AuthRejected(
                f"{place}the hub refuses the token from {self.token.source}",
                hint=f"make a new one at {self.url}/settings/tokens",
            )
        if code in (401, 403) and said != "RepoNotFound":
            return AuthRejected(
                f"{place}the token may not read the {wanted.kind} {wanted.name}: its licence has not been accepted, "
                "or the token has no right to it",
                hint=f"accept the licence at {page}, or use a token with read access to gated repositories",
            )
        if code == 404 and said == "RevisionNotFound":
            return RecipeError(
                f"{place}the {wanted.kind} {wanted.name} has no revision {wanted.revision or 'main'!r}",
                hint=f"{page}/commits/main lists them",
            )
        if code in (401, 404):
            return RecipeError(
                f"{place}there is no {wanted.kind} {wanted.name} on the hub, or the token cannot see it",
                hint=f"look for its spelling: {self.url}/{wanted.kind}s?search={quote(wanted.name.rpartition('/')[2])}",
            )
        return None if answer.ok else f"the hub answers {code}"

    def publish_target(self, target: str) -> Finding:
        """Whether the result could be pushed to `namespace/name`."""
        what = "publish"
        if self.token is None:
            missing = CredentialsMissing(
                f"tune.publish.hub: {target} needs a token that may write, and there is no {HUB_TOKEN}",
                hint=f"export {HUB_TOKEN}=… with a token of the kind `write` from {self.url}/settings/tokens",
            )
            return Finding.of(what, missing)
        try:
            who = self._get("/api/whoami-v2")
            if who.status_code in (401, 403):
                return Finding.of(what, self._refused())
            if not who.ok:
                return Finding(WARN, what, f"{target}: the hub answers {who.status_code}; not checked")
            taken = self._get(f"/api/datasets/{quote(target)}").ok and not self._get(f"/api/models/{quote(target)}").ok
            answer = who.json()
        except (OSError, ValueError) as e:
            return Finding(WARN, what, f"{target}: {self.url} does not answer ({_reason(e)}); not checked")
        reason = "it exists already, as a data set" if taken else _may_not_write(answer, target)
        if reason:
            error = AuthRejected(
                f"tune.publish.hub: nothing can be pushed to {target}: {reason}",
                hint=f"use a token that may write there ({self.url}/settings/tokens), or another name",
            )
            return Finding.of(what, error)
        return Finding(OK, what, f"{target} may be written")

    def owner(self) -> Finding:
        """Whose token it is, and what it may do."""
        what = "hub"
        if self.token is None:
            return Finding(NOTE, what, "no token")
        try:
            who = self._get("/api/whoami-v2")
            if who.status_code in (401, 403):
                return Finding.of(what, self._refused())
            if not who.ok:
                return Finding(WARN, what, f"{self.url} answers {who.status_code}; the token was not checked")
            told = who.json()
        except (OSError, ValueError) as e:
            return Finding(WARN, what, f"{self.url} does not answer ({_reason(e)}); the token was not checked")
        role = _dig(told, "auth", "accessToken", "role") or "of a kind it does not tell"
        return Finding(OK, what, f"token from {self.token.source}: {_dig(told, 'name')}, {role}")

    def _refused(self) -> AuthRejected:
        source = self.token.source if self.token else "nowhere"
        return AuthRejected(
            f"the hub refuses the token from {source}", hint=f"make a new one at {self.url}/settings/tokens"
        )

    def _get(self, path: str) -> requests.Response:
        import requests

        token = self.token

        def authorise(request: requests.PreparedRequest) -> requests.PreparedRequest:
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token.value}"
            return request

        # As `auth`, not as a header: otherwise a ~/.netrc would silently replace it.
        return requests.get(
            self.url + path,
            auth=authorise,
            timeout=TIMEOUT_S,
            headers={"User-Agent": "spot-tune"},
            allow_redirects=True,
        )


def _may_not_write(who: Mapping[str, Any], target: str) -> str:
    """Why this token cannot create or write `namespace/name`; empty when it can, or when the hub does not tell."""
    namespace = target.partition("/")[0]
    role = _dig(who, "auth", "accessToken", "role")
    if role == "read":
        return "the token may only read"
    organisations = {str(org.get("name")): org for org in who.get("orgs") or () if isinstance(org, Mapping)}
    if namespace != who.get("name"):
        if namespace not in organisations:
            return f"{who.get('name')} is no member of {namespace}"
        in_it = organisations[namespace].get("roleInOrg")
        if in_it and in_it not in _WRITES:
            return f"{who.get('name')} may only {in_it} in {namespace}"
    if role == "fineGrained":
        scoped = _dig(who, "auth", "accessToken", "fineGrained", "scoped") or ()
        for scope in scoped:
            name = _dig(scope, "entity", "name")
            if name in (namespace, target) and "repo.write" in (scope.get("permissions") or ()):
                return ""
        return f"the fine-grained token has no right to write to {target} or {namespace}"
    return ""


def _dig(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _reason(error: Exception) -> str:
    """The kind of failure; its text may quote an address with everything in it."""
    return type(error).__name__
