"""A model's config.json and the headers of its tensors, from a directory, a file or the hub; never the tensors.

Of the hub only the first bytes of each file are requested, by range. ``HF_ENDPOINT`` names another hub, ``HF_TOKEN``
(or the file that ``hf auth login`` writes) opens gated models; the token is sent for no other model, and to no other
host.

``huggingface_hub.get_safetensors_metadata`` (2.4.0) was tried in its place and fails the tests of hostile input:

- where a hub ignores ranges, it reads whole shards into memory, here one piece at a time is read and dropped;
- it takes a shard that is cut off, and tensors whose offsets disagree with their shape, for whole;
- it requests whatever an index names, ``../x`` included, and puts no limit on the number of files;
- a token with a line break is sent without it, and a refused connection is retried for 23 s;
- config.json and index go to the user's cache, of whatever size they are.

It would also bring 14 packages (50 MB) and 0.4 s of imports to a controller that downloads no weights itself.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.fit import safetensors
from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import Source
from sparkcluster.node.shared import HUB_ADDRESS
from sparkcluster.spec.playbook import COMMIT

CONFIG_LIMIT = 16_000_000
FIRST_BYTES = 1 << 20
PIECE_BYTES = 1 << 16
TIMEOUT_S = 30
AT_ONCE = 8
_DENIED = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})
ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
QUANTIZED = "hf_quant_config.json"
"""Where ModelOpt wrote what is quantized, before it wrote that into config.json."""


def from_path(path: Path) -> Source:
    """A model on this machine, by its directory or a config.json alone.

    Raises:
        UsageError: it is missing or invalid.
    """
    if path.is_file():
        return Source(str(path), _config(_read(path, CONFIG_LIMIT), str(path)), None)
    if not path.is_dir():
        raise UsageError(f"no model at {path}", hint="give a directory with a config.json, or a config.json")
    file = path / "config.json"
    if not file.is_file():
        raise UsageError(f"no config.json in {path}", hint="give the directory with the model's config.json")
    config = _config(_read(file, CONFIG_LIMIT), str(file))
    beside = path / QUANTIZED
    if beside.is_file():
        config = _quantized(config, _config(_read(beside, CONFIG_LIMIT), str(beside)))
    listed = path / INDEX
    if listed.is_file():
        names = safetensors.index(_read(listed, safetensors.INDEX_LIMIT), str(listed))
        absent = [name for name in names if not (path / name).is_file()]
        if absent:
            raise UsageError(
                f"{listed} lists {len(absent)} missing files, such as {absent[0]}",
                hint="finish the download, or pass the config.json alone to --config",
            )
    else:
        names = safetensors.of_checkpoint(file.name for file in path.iterdir())[: safetensors.FILES_LIMIT]
    budget = safetensors.Budget()
    tensors = [tensor for name in names for tensor in _local_header(path / name, budget)]
    return Source(str(path), config, tuple(tensors) if names else None)


def from_hub(repository: str, revision: str = "main", *, whole: bool = True) -> Source:
    """A model on the hub at a branch, tag or commit: its config.json and the headers of its tensors, some 100 KB.

    Without ``whole`` it may be an adapter, which has no config.json.

    Raises:
        UsageError: there is no such model, or its files are invalid.
        SparkclusterError: the hub does not answer, or requires a token.
    """
    remote = _Remote(repository, revision)
    text = remote.read("config.json", CONFIG_LIMIT)
    if text is None and not whole:
        adapter = remote.header(ADAPTER)
        return Source(repository, None, None if adapter is None else tuple(adapter))
    if text is None:
        raise UsageError(
            f"{remote.endpoint} has no config.json of {repository} at {revision}", hint="check id and revision"
        )
    config = _config(text, f"{repository} config.json")
    if isinstance(config, dict) and "quantization_config" not in config:
        beside = remote.read(QUANTIZED, CONFIG_LIMIT)
        if beside is not None:
            config = _quantized(config, _config(beside, f"{repository} {QUANTIZED}"))
    listed = remote.read(INDEX, safetensors.INDEX_LIMIT)
    names = [ONE_FILE] if listed is None else safetensors.index(listed, f"{repository} {INDEX}")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        headers = list(pool.map(remote.header, names))
    if listed is None and headers == [None]:
        return Source(repository, config, None, revision=remote.commit)
    absent = [name for name, header in zip(names, headers, strict=True) if header is None]
    if absent:
        raise UsageError(
            f"the index of {repository} lists {absent[0]}, which is not on the hub",
            hint="use another revision, or pass a config.json to --config",
        )
    tensors = tuple(tensor for header in headers for tensor in header or ())
    return Source(repository, config, tensors, revision=remote.commit)


def is_gated(repository: str, revision: str) -> bool:
    """Whether the hub shows this model only to those with a token; False where it cannot be asked."""
    remote = _Remote(repository, revision)
    with contextlib.suppress(SparkclusterError):
        remote.read("config.json", CONFIG_LIMIT)
    return remote.gated


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A file and its size."""
    try:
        with path.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check its path and rights") from None


def _read(path: Path, limit: int) -> bytes:
    with _opened(path) as (file, size):
        text = file.read(min(size, limit) + 1)  # a read allocates as many bytes as requested
    if len(text) > limit:
        raise UsageError(f"{path} is larger than {limit:,} bytes", hint="give the model's file")
    return text


def _local_header(path: Path, budget: safetensors.Budget) -> list[Tensor]:
    with _opened(path) as (file, size):
        length = safetensors.header_length(file.read(safetensors.LENGTH_BYTES), size, str(path), budget)
        return safetensors.header(file.read(length), size, str(path), budget)


