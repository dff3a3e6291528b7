"""What ``discover`` shows: the Sparks, how they are cabled, what is wrong, and what to type next."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import cabling_view, findings_view
from sparkcluster.cli.output import data, message, show_error, table
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.setup.ports import Trouble

if TYPE_CHECKING:
    from sparkcluster.facts.survey import Survey
    from sparkcluster.setup.cabling import Cabling
    from sparkcluster.setup.discover import Discovered, Spark


def show(found: Discovered, sparks: Mapping[str, Spark], cables: Cabling) -> None:
    """Write to stdout what was found, and to stderr what was not."""
    if sparks:
        rows = [
            (
                name,
                spark.host,
                spark.user,
                system(spark.survey) or "unknown",
                "--host" if spark.how == "given" else spark.how,
            )
            for name, spark in sparks.items()
        ]
        table(("SPARK", "ADDRESS", "LOGIN", "DGX OS", "FOUND BY"), rows)
        data()
        lines = cabling_view.draw(
            {name: spark.survey for name, spark in sparks.items()}, cables, width=findings_view.width()
        )
        for line in lines:
            data(line)
    for each in found.skipped:
        message(f"skipped {each.label}{'' if each.host == each.label else f' ({each.host})'}: {each.why}")
    for error in found.failed.values():
        show_error(error)
    for trouble in _troubles(found, sparks, cables):
        message(trouble.text, kind="warning")
        message(trouble.hint, kind="hint", indent="  ")


def show_nothing_new(found: Discovered, into: Path | None) -> None:
    """Say why there is no inventory to write."""
    if into is None:
        what = "no Spark can be used; the reasons are above" if found.failed or found.skipped else "no Spark was found"
        hint = "switch them on, connect them to your network, or name them: sparkcluster discover --host ADDRESS"
        show_error(SparkclusterError(what, hint=hint))
        return
    message(f"{into} has every Spark that was found")


def show_written(file: Path) -> None:
    """Name the file that was written, and the next command."""
    import shlex

    message(f"wrote {file}")
    message(f"sparkcluster setup {shlex.quote(str(file))}", kind="next")


def document(
    found: Discovered, sparks: Mapping[str, Spark], cables: Cabling, text: str | None, file: Path | None
) -> dict[str, Any]:
    """What ``--json`` prints."""
    failed = [Trouble("not-reached", name, error.message, error.hint or "") for name, error in found.failed.items()]
    return {
        "sparks": [
            {
                "name": name,
                "host": spark.host,
                "user": spark.user,
                "hostname": spark.survey.hostname,
                "dgx_os": system(spark.survey),
                "found_by": spark.how,
            }
            for name, spark in sparks.items()
        ],
        "skipped": [{"name": each.label, "host": each.host, "why": each.why} for each in found.skipped],
        "cabling": [
            {
                "kind": segment.kind,
                "ports": [
                    {"node": port.node, "port": port.name, "interfaces": [twin.name for twin in port.twins]}
                    for port in segment.ports
                ],
            }
            for segment in cables.segments
        ],
        "troubles": [
            {"name": each.name, "node": each.node, "text": each.text, "hint": each.hint}
            for each in [*failed, *_troubles(found, sparks, cables)]
        ],
        "inventory": text,
        "file": str(file) if file else None,
    }


def unreached(found: Discovered) -> bool:
    """Whether a machine that may be a Spark was not reached."""
    return bool(found.failed) or any(trouble.name == "not-reached" for trouble in found.troubles)


def system(survey: Survey) -> str | None:
    """Version of DGX OS: the last update's, else that of the image it came with."""
    release = read(survey.dgx)
    return (release.ota_version or release.swbuild_version) if release else None


def _troubles(found: Discovered, sparks: Mapping[str, Spark], cables: Cabling) -> Iterator[Trouble]:
    """What is wrong, once each: that a port leads to a machine which was not reached is said already."""
    names = {spark.label: name for name, spark in sparks.items()}
    said = set()
    for each in found.troubles:
        said |= set(re.findall(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", each.text))
        yield dataclasses.replace(each, node=names.get(each.node or "", each.node))
    for each in cables.troubles:
        if each.name != "unknown-end" or not any(mac in each.text for mac in said):
            yield each
