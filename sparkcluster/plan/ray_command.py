"""The command that starts Ray on a rank. Pure."""

from __future__ import annotations

from sparkcluster.topology.model import Group, Member

# Engines move tensors by NCCL and keep next to nothing in Ray's object store; left alone Ray would claim 30 %
# of the memory that a Spark's GPU shares.
OBJECT_STORE_BYTES = 2**30


def start(group: Group, member: Member) -> list[str]:
    """Command that starts Ray on a rank.

    Ray is bound to the address where the ranks meet; its dashboard stays off, since its job API runs whatever
    it is sent. One CPU each, since an engine's workers request none and Ray would otherwise keep one idle Python
    process per core. A worker stays in the foreground, so that its end is the container's end; on the head
    the engine takes that place.
    """
    argv = ["ray", "start"]
    if member.rank == 0:
        argv += ["--head", f"--node-ip-address={member.address}", f"--port={group.ray_port}"]
        argv += ["--include-dashboard=false"]
    else:
        argv += [f"--address={group.head.address}:{group.ray_port}", f"--node-ip-address={member.address}"]
    argv += ["--num-gpus=1", "--num-cpus=1", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    argv += ["--disable-usage-stats"]
    if member.rank > 0:
        argv.append("--block")
    return argv