def _config(text: bytes, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{name} is not JSON", hint="download the file again") from None


def _quantized(config: Any, beside: Any) -> Any:
    """A config.json with the quantization that is written beside it, as the engine reads both."""
    if not isinstance(config, dict) or "quantization_config" in config or not isinstance(beside, dict):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **beside}}


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Keeps the token in redirects within the hub and drops it in all others."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: PLR0917 - the base's
        """The request for a redirect."""
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        before, after = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if made is not None and token and (before.scheme, before.netloc) == (after.scheme, after.netloc):
            made.add_unredirected_header("Authorization", token)
        return made


class _Remote:
    """One revision of one repository; ``gated`` once the hub denied it without a token, ``commit`` once it said it."""

    def __init__(self, repository: str, revision: str) -> None:
        self.repository = repository
        self.endpoint = (os.environ.get("HF_ENDPOINT") or HUB_ADDRESS).rstrip("/")
        if not _is_address(self.endpoint):
            raise UsageError(f"HF_ENDPOINT is {self.endpoint}, which is not an http address", hint="unset HF_ENDPOINT")
        quoted = urllib.parse.quote(revision, safe="")
        self.base = f"{self.endpoint}/{urllib.parse.quote(repository)}/resolve/{quoted}"
        self.token, self.gated = _token(), False
        self.commit: str | None = None
        self.opener = urllib.request.build_opener(_SameHost())
        self.budget = safetensors.Budget()

    def header(self, name: str) -> list[Tensor] | None:
        """Tensors of one file; None if the hub has no such file."""
        shown = f"{self.repository} {name}"
        first = self._range(name, 0, FIRST_BYTES)
        if first is None:
            return None
        text, size = first
        length = safetensors.header_length(text, size, shown, self.budget)
        end = safetensors.LENGTH_BYTES + length
        if end > len(text):
            more = self._range(name, len(text), end - len(text))
            text += more[0] if more is not None else b""
            if len(text) < end:
                raise SparkclusterError(f"{shown}: incomplete download", hint="run the same command again")
        return safetensors.header(text[safetensors.LENGTH_BYTES : end], size, shown, self.budget)

    def read(self, name: str, limit: int) -> bytes | None:
        """A whole small file; None if the hub has no such file."""
        response = self._open(name, {})
        if response is None:
            return None
        with response:
            commit = response.headers.get("X-Repo-Commit") or ""
            if re.fullmatch(COMMIT, commit):
                self.commit = commit
            text = self._take(response, limit + 1, name)
        if len(text) > limit:
            raise UsageError(f"{self.repository} {name} is larger than {limit:,} bytes", hint="check model.id")
        return text

    def _range(self, name: str, start: int, count: int) -> tuple[bytes, int | None] | None:
        """``count`` bytes from ``start``, and the size of the whole file if the hub reports it."""
        response = self._open(name, {"Range": f"bytes={start}-{start + count - 1}"})
        if response is None:
            return None
        with response:
            total = (response.headers.get("Content-Range") or "").rpartition("/")[2]
            size = int(total) if total.isdecimal() and len(total) < 20 else None
            if response.status != 206:  # the hub ignores the range and sends the whole file
                if start:
                    self._take(response, start, name)
                length = response.headers.get("Content-Length") or ""
                size = int(length) if length.isdecimal() and len(length) < 20 else None
            return self._take(response, count, name), size

    def _take(self, response: Any, count: int, name: str) -> bytes:
        pieces: list[bytes] = []
        try:
            while count > 0 and (piece := response.read(min(count, PIECE_BYTES))):
                pieces.append(piece)
                count -= len(piece)
            return b"".join(pieces)
        except (OSError, http.client.HTTPException) as error:
            raise SparkclusterError(
                f"the connection to {self.endpoint} broke in {name} of {self.repository}: {type(error).__name__}",
                hint="run the same command again",
            ) from None

    def _open(self, name: str, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(f"{self.base}/{urllib.parse.quote(name)}", headers=headers)  # noqa: S310
        request.add_header("User-Agent", "sparkcluster")
        if self.gated and self.token:
            # Not sent to the storage that the hub redirects to; see _SameHost.
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            return self.opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                if error.code in _DENIED and not self.gated:
                    self.gated = True
                    return self._open(name, headers)
                return self._refused(error.code)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise SparkclusterError(
                f"cannot query {self.endpoint} for {self.repository}: {reason}",
                hint="check the network and HF_ENDPOINT, or pass a local directory or config.json to --config",
            ) from None

    def _refused(self, code: int) -> None:
        if code == http.HTTPStatus.NOT_FOUND:
            return
        if code in _DENIED:
            raise SparkclusterError(
                f"{self.endpoint} denies access to {self.repository} with{' this' if self.token else 'out a'} token",
                hint="check model.id, accept the model's terms on its page, then export HF_TOKEN=hf_…",
            )
        raise SparkclusterError(
            f"{self.endpoint} answered {code} for {self.repository}",
            hint="try again later, or pass a local directory or config.json to --config",
        )


def _is_address(endpoint: str) -> bool:
    with contextlib.suppress(ValueError):
        parts = urllib.parse.urlsplit(endpoint)
        return parts.scheme in {"http", "https"} and bool(parts.hostname)
    return False


def _token() -> str | None:
    token = os.environ.get("HF_TOKEN")
    if not token:
        home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
        with contextlib.suppress(OSError, UnicodeDecodeError):
            token = (Path(home).expanduser() / "token").read_text(encoding="utf-8")
    token = (token or "").strip()
    return token if token.isascii() and token.isprintable() and token else None
