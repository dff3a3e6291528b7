"""The support bundle: everything that ``doctor`` or ``preflight`` read, in one shareable file."""

from __future__ import annotations

import base64
import io
import json
import os
import platform
import re
import tarfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import sparkcluster
from sparkcluster import output_file
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.findings import Finding
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import call
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.doctor import Diagnosis
from sparkcluster.inspect.preflight import Preflight
from sparkcluster.plan.docker_run import limits
from sparkcluster.printable import LINES, clean, one_line
from sparkcluster.report import Report, count
from sparkcluster.runtime import observed, secrets
from sparkcluster.spec import Spec, consent
from sparkcluster.spec.secret_patterns import names_secret, without_secrets

REMOVED = "(removed)"

_README = Path(__file__).with_name("bundle_readme.txt")

# What may separate the letters and digits of a value: blanks and signs, also escaped.
_BETWEEN = r"(?:%(?:25)*[0-9a-fA-F]{2}|\\+(?:u[0-9a-fA-F]{4}|[nrt])?|&#?\w{1,6};|[^A-Za-z0-9\\])*+"

_TABLE = tomllib.loads(Path(__file__).with_name("bundle_hardware.toml").read_text(encoding="utf-8"))
_HARDWARE = [(re.compile(row["pattern"]), row["instead"]) for row in _TABLE["hardware"]]


class Scrubber:
    """Removes secrets from texts and documents: the known ``values``, and what looks like a secret."""

    def __init__(self, values: Iterable[str]) -> None:
        # Shorter values may be ordinary words.
        forms = {form for value in values if len(value) >= 4 for form in _forms(value)}
        self._known = re.compile("|".join(sorted(forms, key=len, reverse=True)) or "(?!)", re.IGNORECASE)

    def text(self, text: str) -> str:
        """``text`` without secrets and hidden characters."""
        text = clean(text, LINES)
        text = without_secrets(self._known.sub(REMOVED, text), REMOVED)
        for pattern, instead in _HARDWARE:
            text = pattern.sub(instead, text)
        return text

    def document(self, value: Any, name: str = "") -> Any:
        """A JSON document without secrets, in its texts and under names that look like one."""
        if isinstance(value, dict):
            return {self.text(str(key)): self.document(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return self._words([self.document(item, name) for item in value])
        # A playbook's "secrets" are names, not values.
        if isinstance(value, str) and value and name != "secrets" and names_secret(name):
            return REMOVED
        return self.text(value) if isinstance(value, str) else value

    def _words(self, words: list[Any]) -> list[Any]:
        """Arguments of a command without the values of flags for secrets."""
        secret = False
        for at, word in enumerate(words):
            if isinstance(word, str) and word.startswith("-"):
                secret = names_secret(word.lstrip("-"))
            elif secret:
                words[at] = REMOVED
        return words


def _forms(value: str) -> Iterator[str]:
    """Regular expressions for ``value`` in any case, escaped, wrapped, in hexadecimal and within base64."""
    data = value.encode()
    # The base64 characters that depend only on the value, for each of its three alignments.
    encoded = [base64.b64encode(bytes(at) + data)[(8 * at + 5) // 6 : 8 * (at + len(data)) // 6] for at in range(3)]
    yield re.escape(value)
    for form in (value, data.hex(), *(each.decode() for each in encoded)):
        letters = re.sub(_BETWEEN, "", form)
        if len(letters) >= 8:
            yield _BETWEEN.join(letters)


_NODE_LIMIT_S = 180


def gather(fleet: Fleet, view: View, report: Report, *, containers: bool) -> dict[str, Any]:
    """The document ``first-hour.json``: data from real machines that no check uses (docs/first-hour.md).

    ``containers``: whether to run a short program in two containers of the image on each node.
    """
    facts = view.facts
    if containers:
        consent.require(view.spec)
    report.step("bundle", count(len(facts), "Spark"))

    def look(host: Host) -> dict[str, Any]:
        node = facts[host.name]
        request: dict[str, Any] = {"containers": {}}
        image = node.image
        if containers and isinstance(image, Image) and isinstance(image.inside, EngineFacts):
            # once with Docker's defaults, once with a rank's options
            rank = [*limits(), *(["--device", "/dev/infiniband"] if node.infiniband_devices else [])]
            request |= {"containers": {"plain": [], "rank": rank}, "image_id": image.id, "python": image.inside.python}
        return call(host, "first_hour", request, answer=dict[str, Any], timeout_s=_NODE_LIMIT_S)

    found = fleet.each(look, facts).items()
    return {name: {"unread": seen.message} if isinstance(seen, SparkclusterError) else seen for name, seen in found}


def write(path: Path, found: Diagnosis | Preflight, first_hour: Mapping[str, Any]) -> None:
    """Write the bundle atomically, readable only by its owner; ``first_hour`` comes from ``gather``.

    Raises:
        UsageError: the file cannot be written.
    """

    def fill(file: IO[bytes]) -> None:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in contents(found, first_hour):
                data = text.encode(errors="backslashreplace")
                entry = tarfile.TarInfo(f"sparkcluster-{found.view.spec.inventory.cluster}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))

    output_file.write(path, fill, private=True)


def contents(found: Diagnosis | Preflight, first_hour: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and texts of the bundle's files, without secrets."""
    spec = found.view.spec
    scrubber = Scrubber(known_secrets(spec))

    def document(value: Any) -> str:
        return json.dumps(scrubber.document(value), indent=1, ensure_ascii=False) + "\n"

    yield (
        "README.txt",
        _README.read_text(encoding="utf-8").format(
            version=sparkcluster.__version__,
            python=platform.python_version(),
            platform=platform.platform(),
            cluster=spec.inventory.cluster,
            when=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            removed=REMOVED,
        ),
    )
    yield "findings.txt", scrubber.text("".join(_findings(found.findings)))
    running = found.running if isinstance(found, Diagnosis) else None
    yield f"{'doctor' if running else 'preflight'}.json", document(found.as_json())
    yield "first-hour.json", document(first_hour)
    if entries := observed.read(spec.inventory.cluster):
        yield "observed.jsonl", "".join(f"{json.dumps(scrubber.document(entry))}\n" for entry in entries)
    for name, facts in found.view.facts.items():
        yield f"facts/{name}.json", document(facts.model_dump(mode="json"))
        if kernel := read(facts.kernel_log):
            yield f"kernel/{name}.log", scrubber.text(_lines(kernel))
    for name, rank in running.ranks() if running else ():
        yield f"logs/{name}-{rank.name}.log", scrubber.text(_lines(rank.lines))
    yield "spec/inventory.json", document(spec.inventory.model_dump(mode="json", exclude_defaults=True))
    yield "spec/playbook.json", document(spec.playbook.model_dump(mode="json", exclude_defaults=True))
    if running and running.recorded is not None:
        yield "release.json", document(running.recorded.model_dump(mode="json"))


def known_secrets(spec: Spec) -> list[str]:
    """Values of all secrets known on this machine."""
    found = [os.environ.get(name, "") for name in spec.playbook.secrets]
    found += [value for name, value in os.environ.items() if names_secret(name) and len(value) >= 8]
    return [*found, *secrets.of_inventory(spec).values()]


def _findings(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"\n{finding.severity}: {finding.code} {finding.node or 'cluster'}: {one_line(finding.summary)}\n"
        yield from (f"  {word}: {one_line(text)}\n" for word, text in finding.details())


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
