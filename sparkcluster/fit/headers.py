"""Read a model's config.json and tensor headers, never the tensors, from a directory, a file or the hub.

From the hub, range requests fetch only the first bytes of each file. ``HF_ENDPOINT`` names another hub. ``HF_TOKEN``
(or the file from ``hf auth login``) opens gated models; the token is sent only for these, and only to the hub.

``huggingface_hub.get_safetensors_metadata`` (2.4.0) was tried instead and fails the tests of hostile input:

- if a hub ignores ranges, it reads complete shards into memory;
- it accepts a truncated shard;
- it requests any path in an index, including ``../x``, and does not limit the number of files;
- it strips a line break from a token, and retries a refused connection for 23 s;
- it caches config.json and index regardless of their size.

It would also add 14 packages (50 MB) and 0.4 s of imports to a controller that downloads no weights.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import io
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sparkcluster.errors import AccessDenied, SparkclusterError, UsageError
from sparkcluster.fit import safetensors
from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.shipped import COMMIT
from sparkcluster.fit.source import Source
from sparkcluster.node.shared import HUB_ADDRESS

CONFIG_LIMIT = 16_000_000
FIRST_BYTES = 1 << 20
LIMIT = 256_000_000
"""Limit in bytes of an index, and of all headers of a model together; the largest checkpoints have about 30 MB."""
TIMEOUT_S = 30
AT_ONCE = 8
_DENIED = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
ONE_FILE, ADAPTER = "model.safetensors", "adapter_model.safetensors"
QUANTIZED = "hf_quant_config.json"
"""ModelOpt's former file for its quantization settings, which are now in config.json."""

Piece = tuple[bytes, "int | None"]
"""First bytes of a file, and the size of the file if known."""


def from_path(path: Path, file: str | None = None, more: Sequence[str] = ()) -> Source:
    """A local model: a directory, optionally with the ``file`` to serve, a config.json, or a GGUF file.

    Of the GGUF files ``more``, which are loaded beside it, the size is read.

    Raises:
        UsageError: missing or invalid files.
    """
    if file is not None or path.suffix == ".gguf":
        folder, name = (path, file) if file is not None else (path.parent, path.name)
        return _gguf(_Files(f"{folder}/", partial(_local, folder)), str(path), name, more)
    if path.is_file():
        return Source(str(path), _Files(f"{path.parent}/", partial(_local, path.parent)).document(path.name))
    if not path.is_dir():
        raise UsageError(f"no model at {path}", hint="pass a directory with a config.json, or a config.json")
    names = safetensors.of_checkpoint(file.name for file in path.iterdir())
    return _source(_Files(f"{path}/", partial(_local, path)), str(path), names)


def from_hub(
    repository: str,
    revision: str = "main",
    *,
    whole: bool = True,
    file: str | None = None,
    more: Sequence[str] = (),
) -> Source:
    """A model on the hub at a branch, tag or commit: its config.json and tensor headers, about 100 KB.

    Without ``whole`` it may be an adapter, which has no config.json. For a GGUF ``file``, only its header and the sizes
    of the files ``more`` are read.

    Raises:
        UsageError: there is no such model, or its files are invalid.
        SparkclusterError: the hub does not answer or requires a token, or HF_HUB_OFFLINE is set.
    """
    if is_offline():
        raise SparkclusterError(
            f"cannot look up {repository}: HF_HUB_OFFLINE is set",
            hint="unset HF_HUB_OFFLINE, or pass a local directory or config.json to --config",
        )
    remote = _Remote(repository, revision)
    files, name = _Files(f"{repository} ", remote.get), f"{repository} at {revision}"
    found = _gguf(files, name, file, more) if file is not None else _source(files, name, [ONE_FILE], whole=whole)
    return dataclasses.replace(found, name=repository, revision=remote.commit)


def is_gated(repository: str, revision: str) -> bool:
    """Whether the hub requires a token for this model; False if it does not answer."""
    remote = _Remote(repository, revision)
    with contextlib.suppress(SparkclusterError):
        remote.get(CONFIG, 1)
    return remote.gated


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set, read as in huggingface_hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _source(files: _Files, name: str, names: Sequence[str], *, whole: bool = True) -> Source:
    """The model ``name`` in ``files``; without an index, ``names`` are the files with tensors."""
    config = files.document(CONFIG)
    if config is None and whole:
        hint = "check id and revision, or pass the directory with the model's config.json"
        raise UsageError(f"{name} has no config.json", hint=hint)
    if config is not None and "quantization_config" not in config:
        beside = files.document(QUANTIZED)
        if beside is not None:  # the engine reads both
            config = {**config, "quantization_config": {"quant_method": "modelopt", **beside}}
    names = [ADAPTER] if config is None else names
    index = files.document(INDEX, LIMIT)
    if index is not None:
        names = safetensors.index(index, files.where + INDEX)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        headers = list(pool.map(files.header, names))
    absent = [file for file, header in zip(names, headers, strict=True) if header is None]
    if index is not None and absent:
        raise UsageError(
            f"{files.where}{INDEX} lists {len(absent)} missing files, such as {absent[0]}",
            hint="finish the download, use another revision, or pass the config.json alone to --config",
        )
    tensors = tuple(tensor for header in headers for tensor in header or ())
    return Source(name, config, tensors or None)


