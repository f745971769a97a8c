"""Storage URLs and endpoints as people write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.errors import StorageError
from orchestrator.storage.local import LocalStore
from orchestrator.storage.open import open_store
from orchestrator.storage.uri import Endpoint, endpoint, normalise, parse


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/runs/", "s3://bucket"),  # tune's own folder in that root, copied from a listing
        ("s3://bucket//runs///x", "s3://bucket/runs/x"),
        ("s3://my.dotted.bucket/a", "s3://my.dotted.bucket/a"),
        ("s3://bucket/a b/ü+%/x", "s3://bucket/a b/ü+%/x"),
        ("S3://bucket/x", "s3://bucket/x"),
        (" s3://bucket/x", "s3://bucket/x"),
        ("s3://bucket/x\n", "s3://bucket/x"),
        ("/srv/tune", "file:///srv/tune"),
        ("/srv//tune/./x/", "file:///srv/tune/x"),
        ("/srv/a b#1%", "file:///srv/a%20b%231%25"),
        ("file:///srv/a%20b", "file:///srv/a%20b"),
        ("file:///srv/a b?c", "file:///srv/a%20b%3Fc"),
        ("file://localhost/srv", "file:///srv"),
        ("file:/srv/tune", "file:///srv/tune"),
        ("FILE:///srv/ü", "file:///srv/%C3%BC"),
    ],
)
def test_what_is_clear_has_one_spelling(text: str, url: str) -> None:
    assert normalise(text) == url
    assert normalise(url) == url


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("s3://Bucket_Upper/x", "s3://bucket-upper/x"),
        ("https://bucket.s3.eu-west-1.amazonaws.com/x", 's3://bucket/x, and region = "eu-west-1"'),
        ("https://my.own.s3.amazonaws.com/x/y", "s3://my.own/x/y"),
        ("https://s3.eu-west-1.amazonaws.com/bucket/x", 's3://bucket/x, and region = "eu-west-1"'),
        (
            "https://acct.r2.cloudflarestorage.com/bucket",
            's3://bucket, and endpoint_url = "https://acct.r2.cloudflarestorage.com"',
        ),
        ("http://localhost:9000/bucket/a%20b", 's3://bucket/a b, and endpoint_url = "http://localhost:9000"'),
        ("s3:/bucket/x", "s3://bucket/x"),
        ("s3:bucket/x", "s3://bucket/x"),
        ("bucket/x", "s3://bucket/x"),
        ("./store", "file://"),
        ("~/store", "/store"),
        ("file://store/x", "file://"),
        ("s3://", "s3://my-bucket"),
        ("s3:///x", "s3://my-bucket/x"),
        ("s3://10.0.0.1/x", "s3://my-bucket/x"),
        ("s3://-bucket-/x", "s3://bucket/x"),
        ("s3://b/x", "s3://my-bucket/x"),
        ("s3://my..bucket/a", "s3://my.bucket/a"),
        ("s3a://bucket/x", "s3://bucket/x"),
        ("arn:aws:s3:::bucket/x", "s3://bucket/x"),
        ("gs://bucket/x", "s3://my-bucket"),
        ("/", "name a folder"),
        ("", "s3://my-bucket, or for a folder file://"),
    ],
)
def test_what_is_not_is_refused_with_the_corrected_form(text: str, corrected: str) -> None:
    with pytest.raises(StorageError) as caught:
        parse(text)
    assert corrected in caught.value.hint
    for form in re.findall(r"s3://.*?(?=,|;| if that is| or file:|$)", caught.value.hint):
        assert normalise(form) == form  # following the advice works


def test_a_prefix_that_climbs_or_hides_something_is_refused() -> None:
    for text in ("s3://bucket/../other", "s3://bucket/a\x00b", "/srv/a\x07b"):
        with pytest.raises(StorageError):
            parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://user:canary@bucket.s3.amazonaws.com/x",
        "s3://user:canary@bucket/x",
        "s3a://user:canary@bucket/x",
        "S3://user:canary@Bucket_Upper/x",
        "gs://user:canary@bucket/x",
    ],
)
def test_a_password_in_a_refused_url_is_not_repeated(text: str) -> None:
    with pytest.raises(StorageError) as caught:
        parse(text)
    assert "canary" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://s3.example.com/", "https://s3.example.com"),
        ("https://s3.example.com/bucket", "https://s3.example.com"),
        ("https://s3.example.com/bucket/", "https://s3.example.com"),
        ("https://bucket.s3.example.com", "https://s3.example.com"),
        ("s3.example.com", "https://s3.example.com"),
        ("localhost:9000", "http://localhost:9000"),
        ("http://localhost:9000", "http://localhost:9000"),
        ("http://bucket.localhost:9000/", "http://localhost:9000"),
        ("http://minio.lan:9000/", "http://minio.lan:9000"),
        ("https://bucket.example.com", "https://bucket.example.com"),  # a host may be called like the bucket
        ("https://x.supabase.co/storage/v1/s3", "https://x.supabase.co/storage/v1/s3"),
    ],
)
def test_an_endpoint_is_brought_to_the_host_alone(text: str, url: str) -> None:
    assert endpoint(text, bucket="bucket").url == url


@pytest.mark.parametrize(
    ("text", "region", "expected"),
    [
        ("https://acct.r2.cloudflarestorage.com", "", "auto"),
        ("https://acct.eu.r2.cloudflarestorage.com/bucket", "", "auto"),
        ("https://bucket.acct.r2.cloudflarestorage.com", "", "auto"),
        ("https://s3.eu-central-1.amazonaws.com", "", "eu-central-1"),
        ("http://localhost:9000", "eu-x", "eu-x"),
        ("https://acct.r2.cloudflarestorage.com", "weur", "weur"),
        ("http://localhost:9000", "", ""),
    ],
)
def test_the_region_is_the_given_one_or_the_one_the_host_tells(text: str, region: str, expected: str) -> None:
    assert endpoint(text, bucket="bucket", region=region).region == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("https://host/bucket/folder", "s3://bucket/folder"),
        ("https://user:canary@host/", "https://host"),
        ("https://host?x=canary", "https://host"),
        ("ftp://host", "https://host"),
        ("https://host:port", "https://host:port"),
        ("https://", "https://host"),
    ],
)
def test_an_endpoint_that_says_more_is_refused_with_the_corrected_form(text: str, hint: str) -> None:
    with pytest.raises(StorageError) as caught:
        endpoint(text, bucket="bucket")
    assert hint in caught.value.hint
    assert "canary" not in str(caught.value) + caught.value.hint


def test_r2_needs_nothing_but_its_account() -> None:
    assert endpoint("acct.r2.cloudflarestorage.com", bucket="b") == Endpoint(
        "https://acct.r2.cloudflarestorage.com", "auto"
    )


def test_opening_touches_nothing(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/not yet")
    assert isinstance(store, LocalStore)
    assert list(store.scan("")) == []
    assert not (tmp_path / "not yet").exists()
    assert open_store("s3://bucket/x").url == "s3://bucket/x"
