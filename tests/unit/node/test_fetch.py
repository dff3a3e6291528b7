"""What a failed download of the hub's client means."""

from __future__ import annotations

import pytest

from sparkcluster.node import fetch
from sparkcluster.node.fetch import _DENIED

URL = "https://huggingface.co/a/b/resolve/main/model-00401-of-00403.safetensors"


@pytest.mark.parametrize(
    ("text", "denied"),
    [
        (f"401 Client Error. (Request ID: Root=1-2)\nRepository Not Found for url: {URL}", True),
        (f"403 Client Error: Forbidden for url: {URL}", True),
        (f"Client error '401 Unauthorized' for url '{URL}'", True),
        ("403 Forbidden: You need to accept the terms.", True),
        ("huggingface_hub.errors.GatedRepoError: Access to model a/b is restricted", True),
        (f"Cannot access gated repo for url {URL}.", True),
        ("huggingface_hub.errors.RepositoryNotFoundError: a/b", True),
        (f"504 Server Error: Gateway Time-out for url: {URL}", False),
        ("ConnectionError: (MaxRetryError('HTTPSConnectionPool(host=10.0.4.1, port=4403): timed out'))", False),
        ("OSError: consistency check failed: blob 401403e8 is truncated", False),
    ],
)
def test_401_and_403_of_the_hub_are_statuses_and_no_digits_of_a_name(text, denied):
    assert bool(_DENIED.search(text)) == denied


@pytest.mark.parametrize(
    ("there", "roots", "writable"),
    [
        ([], [], True), ([], ["hf"], False), (["hf/xet/logs"], [], True), (["hf/xet"], ["hf"], True),
        (["hf/xet"], ["hf/xet"], False), (["hf/xet/logs"], ["hf/xet/logs"], False),
        (["hf/xet/https___cas/staging"], ["hf/xet/https___cas/staging"], False),
    ],
)  # fmt: skip
def test_roots_xet_cache_in_a_cache_of_the_users_is_not_used(tmp_path, monkeypatch, there, roots, writable):
    """NVIDIA's container of root made hub/ and xet/ in the user's own ~/.cache/huggingface."""
    for folder in ["hf", *there]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    denied = {str(tmp_path / folder) for folder in roots}
    monkeypatch.setattr(fetch.os, "access", lambda path, _mode: path not in denied)
    assert fetch.writable_xet(str(tmp_path / "hf")) == writable