def _gguf(files: _Files, name: str, file: str, more: Sequence[str]) -> Source:
    """The model ``name`` in a GGUF file: the header of its first part, and the sizes of all parts and of ``more``."""
    from sparkcluster.node import gguf  # noqa: PLC0415 - GGUF models are rare

    sizes, count = [], FIRST_BYTES
    for part in gguf.series(file):
        found = files.get(part, 1)
        if found is None:
            raise UsageError(f"{name} has no {part}", hint="check model.file, which names a file of the repository")
        sizes.append(found[1] or 0)
    while True:
        text, _ = files.get(file, count) or (b"", None)
        try:
            config, _ = gguf.read(io.BytesIO(text))
        except EOFError:
            if len(text) < count or count > LIMIT:
                raise safetensors.broken(files.where + file, "has a truncated header") from None
            count *= 4
        except ValueError as error:
            raise safetensors.broken(files.where + file, f"is invalid: {error}") from None
        else:
            beside = {each: Source(each, None, size_bytes=found[1]) for each in more if (found := files.get(each, 1))}
            return Source(name, config, size_bytes=sum(sizes) or None, beside=beside)


@dataclasses.dataclass(frozen=True, slots=True)
class _Files:
    """The files of a model.

    Attributes:
        where: prefix of file names in messages.
        get: returns the first bytes of a file; None if the file does not exist.
        ends: sizes of headers, added before they are read, since several threads read in parallel.
    """

    where: str
    get: Callable[[str, int], Piece | None]
    ends: list[int] = dataclasses.field(default_factory=list)

    def document(self, name: str, limit: int = CONFIG_LIMIT) -> dict[str, Any] | None:
        """A JSON file of at most ``limit`` bytes; None if it does not exist."""
        found = self.get(name, limit + 1)
        if found is None:
            return None
        text, _ = found
        if len(text) > limit:
            raise safetensors.broken(self.where + name, f"is larger than {limit:,} bytes")
        return safetensors.document(text, self.where + name)

    def header(self, name: str) -> list[Tensor] | None:
        """The tensors of a file; None if it does not exist."""
        first = self.get(name, FIRST_BYTES)
        if first is None:
            return None
        (text, size), shown = first, self.where + name
        end = safetensors.header_end(text, size, shown)
        self.ends.append(end)
        if sum(self.ends) > LIMIT:
            raise safetensors.broken(shown, f"and the files before it have headers of more than {LIMIT:,} bytes")
        if end > len(text):
            text, size = self.get(name, end) or first
        if end > len(text):
            raise SparkclusterError(f"{shown}: incomplete download", hint="retry")
        return safetensors.header(text[:end], size, shown)


def _local(folder: Path, name: str, count: int) -> Piece | None:
    """``_Files.get`` for a local directory."""
    path = folder / name
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return file.read(min(count, size)), size  # read() allocates the requested number of bytes
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check its path and permissions") from None


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Keeps the token in redirects within the hub and drops it in all others."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: PLR0917 - the base's
        """The request for a redirect."""
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and urllib.parse.urlsplit(newurl)[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            made.remove_header("Authorization")
        return made


class _Remote:
    """A revision of a repository; ``gated`` and ``commit`` are set from the hub's responses."""

    def __init__(self, repository: str, revision: str) -> None:
        self.repository = repository
        self.endpoint = (os.environ.get("HF_ENDPOINT") or HUB_ADDRESS).rstrip("/")
        if not self.endpoint.startswith(("http://", "https://")):
            raise UsageError(f"HF_ENDPOINT is {self.endpoint}, which is not an http address", hint="unset HF_ENDPOINT")
        quoted = urllib.parse.quote(revision, safe="")
        self.base = f"{self.endpoint}/{urllib.parse.quote(repository)}/resolve/{quoted}"
        self.token = _token()
        self.gated = False
        self.commit: str | None = None
        self.opener = urllib.request.build_opener(_SameHost())

    def get(self, name: str, count: int) -> Piece | None:
        """``_Files.get`` for the hub."""
        request = urllib.request.Request(f"{self.base}/{urllib.parse.quote(name)}")  # noqa: S310
        request.add_header("User-Agent", "sparkcluster")
        request.add_header("Range", f"bytes=0-{count - 1}")
        if self.gated and self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with self.opener.open(request, timeout=TIMEOUT_S) as response:
                commit = response.headers.get("X-Repo-Commit") or ""
                self.commit = self.commit or (commit if COMMIT.fullmatch(commit) else None)
                size = response.headers.get("Content-Range") or response.headers.get("Content-Length") or ""
                size = size.rpartition("/")[2]  # a hub may ignore the range and send the complete file
                return response.read(count), int(size) if size.isdecimal() and len(size) < 20 else None
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _DENIED and not self.gated:
                self.gated = True
                return self.get(name, count)
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            if error.code in _DENIED:
                token = "with this token" if self.token else "without a token"
                raise AccessDenied(
                    f"{self.endpoint} denies access to {self.repository} {token}",
                    hint="check model.id, accept the model's terms on its page, then export HF_TOKEN=hf_…",
                ) from None
            raise self._unknown(f"it answered {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unknown(str(getattr(error, "reason", None) or error)) from None

    def _unknown(self, why: str) -> SparkclusterError:
        return SparkclusterError(
            f"cannot query {self.endpoint} for {self.repository}: {why}",
            hint="check the network and HF_ENDPOINT, or pass a local directory or config.json to --config",
        )


def _token() -> str:
    """The user's Hugging Face token, or an empty string."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    token = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        token = (Path(home).expanduser() / "token").read_text(encoding="utf-8")
    token = (os.environ.get("HF_TOKEN") or token).strip()
    return token if token.isascii() and token.isprintable() else ""
