"""Object stores by URL, through `obstore`: S3, Google Cloud Storage, Azure. Knows no table, no archive and no Spark.

Options have the names that delta-rs and other users of `object_store` know, in any case: AWS_ENDPOINT_URL,
AWS_ALLOW_HTTP, AWS_ACCESS_KEY_ID. What is not among the options comes from the environment, or from the machine's role.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import obstore

_CLIENT_OPTIONS = {"allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "proxy_url"}
_TIMES = {"timeout": "30s", "connect_timeout": "5s"}
_RETRY = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}


def store_at(url: str, options: Mapping[str, str], retry: Mapping[str, Any] | None = None) -> Any:
    """The store of a URL."""
    lower = {name.lower(): value for name, value in options.items()}
    client: dict[str, Any] = {}
    for name in list(lower):
        plain = name.removeprefix("aws_").removeprefix("google_").removeprefix("azure_")
        if plain in _CLIENT_OPTIONS:
            value = lower.pop(name)
            client[plain] = value == "true" if plain.startswith("allow") else value
    config: Any = lower or None
    client_options: Any = client or None
    retry_config: Any = retry
    return obstore.store.from_url(url, config=config, client_options=client_options, retry_config=retry_config)


class BucketRanges:
    """Reads parts of objects, and gives up soon: its caller has another way to them."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        if url.startswith("s3://"):
            given = {**_s3_options({**os.environ, **{name.upper(): value for name, value in given.items()}}), **given}
        given.pop("aws_endpoint_url_s3", None)
        self._store = store_at(url, {**_TIMES, **given}, _RETRY)

    def read(self, key: str, position: int, size: int) -> bytes:
        return bytes(obstore.get_range(self._store, key, start=position, length=size))


def _s3_options(environment: Mapping[str, str]) -> dict[str, str]:
    """The region and the endpoint, as the broker takes them from its environment."""
    options = {"aws_region": environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", "us-east-1")}
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
    if not endpoint:
        return options
    return options | {
        "aws_endpoint_url": endpoint,
        "aws_virtual_hosted_style_request": "false",  # such servers have the bucket as a part of the path
        "allow_http": "true" if endpoint.startswith("http://") else "false",
    }
