"""Checks of what RDMA needs in the image: libibverbs with its provider, and an NCCL that knows the cabling."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.compare import listed
from sparkcluster.checks.image import STAGE
from sparkcluster.checks.registry import Context, Seen, container_check, interconnect_check
from sparkcluster.facts.engine import engine_of
from sparkcluster.findings import edit, here
from sparkcluster.printable import shell

NCCL_OF_RINGS = (2, 30, 7)
_VERBS = {"no libibverbs": "no libibverbs", "no mlx5": "no libibverbs provider for ConnectX (mlx5)"}
_RDMA_PACKAGES = "libibverbs1 ibverbs-providers"


@container_check(
    "IMG-011",
    "The image has the libraries of RDMA",
    source="NVIDIA/nvidia-container-toolkit#1877, dstackai/dstack#2712; rdma-core: a provider and its configuration",
    remedy="an image with libibverbs1 and ibverbs-providers",
)
def verbs(context: Context) -> Iterator[Seen]:
    """NCCL logs `Failed to open libibverbs.so` or `No device found`, and goes on over TCP: 1 to 3 GB/s instead of 22.

    The CUDA images for ARM servers come without these libraries, whatever the node has.
    `allow: [{code: IMG-011, reason: …}]` in the playbook accepts TCP.
    """
    missing: dict[str, list[str]] = {}
    for name, member in context.topology.members.items():
        found = engine_of(context.facts[name])
        if member.hcas and found is not None and found.verbs in _VERBS:
            missing.setdefault(found.verbs, []).append(name)
    for verdict, names in missing.items():
        reference = str(context.spec.reference)
        lines = [f"FROM {reference}", "USER root", f"RUN apt-get update && apt-get install -y {_RDMA_PACKAGES}"]
        lines += [f"USER {image.user}" for name, image in context.images() if name == names[0] and image.user]
        printed = shell(r"printf '%s\n'", *lines)
        tag = re.sub(r"[^a-z0-9]+", "-", reference.partition("@")[0].rpartition("/")[2].lower()).strip("-")
        yield Seen(
            f"the image has {_VERBS[verdict]}, and NCCL would use TCP",
            f"{reference} on {listed(names)}",
            (
                here(f"{printed} | docker build --tag {tag}:rdma -"),
                edit(f"set image: {tag}:rdma in the playbook, then {STAGE.text}"),
            ),
        )


@interconnect_check(
    "IMG-012",
    "NCCL can route between the subnets of a ring",
    source="NVIDIA/nccl v2.30.7-1, src/transport/net_ib/connect.cc: NCCL_IB_SUBNET_AWARE_ROUTING; in no release before",
    remedy=[edit("use an image with NCCL 2.30.7 or newer, or a switch, or two Sparks")],
)
def ring_nccl(context: Context) -> Iterator[Seen]:
    """Ranks hang in the first collective: an older NCCL pairs HCAs that no cable connects, since it ignores subnets.

    The version is that of the library that torch loads, which may differ from the installed package. Some builds of
    older versions have the change: `allow: [{code: IMG-012, reason: …}]` in the playbook says so. It is a warning if
    the version is unknown, or if the playbook loads an NCCL of its own.
    """
    own = next((name for name, value in context.spec.playbook.env.items() if "libnccl" in value), None)
    for group in context.topology.groups:
        versions: dict[str | None, list[str]] = {}
        for member in group.members if group.kind == "ring" else ():
            found = engine_of(context.facts[member.name])
            if member.hcas and found is not None:
                versions.setdefault(None if own else found.nccl_loaded, []).append(member.name)
        for version, names in versions.items():
            if version is None or tuple(map(int, re.findall(r"\d+", version)[:3])) < NCCL_OF_RINGS:
                yield Seen(
                    f"NCCL {version} cannot route between the subnets of a ring"
                    if version
                    else "the version of NCCL is unknown, and a ring needs 2.30.7",
                    f"on {listed(names)}; {own} in env of the playbook" if own else f"on {listed(names)}",
                    severity=None if version else "warning",
                )
