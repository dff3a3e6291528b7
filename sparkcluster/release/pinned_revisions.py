"""What branches and tags named when they were first staged, kept on the machine where that was typed.

Not on the nodes: what a node says about itself is no evidence against what it says now.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from sparkcluster.errors import StageError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import expected_images
from sparkcluster.inspect.cluster import View, first_staged, staged_file
from sparkcluster.output_file import write
from sparkcluster.printable import shell
from sparkcluster.report import Report
from sparkcluster.spec import powers


def compare(view: View, commits: Mapping[str, str], report: Report) -> None:
    """Record the commits and the image that are staged; report where one is not what its name stood for at first.

    Another image is recorded then: before other nodes got it somebody was asked. ``commits`` are those of repositories
    beside the model.

    Raises:
        StageError: code of a repository would run, and it is not what was first staged.
    """
    if view.topology is None or view.spec.kept_image:
        return
    head, playbook = view.facts[view.topology.groups[0].head.name], view.spec.playbook
    weights, names, first = read(head.weights), dict(commits), first_staged(view.spec.inventory.cluster)
    if weights is not None and weights.revision and playbook.model.id:
        names[f"{playbook.model.revision} of {playbook.model.id}"] = weights.revision
    path, newer = staged_file(view.spec.inventory.cluster), dict[str, str]()
    image = next(iter(expected_images(view.spec, view.facts, view.topology.by_rank).values()), None)
    # What a node builds has a name of its content.
    if image is not None and playbook.image and view.spec.build is None:
        newer[playbook.image] = f"{image.id} {image.build}"
        if first.get(playbook.image, image.build).rpartition(" ")[2] != image.build:
            report.note(f"warning: {playbook.image} is another image than was staged before: {image.id[:19]}")
    asked = {power.kind for power in powers.of(playbook, view.spec.inventory) if power.asks} - {"image"}
    unpinned = [each for each in view.findings if asked and each.code == "MDL-004"]
    for name, found in names.items():
        if first.get(name, found) != found:
            text = f"{name} changed since it was first staged: it was {first[name]}, it is {found}"
            for finding in (each for each in unpinned if name.rpartition(" ")[2] in each.summary.split()):
                hint = f"{finding.remedy[0]}; or accept the change: {shell('rm', path)}"
                raise StageError(f"{text}; the new code would run", step="copy", hint=hint)
            report.note(f"warning: {text}; to accept the change: {shell('rm', path)}")
    with contextlib.suppress(OSError, UsageError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(path, lambda file: file.write(json.dumps({**names, **first, **newer}, indent=1).encode()), private=True)
