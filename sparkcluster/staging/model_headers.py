"""A model's config.json and the headers of its tensors, from a directory, a file or the hub; never the tensors.

Of the hub only the first bytes of each file are requested, by range. ``HF_ENDPOINT`` names another hub, ``HF_TOKEN``
(or the file that ``hf auth login`` writes) opens gated models; the token is sent for no other model, and to no other
host.

``huggingface_hub.get_safetensors_metadata`` (2.4.0) was tried in its place and fails the tests of hostile input:

- where a hub ignores ranges, it reads whole shards into memory;
- it takes a shard that is cut off, and tensors whose offsets disagree with their shape, for whole;
- it requests whatever an index names, ``../x`` included, and puts no limit on the number of files;
- a token with a line break is sent without it, and a refused connection is retried for 23 s;
- config.json and index go to the user's cache, of whatever size they are.

It would also bring 14 packages (50 MB) and 0.4 s of imports to a controller that downloads no weights itself.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.fit import safetensors
from sparkcluster.fit.safetensors import Tensor
from sparkcluster.fit.source import Source
from sparkcluster.node.shared import HUB_ADDRESS
from sparkcluster.spec.playbook import COMMIT

CONFIG_LIMIT = 16_000_000
FIRST_BYTES = 1 << 20
TIMEOUT_S = 30
AT_ONCE = 8
_DENIED = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})
CONFIG, ONE_FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
QUANTIZED = "hf_quant_config.json"
"""Where ModelOpt wrote what is quantized, before it wrote that into config.json."""

Piece = tuple[bytes, "int | None"]
"""Some bytes of a file, and the size of the whole file if that is known."""


def from_path(path: Path) -> Source:
    """A model on this machine, by its directory or a config.json alone.

    Raises:
        UsageError: it is missing or invalid.
    """
    if path.is_file():
        return Source(str(path), _Files(f"{path.parent}/", partial(_local, path.parent)).document(path.name))
    if not path.is_dir():
        raise UsageError(f"no model at {path}", hint="give a directory with a config.json, or a config.json")
    names = safetensors.of_checkpoint(file.name for file in path.iterdir())[: safetensors.FILES_LIMIT]
    return _source(_Files(f"{path}/", partial(_local, path)), str(path), names)


def from_hub(repository: str, revision: str = "main", *, whole: bool = True) -> Source:
    """A model on the hub at a branch, tag or commit: its config.json and the headers of its tensors, some 100 KB.

    Without ``whole`` it may be an adapter, which has no config.json.

    Raises:
        UsageError: there is no such model, or its files are invalid.
        SparkclusterError: the hub does not answer, or requires a token.
    """
    remote = _Remote(repository, revision)
    files = _Files(f"{repository} ", remote.get)
    if not whole and files.document(CONFIG) is None:
        adapter = files.header(ADAPTER)
        return Source(repository, None, None if adapter is None else tuple(adapter))
    found = _source(files, f"{repository} at {revision}", [ONE_FILE])
    return dataclasses.replace(found, name=repository, revision=remote.commit)


def is_gated(repository: str, revision: str) -> bool:
    """Whether the hub shows this model only to those with a token; False where it cannot be asked."""
    remote = _Remote(repository, revision)
    with contextlib.suppress(SparkclusterError):
        remote.get(CONFIG, 0, 1)
    return remote.gated


def _source(files: _Files, name: str, names: Sequence[str]) -> Source:
    """The model ``name`` in ``files``; the files with its tensors are ``names`` where no index lists them."""
    config = files.document(CONFIG)
    if config is None:
        hint = "check id and revision, or give the directory with the model's config.json"
        raise UsageError(f"{name} has no config.json", hint=hint)
    if isinstance(config, dict) and "quantization_config" not in config:
        beside = files.document(QUANTIZED)
        if isinstance(beside, dict):  # the engine reads both
            config = {**config, "quantization_config": {"quant_method": "modelopt", **beside}}
    listed = files.read(INDEX, safetensors.INDEX_LIMIT)
    if listed is not None:
        names = safetensors.index(listed, files.where + INDEX)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        headers = list(pool.map(files.header, names))
    absent = [file for file, header in zip(names, headers, strict=True) if header is None]
    if listed is not None and absent:
        raise UsageError(
            f"{files.where}{INDEX} lists {len(absent)} missing files, such as {absent[0]}",
            hint="finish the download, use another revision, or pass the config.json alone to --config",
        )
    tensors = tuple(tensor for header in headers for tensor in header or ())
    return Source(name, config, tensors if len(absent) < len(names) else None)


@dataclasses.dataclass(frozen=True, slots=True)
class _Files:
    """The files of a model.

    Attributes:
        where: what people read before a file's name.
        get: a number of bytes of a file from one on; None if there is no such file.
    """

    where: str
    get: Callable[[str, int, int], Piece | None]
    budget: safetensors.Budget = dataclasses.field(default_factory=safetensors.Budget)

    def read(self, name: str, limit: int) -> bytes | None:
        """A whole small file; None if there is none."""
        text, _ = self.get(name, 0, limit + 1) or (None, None)
        if text is not None and len(text) > limit:
            raise UsageError(f"{self.where}{name} is larger than {limit:,} bytes", hint="give the model's file")
        return text

    def document(self, name: str) -> Any:
        """A file of JSON; None if there is none."""
        text = self.read(name, CONFIG_LIMIT)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            raise UsageError(f"{self.where}{name} is not JSON", hint="download the file again") from None

    def header(self, name: str) -> list[Tensor] | None:
        """The tensors of a file; None if there is none."""
        shown, first = self.where + name, self.get(name, 0, FIRST_BYTES)
        if first is None:
            return None
        text, size = first
        end = safetensors.LENGTH_BYTES + safetensors.header_length(text, size, shown, self.budget)
        if end > len(text):
            more, _ = self.get(name, len(text), end - len(text)) or (b"", None)
            text += more
        if end > len(text):
            raise SparkclusterError(f"{shown}: incomplete download", hint="run the same command again")
        return safetensors.header(text[safetensors.LENGTH_BYTES : end], size, shown, self.budget)


def _local(folder: Path, name: str, start: int, count: int) -> Piece | None:
    """``_Files.get`` of a directory."""
    path = folder / name
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(start)
            return file.read(min(count, size)), size  # a read allocates as many bytes as requested
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check its path and rights") from None


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Keeps the token in redirects within the hub and drops it in all others."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:  # noqa: PLR0917 - the base's
        """The request for a redirect."""
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and urllib.parse.urlsplit(newurl)[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            made.remove_header("Authorization")
        return made


class _Remote:
    """One revision of one repository; ``gated`` once the hub denied it without a token, ``commit`` once it said it."""

    def __init__(self, repository: str, revision: str) -> None:
        self.repository = repository
        self.endpoint = (os.environ.get("HF_ENDPOINT") or HUB_ADDRESS).rstrip("/")
        if not re.match("https?://.", self.endpoint):
            raise UsageError(f"HF_ENDPOINT is {self.endpoint}, which is not an http address", hint="unset HF_ENDPOINT")
        quoted = urllib.parse.quote(revision, safe="")
        self.base = f"{self.endpoint}/{urllib.parse.quote(repository)}/resolve/{quoted}"
        self.token, self.gated = _token(), False
        self.commit: str | None = None
        self.opener = urllib.request.build_opener(_SameHost())

    def get(self, name: str, start: int, count: int) -> Piece | None:
        """As of ``_Files``."""
        address = f"{self.base}/{urllib.parse.quote(name)}"
        request = urllib.request.Request(address, headers={"User-Agent": "sparkcluster"})  # noqa: S310
        request.add_header("Range", f"bytes={start}-{start + count - 1}")
        if self.gated and self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with self.opener.open(request, timeout=TIMEOUT_S) as response:
                commit = response.headers.get("X-Repo-Commit") or ""
                if re.fullmatch(COMMIT, commit):
                    self.commit = self.commit or commit
                return self._piece(response, start, count)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _DENIED and not self.gated:
                self.gated = True
                return self.get(name, start, count)
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            raise self._refused(error.code) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SparkclusterError(
                f"cannot query {self.endpoint} for {self.repository}: {getattr(error, 'reason', None) or error}",
                hint="check the network and HF_ENDPOINT, or pass a local directory or config.json to --config",
            ) from None

    @staticmethod
    def _piece(response: Any, start: int, count: int) -> Piece:
        size = (response.headers.get("Content-Range") or "").rpartition("/")[2]
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:  # the hub ignores the range and sends the whole file
            response.read(start)
            size = response.headers.get("Content-Length") or ""
        return response.read(count), int(size) if size.isdecimal() and len(size) < 20 else None

    def _refused(self, code: int) -> SparkclusterError:
        if code in _DENIED:
            return SparkclusterError(
                f"{self.endpoint} denies access to {self.repository} with{' this' if self.token else 'out a'} token",
                hint="check model.id, accept the model's terms on its page, then export HF_TOKEN=hf_…",
            )
        return SparkclusterError(
            f"{self.endpoint} answered {code} for {self.repository}",
            hint="try again later, or pass a local directory or config.json to --config",
        )


def _token() -> str | None:
    token = os.environ.get("HF_TOKEN")
    if not token:
        home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
        with contextlib.suppress(OSError, UnicodeDecodeError):
            token = (Path(home).expanduser() / "token").read_text(encoding="utf-8")
    token = (token or "").strip()
    return token if token.isascii() and token.isprintable() and token else None
