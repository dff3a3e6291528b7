"""Signatures of what every engine runs on: Ray, NCCL, CUDA, Docker, the kernel and files.

Each with a public thread that has the line.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from sparkcluster.engines.base import Engine
from sparkcluster.engines.signature import Cause, Signature


def versions(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    """The versions of Ray and Python that differ."""
    versions_seen = [match for line in lines if (match := re.search(r"\b(Ray|Python): ([\w.]+)", line))]
    parts = [f"{match[1]} {match[2]}" for match in versions_seen[-4:]]
    seen = f": the head has {' and '.join(parts[:2])}, this rank {' and '.join(parts[2:])}" if len(parts) == 4 else ""
    return Cause(
        f"Ray or Python differ between the ranks{seen}",
        "the nodes run different images: sparkcluster stage INVENTORY image",
    )


def actor(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    """Where the worker was that died."""
    places = [
        match[1] for line in lines if (match := re.search(r"^\W{0,40}(?:\(.{0,200}\)\s{0,8})?ip: ([\d.]+)", line))
    ]
    where = f" on {places[-1]}" if places else ""
    return Cause(
        f"a worker process{where} died",
        "see its log and the kernel's: sparkcluster logs INVENTORY NODE, and sudo dmesg on that node",
    )


# Images for CUDA 13.0 run on series 580; 590 deadlocks while it captures CUDA graphs on a GB10 (seed: SM121 guide).
_NEWER_IMAGE_HINT = (
    "use an image for CUDA 13.0, which drivers of series 580 run, or one whose log says that forward compatibility is"
    " ENABLED; do not install driver 590 on a GB10"
)


def newer_image(found: re.Match[str], lines: Sequence[str]) -> Cause:
    """The driver that the image was built for, and the one that the node has."""
    wanted = next(
        (match[1] for line in lines if (match := re.search(r"NVIDIA Driver Release ([\d.]+)", line))), "newer"
    )
    return Cause(f"the image is built for NVIDIA driver {wanted}, and the node has {found[1]}", _NEWER_IMAGE_HINT)


# Some images print it and run all the same, so it is looked for only where nothing else explains an end.
NEWER_IMAGE = Signature(
    "newer-image",
    r"version (\d[\d.]*) was detected and compatibility mode is UNAVAILABLE",
    "",
    None,
    "seed: Spark model guide, Nemotron-3-Nano; the entrypoint of NVIDIA's containers",
    newer_image,
    code="RUN-013",
)

COMMON = (
    Signature(
        "ray-version",
        r"Version mismatch: The cluster was started with",
        "",
        None,
        "ray-project/ray#44063",
        versions,
    ),
    Signature(
        "ray-token",
        r"InvalidAuthToken|Authentication token is missing or incorrect|AuthenticationError: ",
        "Ray rejected this rank's token",
        "an earlier launch of this cluster is still running: sparkcluster down INVENTORY, then up again",
        "docs.ray.io/en/latest/ray-security/token-auth.html",
    ),
    Signature(
        "no-ray",
        r"\bray: (?:command )?not found|No module named '?ray\b|Ray is not installed",
        "the image has no Ray",
        "use executor: auto, which lets sparkcluster bring Ray, or executor: native in the playbook",
        "vllm-project/vllm#13388",
    ),
    Signature(
        "cuda-oom",
        r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|NV_ERR_NO_MEMORY",
        "the GPU ran out of the memory that it shares with the host",
        Engine.memory_hint,
        "NVIDIA/dgx-spark-playbooks#97",
        code="RUN-014",
    ),
    Signature(
        "cuda-illegal-access",
        r"CUDA error: an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS",
        "a GPU kernel accessed memory that is not its own (CUDA: illegal memory access)",
        "remove the drafter (speculative-config) and the FP8 KV cache (kv-cache-dtype) in the playbook, one after the"
        " other, or use another image; sparkcluster doctor INVENTORY shows whether the kernel logged Xid 31",
        "eugr/spark-vllm-docker#308, vllm-project/vllm#24430",
    ),
    Signature(
        "ray-oom",
        r"worker\(s\) were killed due to the node running low on memory"
        r"|killed due to memory pressure \(OOM\)|Task was killed due to the node running low",
        "Ray killed a worker because the node ran low on memory",
        Engine.memory_hint,
        "docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html",
        code="RUN-014",
    ),
    Signature(
        "stale-handle",
        r"Stale file handle",
        "a file's network mount has changed under the rank (stale file handle)",
        "on that node: mount it again, or set hf_home in the inventory to a directory on the node's own disk; then up"
        " again",
        "errno 116 (ESTALE), nfs(5)",
    ),
    Signature(
        "port-busy",
        r"(?:bind on address \('[^']{1,80}', |local network address.{0,80}?port: )(?P<port>\d{1,5}).{0,80}"
        r"(?i:address already in use)",
        "port {port} is in use",
        "sudo ss -ltnp 'sport = :{port}' on that node shows by which process",
        "vllm-project/vllm#7514",
    ),
    Signature(
        "port-busy",
        r"(?i)address already in use|port is already allocated|EADDRINUSE",
        "a port is in use",
        "sudo ss -ltnp on that node shows by which process",
        "vllm-project/vllm#11617",
    ),
    Signature(
        "gid",
        r"ibv_modify_qp failed with (?:error )?(?P<why>[^,\n]+)(?:, on dev (?P<dev>[\w]+))?",
        "NCCL could not connect a queue pair on {dev} ({why}): the GID it used does not exist",
        "the GID table changed since the plan was made; run up again, and see sparkcluster preflight INVENTORY",
        "NVIDIA/nccl#1657",
        code="RUN-010",
    ),
    Signature(
        "memlock",
        r"ibv_reg_mr\w{0,20} failed.{0,200}Cannot allocate memory|ibv_create_cq failed.{0,200}Cannot allocate memory",
        "RDMA memory could not be pinned: the memlock limit is too low, or too little memory is free",
        "containers need --ulimit memlock=-1; if they have it, free the page cache: echo 3 | sudo tee"
        " /proc/sys/vm/drop_caches",
        "NVIDIA/nccl-tests#206",
        code="RUN-009",
    ),
    Signature(
        "rdma-device",
        r"Unable to open device (?P<dev>\w+)|ibv_open_device failed",
        "the container cannot open the RDMA device",
        "the node needs /dev/infiniband in the container: see sparkcluster preflight INVENTORY",
        "NVIDIA/nccl#451",
    ),
    Signature(
        "interface",
        r"(?:Unable to find (?:address|interface) (?:for|matching|with)|no socket interface found)"
        r"[^\w]*(?P<name>[\w.-]*)",
        "an interface of the plan is missing or has no address: {name}",
        "see sparkcluster preflight INVENTORY; its interface disappears when the cable is unplugged",
        "vllm-project/vllm#40991",
    ),
    Signature(
        "store",
        r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<have>\d+)/(?P<all>\d+) clients",
        "only {have} of {all} ranks connected within {seconds} s",
        "the ranks do not reach each other: sparkcluster preflight INVENTORY checks address, MTU and firewall",
        "vllm-project/vllm#16334",
        by_peer=True,
    ),
    Signature(
        "store",
        r"client socket has timed out after \d{1,12}ms .{0,80}connect to \((?P<host>[^,]{1,255}), (?P<port>\d{1,5})\)",
        "a rank could not reach {host} port {port}",
        "check for a firewall between the Sparks, on both: sudo ufw status",
        "vllm-project/vllm#19670",
        by_peer=True,
    ),
    # Before what Gloo says of connections that were never made.
    Signature(
        "peer-closed",
        r"gloo/transport/tcp/pair\.cc:\d{1,6}\] (?:Connection closed by peer|(?:Read|Write|recv|send) error)"
        r" \[(?P<peer>[\w.:]{1,64})\]",
        "the connection to the rank at {peer} broke",
        "the log of that rank says why it ended; if it runs, see sparkcluster preflight INVENTORY: cable, MTU and link",
        "gpustack/gpustack#6019",
        by_peer=True,
    ),
    Signature(
        "rdma-broke",
        r"NET/IB.{0,20}: ?Got completion from peer (?P<peer>[\d.]{7,15})<\d{1,5}> with (?:status=|error )"
        r"(?P<status>\d{1,4}|\w{1,60}\(\d{1,4}\))",
        "RDMA to {peer} failed (status {status})",
        "check the cable, and the log of the rank there; then sparkcluster preflight INVENTORY --deep",
        "NVIDIA/nccl#1664; NVIDIA/nccl, transport/net_ib/p2p.cc of 2.30",
        by_peer=True,
    ),
    Signature(
        "rdma-port",
        r"NET/IB : .{0,40}Got async event : port error",
        "an RDMA port lost its link",
        "check the cables on both nodes; sparkcluster preflight INVENTORY shows which link is down",
        "NVIDIA/nccl#905",
        by_peer=True,
    ),
    Signature(
        "gloo",
        r"Gloo connectFullMesh failed|gloo/transport/tcp/pair\.cc",
        "Gloo could not connect the ranks: one of them advertises an address that the others do not reach",
        "see sparkcluster preflight INVENTORY; GLOO_SOCKET_IFNAME must name the interconnect on every node",
        "gpustack/gpustack#2125",
        by_peer=True,
    ),
    Signature(
        "collective",
        r"Watchdog caught collective operation timeout: WorkNCCL\(.{0,200}?OpType=(?P<what>\w+)",
        "a collective ({what}) did not complete on all ranks",
        "see sparkcluster preflight INVENTORY --deep: MTU, GID and link of every rail; then up again",
        "vllm-project/vllm#5484",
        code="RUN-003",
        by_peer=True,
    ),
    Signature(
        "gpu-lost",
        r"Failed to initialize NVML: Unknown Error|NVML: Unknown Error",
        "the container lost its GPU, as after systemctl daemon-reload or with a stale CDI specification",
        "on that node: sudo systemctl restart nvidia-cdi-refresh, then up again",
        "NVIDIA/nvidia-container-toolkit#48",
        code="RUN-013",
    ),
    Signature(
        "newer-image",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|[Uu]nsupported display driver"
        r"|CUDA unknown error - this may|forward compatibility was attempted|cudaErrorInsufficientDriver"
        r"|PTX was compiled with an unsupported toolchain|unsatisfied condition: cuda ?>="
        r"|CUDA_ERROR_(?:SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED|UNSUPPORTED_PTX_VERSION)",
        "CUDA does not start: the image is built for a newer driver than the node has",
        _NEWER_IMAGE_HINT,
        "NVIDIA/NemoClaw#4658, gpustack/gpustack#4678",
        code="RUN-013",
    ),
    dataclasses.replace(
        NEWER_IMAGE,
        near=(r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver",),
    ),
    Signature(
        "gpu-driver",
        r"nvml error: driver not loaded|could not select device driver|No CUDA GPUs are available"
        r"|no CUDA-capable device is detected|Found no NVIDIA driver",
        "no GPU can be used on that node: driver, its kernel modules or the container toolkit are missing",
        "on that node: nvidia-smi, and docker run --rm --gpus all ubuntu nvidia-smi",
        "NVIDIA/nvidia-docker#1730",
        code="RUN-013",
    ),
    Signature(
        "ptxas",
        r"ptxas fatal\s*: Value 'sm_\w+' is not defined|PTXASError|Cannot find ptxas|phase=ptxas missing",
        "Triton has no ptxas that supports the GB10",
        "use an image with CUDA 13, or mount its ptxas at /usr/local/cuda/bin/ptxas",
        "triton-lang/triton#8539",
    ),
    Signature(
        "disk-full",
        r"(?i)no space left on device|disk quota exceeded",
        "the disk is full",
        "on that node: df -h, and docker system df; remove what no playbook uses",
        "eugr/spark-vllm-docker#339",
    ),
    Signature(
        "gated",
        r"GatedRepoError|Cannot access gated repo|You are trying to access a gated repo|401 Client Error",
        "Hugging Face requires a login for this model",
        "accept its terms on its page and set HF_TOKEN, then run sparkcluster stage INVENTORY weights",
        "tenstorrent/tt-inference-server#37",
    ),
    Signature(
        "weights-corrupt",
        r"Error while deserializing header: (?P<why>\w+)|SafetensorError: (?P<other>.{1,80})",
        "a weights file is truncated or corrupt",
        "sparkcluster stage INVENTORY weights --verify",
        "QwenLM/Qwen3-VL#264",
    ),
    Signature(
        "weights-missing",
        r"Cannot find any model weights|does not appear to have a file named|Can't load the configuration"
        r"|Invalid repository ID or local directory specified|is not a local folder and is not a valid model"
        r"|Repo id must (?:be in the form|use alphanumeric)|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|outgoing traffic has been disabled|couldn't connect to 'https://huggingface\.co'",
        "the model's files are not on that node",
        "sparkcluster stage INVENTORY weights",
        "vllm-project/vllm#4333",
    ),
    Signature(
        "no-image",
        r"(?i)No such image: (?P<image>\S+)|Unable to find image '(?P<other>[^']+)'",
        "the image is not on that node",
        "sparkcluster stage INVENTORY image",
        "moby/moby#43570",
    ),
    Signature(
        "docker-group",
        r"(?i)permission denied while trying to connect to the docker",
        "the user has no permission to use Docker",
        "on that node: sudo usermod -aG docker $USER, then log out and back in",
        "docs.docker.com/engine/install/linux-postinstall",
    ),
    Signature(
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'",
        "{path} cannot be read or written (permission denied)",
        "on that node: ls -ld {path}",
        "vllm-project/vllm#12526",
    ),
    Signature(
        "ray-open",
        r"\[sparkcluster\] error: (?P<what>.{0,200}Ray has no token.{0,200})",
        "{what}",
        "use an image with Ray 2.52 or newer, or executor: native in the playbook; or on that node: "
        "sudo apt-get install gcc",
        "sparkcluster/node/launcher.py",
    ),
    Signature(
        "unreadable",
        r"\[sparkcluster\] error: (?P<what>user \d{1,10} of the container cannot read .{1,300})",
        "{what}",
        'on that node: chmod -R a+rX on the directory with the weights; or set container.user to "0" in the playbook',
        "sparkcluster/node/prepare.py",
    ),
    # Exact, but none of the above.
    Signature(
        "launcher",
        r"\[sparkcluster\] error: (?P<what>.{1,300})",
        "{what}",
        None,
        "sparkcluster/node/launcher.py",
    ),
    Signature(
        "placement",
        r"Waiting for creating a placement group of specs for \d+ seconds|Cannot provide a placement group",
        "Ray cannot place all ranks: a node is missing, or its GPU is in use",
        "sparkcluster status INVENTORY shows which; nvidia-smi there shows what uses its GPU",
        "vllm-project/aibrix#927",
        code="RUN-007",
        consequence=True,
    ),
    Signature(
        "nccl",
        r"NCCL error(?:: | in: )(?P<what>.{1,120})|nccl\w{0,40}Error: ",
        "NCCL failed",
        "set NCCL_DEBUG: INFO under env in the playbook and run up again, to see which device and address",
        "NVIDIA/nccl#834",
        consequence=True,
    ),
    Signature(
        "worker-died",
        r"ActorDiedError|RayActorError|WorkerCrashedError|[Ww]orker proc(?:ess)? .{0,200} died unexpectedly"
        r"|ActorUnavailableError|NodeDiedError|A worker died or was killed while executing a task",
        "",
        None,
        "Simple-Efficient/RL-Factory#8",
        actor,
        code="RUN-005",
        consequence=True,
    ),
)

# The engine serves on after it, so it is looked for in the log of a dead rank only where nothing else explains its end.
TCP = Signature(
    "tcp",
    r"Using network Socket|NET/IB : No device found",
    "NCCL fell back from RDMA to TCP before that",
    "see sparkcluster preflight INVENTORY: /dev/infiniband, memlock and the HCA list",
    "NVIDIA/nccl#941",
    code="RUN-008",
)
