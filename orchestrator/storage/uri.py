"""Where the bucket is, as people write it. What is clear is put right; the rest is refused with the corrected form."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from orchestrator.errors import StorageError
from orchestrator.storage.keyrules import checked_prefix

_BUCKET = re.compile(r"^(?=.{3,63}$)[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)*(?<!-)$")
_IP = re.compile(r"^\d+\.\d+\.\d+\.\d+$")
_R2 = re.compile(r"^[a-z0-9-]+\.(?:[a-z]+\.)?r2\.cloudflarestorage\.com$")
_AWS = re.compile(r"^s3[.-](?:dualstack\.)?(?:([a-z0-9-]+)\.)?amazonaws\.com(?:\.cn)?$")
# What may stand behind a bucket used as a host label. Any other host may well be named like the bucket.
_SERVICE = re.compile(
    r"^(s3[.-].+|localhost|storage\.googleapis\.com|[a-z0-9-]+\.(?:digitaloceanspaces|your-objectstorage)\.com)$"
)
_SOME_BUCKET = "my-bucket"
_RUNS = "runs"  # tune's own folder inside the root; people copy it into the URL from a listing


@dataclass(frozen=True, slots=True)
class Location:
    """A root: either a bucket with a prefix (without slashes around it), or a path on this machine."""

    bucket: str = ""
    prefix: str = ""
    path: str = ""

    @property
    def url(self) -> str:
        if self.path:
            return "file://" + quote(self.path)
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an S3-compatible store answers, without the bucket, and the region to sign for ('' = not said)."""

    url: str
    region: str = ""


def parse(text: str) -> Location:
    """The root that a text means, or StorageError with the form that would have been right."""
    text = text.strip()
    scheme, colon, rest = text.partition(":")
    match scheme.lower() if colon else "":
        case "s3" if rest.startswith("//"):
            return _bucket_and_prefix(rest[2:])
        case "s3":
            raise _refused(text, f"write s3://{rest.lstrip('/')}")
        case "file":
            return _file(text, rest)
        case "http" | "https":
            raise _refused(text, _s3_form(text))
        case _ if text.startswith("/"):
            return _path(text)
        case _ if text.startswith("~"):
            raise _refused(text, f"write {Path(text).expanduser()}")
        case "s3a" | "s3n" if rest.startswith("//"):  # what Hadoop calls it
            raise _refused(text, f"write s3:{_without_user(rest)}")
        case "arn" if rest.startswith("aws:s3:"):
            raise _refused(text, f"write s3://{rest.rpartition(':')[2] or _SOME_BUCKET}")
        case _ if rest.startswith("//"):
            raise _refused(text, f"runs are kept in a bucket or a folder: write s3://{_SOME_BUCKET} or file:///path")
        case _:
            bare = text.lstrip("./") or _SOME_BUCKET
            raise _refused(text, f"write s3://{bare}, or for a folder file://{quote(str(Path.cwd() / text))}")


def normalise(text: str) -> str:
    """The one spelling of a root: equal roots give equal texts."""
    return parse(text).url


def endpoint(text: str, *, bucket: str, region: str = "") -> Endpoint:
    """An endpoint as people paste it, without the bucket in path or host. A region that is given is kept."""
    text = text.strip()
    host_only = text.partition("/")[0].partition(":")[0]
    if "://" not in text:
        text = f"{'http' if host_only in ('localhost', '127.0.0.1') else 'https'}://{text}"
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StorageError(f"not an endpoint: {_shown(parts)}", hint="write https://host or http://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise StorageError(
            f"an endpoint is a host, and nothing secret: {_shown(parts)}", hint=f"write {parts.scheme}://{_host(parts)}"
        )
    path = [part for part in parts.path.split("/") if part]
    if bucket in path[:-1]:
        inside = "/".join(path[path.index(bucket) + 1 :])
        raise StorageError(
            f"this endpoint names a folder of the bucket: {_shown(parts)}",
            hint=f"write the endpoint {parts.scheme}://{_host(parts)} and the storage s3://{bucket}/{inside}",
        )
    if path and path[-1] == bucket:
        path.pop()
    host = _without_bucket(_host(parts), bucket)
    return Endpoint("/".join([f"{parts.scheme}://{host}", *path]), region or _region(host))


