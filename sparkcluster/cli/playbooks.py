"""``sparkcluster playbooks``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import common_flags, emitted
from sparkcluster.cli.output import note, note_folded, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``playbooks``."""
    common_flags(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """List the bundled playbooks."""
    from sparkcluster.spec import library
    from sparkcluster.spec.load import load_playbook

    found = [
        (path, load_playbook(path)) for path in (library.find(name, library.bundled()) for name in library.names())
    ]
    listed = [
        {
            "name": playbook.name,
            "description": playbook.description,
            "model": playbook.model.label,
            "image": playbook.image,
            "tensor_parallel": playbook.tensor_parallel,
            "overlays": playbook.overlays,
            "source": playbook.source,
            "figures": [figure.model_dump() for figure in playbook.figures],
            "path": str(path),
        }
        for path, playbook in found
    ]
    if emitted(args, {"playbooks": listed}):
        return 0
    table(("PLAYBOOK", "DESCRIPTION"), [(playbook.name, playbook.description) for _, playbook in found])
    note("overlays, used as NAME+OVERLAY with playbooks that accept them:")
    note_folded(", ".join(overlay for overlay in library.overlays() if not overlay.startswith("dflash-")), indent="  ")
    note_folded(", ".join(overlay for overlay in library.overlays() if overlay.startswith("dflash-")), indent="  ")
    return 0