def _bucket_and_prefix(rest: str) -> Location:
    bucket, _, prefix = rest.partition("/")
    parts = [part for part in prefix.split("/") if part]
    if parts and parts[-1] == _RUNS:
        parts.pop()
    if "@" in bucket:
        where = Location(_likely_bucket(bucket.rpartition("@")[2]), "/".join(parts)).url
        raise _refused(f"s3://{rest}", f"write {where}; keys come from the environment or a profile, never from a URL")
    if not _is_bucket(bucket):
        raise StorageError(
            f"not a bucket name: {bucket!r}: 3 to 63 lower-case letters, digits, hyphens and dots",
            hint=f"write {Location(_likely_bucket(bucket), '/'.join(parts)).url} if that is your bucket's name",
        )
    return Location(bucket, checked_prefix("/".join(parts)))


def _is_bucket(name: str) -> bool:
    return bool(_BUCKET.match(name)) and not _IP.match(name)


def _likely_bucket(name: str) -> str:
    """The name that was probably meant; one to fill in where nothing usable is left of it."""
    better = re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9.-]+", "-", name.lower())).strip("-.")
    return better if _is_bucket(better) else _SOME_BUCKET


def _file(text: str, rest: str) -> Location:
    path = rest.removeprefix("//").removeprefix("localhost") if rest.startswith("//") else rest
    if not path.startswith("/"):
        raise _refused(text, f"write file://{quote(str(Path.cwd() / unquote(path)))}")
    return _path(unquote(path))


def _path(path: str) -> Location:
    clean = "/" + os.path.normpath(_printable(path)).lstrip("/")
    if clean == "/":
        raise _refused(path, "name a folder, such as file:///var/lib/tune")
    return Location(path=clean)


def _printable(path: str) -> str:
    if any(ord(letter) < 32 for letter in path):
        raise StorageError(f"a path with a control character: {path!r}", hint="check the setting `storage`")
    return path


def _s3_form(text: str) -> str:
    """How a pasted http URL of a bucket would be written."""
    parts = _split(text)
    host = _host(parts)
    path = [part for part in unquote(parts.path).split("/") if part]
    label, _, service = host.partition(".")
    while service and not (_AWS.match(service) or _R2.match(service) or _SERVICE.match(service)):
        more, _, service = service.partition(".")
        label = f"{label}.{more}"
    if service and not (_AWS.match(host) or _R2.match(host)):
        bucket, host = label, service
    else:
        bucket = path.pop(0) if path else "my-bucket"
    url = Location(bucket, "/".join(path)).url
    aws = _AWS.match(host)
    if aws:
        return f"write {url}" + (f', and region = "{aws[1]}" under [storage_options]' if aws[1] else "")
    return f'write {url}, and endpoint_url = "{parts.scheme}://{host}" under [storage_options]'


def _without_bucket(host: str, bucket: str) -> str:
    rest = host.removeprefix(f"{bucket}.")
    name = rest.partition(":")[0]
    return rest if rest != host and (_SERVICE.match(name) or _R2.match(name)) else host


def _region(host: str) -> str:
    if _R2.match(host):
        return "auto"
    aws = _AWS.match(host)
    return (aws[1] or "") if aws else ""


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise StorageError("not a URL: its host or port cannot be read", hint="write https://host:port") from None
    return parts


def _host(parts: SplitResult) -> str:
    """Host and port, never the user and password that may stand before them."""
    return parts.netloc.rpartition("@")[2].lower()


def _shown(parts: SplitResult) -> str:
    return f"{parts.scheme}://{_host(parts)}{parts.path}"


def _refused(text: str, hint: str) -> StorageError:
    return StorageError(f"not a place to store runs: {_without_user(text)!r}", hint=hint)


def _without_user(text: str) -> str:
    return re.sub(r"//[^/@]*@", "//", text)
