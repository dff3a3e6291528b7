"""How causes show in the logs of engines that did not come up or that ail, with the public threads that have them.

Those that name a root come before those that name its consequence: no memory, then no worker, then no engine. A launch
asks them why a rank ended, and ``checks.running`` what ails a cluster that runs.
"""

from __future__ import annotations

from sparkcluster.engines.signature import Cause, Signature, actor, argument, port_taken, versions

__all__ = [
    "DEGRADED",
    "EAGER",
    "EXPERTS",
    "MEMORY_HINT",
    "SCALES",
    "SIGNATURES",
    "STALLED",
    "TCP",
    "Cause",
    "Signature",
]

MEMORY_HINT = (
    "lower gpu-memory-utilization or max-model-len in the playbook; what else holds memory there:"
    " sync; echo 3 | sudo tee /proc/sys/vm/drop_caches frees the page cache"
)

SIGNATURES: tuple[Signature, ...] = (
    # the command line
    Signature(
        "serve-twice",
        r"unrecognized arguments: serve\b",
        "the image's entrypoint already says `vllm serve`, so it was said twice",
        "drop `vllm serve` from command in the playbook, or take an image without that entrypoint",
        "vllm-project/vllm#37133",
    ),
    Signature("argument", r"unrecognized arguments: (?P<what>.+)", "", None, "vllm-project/vllm#42399", argument),
    Signature(
        "argument-value",
        r"error: argument (?P<flag>--[\w-]+)[^:]*: (?P<why>.{1,160})",
        "vLLM refuses the value of {flag}: {why}",
        "mend it under args in the playbook",
        "vllm-project/vllm#25837",
    ),
    # Ray
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
        "an older launch of this cluster still runs: sparkcluster down INVENTORY, then up again",
        "docs.ray.io/en/latest/ray-security/token-auth.html",
    ),
    Signature(
        "no-ray",
        r"\bray: (?:command )?not found|No module named '?ray\b|Ray is not installed",
        "the image has no Ray",
        "let sparkcluster bring one along, or set executor: native in the playbook",
        "vllm-project/vllm#13388",
    ),
    # memory
    Signature(
        "gpu-busy",
        r"Free memory on device[^(]*\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) on startup is less than desired"
        r" GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        "only {free} of {all} GiB are free, and gpu-memory-utilization {share} asks for {wanted} GiB",
        MEMORY_HINT,
        "vllm-project/vllm#20305",
        code="RUN-014",
    ),
    Signature(
        "kv-cache-none",
        r"No available memory for the cache blocks",
        "the model leaves no memory for the KV cache",
        "raise gpu-memory-utilization (up to 0.90 on a Spark), or spread the model over more nodes",
        "vllm-project/vllm#17431",
        code="RUN-014",
    ),
    Signature(
        "kv-cache-small",
        r"max seq len \((?P<length>\d+)\), \(?(?P<need>[\d.]+ GiB) KV cache is needed, which is larger than"
        r" the available KV cache memory \((?P<have>[\d.]+ GiB)\)"
        r"(?:.*estimated maximum model length is (?P<fits>\d+))?",
        "max-model-len {length} needs {need} of KV cache and {have} are there",
        "set max-model-len to {fits} or less in the playbook, or raise gpu-memory-utilization",
        "vllm-project/vllm#34076",
        code="RUN-014",
    ),
    Signature(
        "cuda-oom",
        r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|NV_ERR_NO_MEMORY",
        "the GPU ran out of the memory that it shares with the host",
        MEMORY_HINT,
        "NVIDIA/dgx-spark-playbooks#97",
        code="RUN-014",
    ),
    # ports
    Signature(
        "port-busy",
        r"(?:bind on address \('[^']+', (?P<port>\d+)|local network address.*?port: (?P<store>\d+))"
        r".*(?i:address already in use)",
        "",
        None,
        "vllm-project/vllm#7514",
        lambda found, _: port_taken(found["port"] or found["store"]),
    ),
    Signature(
        "port-busy",
        r"(?i)address already in use|port is already allocated|EADDRINUSE",
        "",
        None,
        "vllm-project/vllm#11617",
        lambda _found, _lines: port_taken(None),
    ),
    # the interconnect
    Signature(
        "gid",
        r"ibv_modify_qp failed with (?:error )?(?P<why>[^,\n]+)(?:, on dev (?P<dev>[\w]+))?",
        "NCCL could not connect a queue pair on {dev} ({why}): the GID it used is not there",
        "the GID table moved since the plan was made; run up again, and see sparkcluster preflight INVENTORY",
        "NVIDIA/nccl#1657",
        code="RUN-010",
    ),
    Signature(
        "memlock",
        r"ibv_reg_mr\w* failed[^\n]*Cannot allocate memory|ibv_create_cq failed[^\n]*Cannot allocate memory",
        "RDMA memory could not be pinned: the memlock limit is too low, or too little memory is truly free",
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
        "an interface that the plan names is not there or has no address: {name}",
        "see sparkcluster preflight INVENTORY; a cable pulled out also takes its interface away",
        "vllm-project/vllm#40991",
    ),
    Signature(
        "store",
        r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<have>\d+)/(?P<all>\d+) clients",
        "only {have} of {all} ranks met within {seconds} s",
        "the ranks do not reach each other: sparkcluster preflight INVENTORY looks at address, MTU, firewall",
        "vllm-project/vllm#16334",
    ),
    Signature(
        "store",
        r"client socket has timed out after \d+ms .*connect to \((?P<host>[^,]+), (?P<port>\d+)\)",
        "a rank could not reach {host} port {port}",
        "is a firewall between the Sparks? on both: sudo ufw status",
        "vllm-project/vllm#19670",
    ),
    Signature(
        "gloo",
        r"Gloo connectFullMesh failed|gloo/transport/tcp/pair\.cc",
        "Gloo could not connect the ranks: one of them offers an address that the others do not reach",
        "see sparkcluster preflight INVENTORY; GLOO_SOCKET_IFNAME must name the interconnect on every node",
        "gpustack/gpustack#2125",
    ),
    Signature(
        "collective",
        r"Watchdog caught collective operation timeout: WorkNCCL\(.*?OpType=(?P<what>\w+)",
        "a collective ({what}) never came back from all ranks",
        "see sparkcluster preflight INVENTORY --deep: MTU, GID and link of every rail; then up again",
        "vllm-project/vllm#5484",
        code="RUN-003",
    ),
    Signature(
        "step-timeout",
        r"TimeoutError: RPC call to (?P<what>\w+) timed out",
        "the ranks did not end a step ({what}) within the engine's limit",
        "see sparkcluster preflight INVENTORY --deep: MTU, GID and link of every rail; then up again",
        "eugr/spark-vllm-docker#321",
        code="RUN-003",
    ),
    # the GPU
    Signature(
        "gpu-lost",
        r"Failed to initialize NVML: Unknown Error|NVML: Unknown Error",
        "the container lost its GPU, as after systemctl daemon-reload or with a stale CDI specification",
        "on that node: sudo systemctl restart nvidia-cdi-refresh, then up again",
        "NVIDIA/nvidia-container-toolkit#48",
        code="RUN-013",
    ),
    Signature(
        "gpu-driver",
        r"nvml error: driver not loaded|could not select device driver|No CUDA GPUs are available"
        r"|no CUDA-capable device is detected|Found no NVIDIA driver|CUDA driver version is insufficient",
        "no GPU can be used there: driver, its kernel modules or the container toolkit are missing",
        "on that node: nvidia-smi, and docker run --rm --gpus all ubuntu nvidia-smi",
        "NVIDIA/nvidia-docker#1730",
        code="RUN-013",
    ),
    # the image
    Signature(
        "fastsafetensors",
        r"ImportError.*fastsafetensors|install vllm\[fastsafetensors\]|No module named '?fastsafetensors"
        r"|FastSafetensors\w* .*(?:not installed|required)",
        "the image lacks fastsafetensors",
        "remove load-format: fastsafetensors under args in the playbook",
        "foundation-model-stack/fastsafetensors#12",
    ),
    Signature(
        "ptxas",
        r"ptxas fatal\s*: Value 'sm_\w+' is not defined|PTXASError|Cannot find ptxas|phase=ptxas missing",
        "Triton has no assembler that knows the GB10",
        "take an image with CUDA 13, or mount its ptxas at /usr/local/cuda/bin/ptxas",
        "triton-lang/triton#8539",
    ),
    Signature(
        "architecture",
        r"Model architectures? (?P<names>\[.*?\]|\S+) (?:are|is) not supported",
        "this vLLM does not know the model's architecture {names}",
        "take a newer image in the playbook",
        "vllm-project/vllm#2248",
    ),
    # files
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
        "Hugging Face wants a login for this model",
        "accept its terms on its page and set HF_TOKEN, then: sparkcluster stage INVENTORY weights",
        "tenstorrent/tt-inference-server#37",
    ),
    Signature(
        "weights-corrupt",
        r"Error while deserializing header: (?P<why>\w+)|SafetensorError: (?P<other>.{1,80})",
        "a weights file is cut short or corrupt",
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
        "the user may not talk to Docker",
        "on that node: sudo usermod -aG docker $USER, then log in again",
        "docs.docker.com/engine/install/linux-postinstall",
    ),
    Signature(
        "permission",
        r"PermissionError: \[Errno 13\] Permission denied: (?P<path>'[^']+')",
        "{path} may not be read or written",
        "on that node: ls -ld {path}",
        "vllm-project/vllm#12526",
    ),
    # the launcher's own words: none of the above, but exact
    Signature(
        "launcher",
        r"\[sparkcluster\] error: (?P<what>.{1,300})",
        "{what}",
        None,
        "sparkcluster/node/entry.py",
    ),
    # consequences
    Signature(
        "placement",
        r"Waiting for creating a placement group of specs for \d+ seconds|Cannot provide a placement group",
        "Ray has no place for all ranks: a node is missing, or its GPU is taken",
        "sparkcluster status INVENTORY shows which; something else may hold its GPU: nvidia-smi there",
        "vllm-project/aibrix#927",
        code="RUN-007",
        consequence=True,
    ),
    Signature(
        "nccl",
        r"NCCL error(?:: | in: )(?P<what>.{1,120})|(?P<kind>nccl\w*Error): .*",
        "NCCL failed",
        "run up with NCCL_DEBUG: INFO under env in the playbook to see which device and address",
        "NVIDIA/nccl#834",
        consequence=True,
    ),
    Signature(
        "worker-died",
        r"ActorDiedError|RayActorError|WorkerCrashedError|[Ww]orker proc(?:ess)? .* died unexpectedly"
        r"|ActorUnavailableError|NodeDiedError",
        "",
        None,
        "Simple-Efficient/RL-Factory#8",
        actor,
        code="RUN-005",
        consequence=True,
    ),
    Signature(
        "engine-dead",
        r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)|Engine core initialization failed"
        r"|EngineCore failed to start",
        "the engine died; its API may live on and still answer /health",
        "the reason stands further up in its log: sparkcluster logs INVENTORY",
        "vllm-project/vllm#53157",
        code="RUN-016",
        consequence=True,
    ),
)

# What follows lets an engine serve on. TCP is asked of a dead rank only where nothing else explains its end.
TCP = Signature(
    "tcp",
    r"Using network Socket|NET/IB : No device found",
    "NCCL fell back from RDMA to TCP before that",
    "see sparkcluster preflight INVENTORY: /dev/infiniband, memlock and the HCA list",
    "NVIDIA/nccl#941",
    code="RUN-008",
)

EAGER = Signature(
    "eager",
    r"Enforce eager set, |Cudagraph is disabled under eager mode",
    "the engine runs without CUDA graphs",
    "remove enforce-eager under args in the playbook",
    "vllm-project/vllm#34523",
    code="RUN-018",
)

SCALES = (
    Signature(
        "scales-nan",
        r"(?i:\bnan\b.{0,60}\bscales?\b|scales?\b.{0,60}\bnan\b)|scale' has zero or non-finite values",
        "scales of quantised weights are not numbers",
        "take a checkpoint that was calibrated in full, or moe-backend: marlin under args in the playbook",
        "vllm-project/vllm#45320",
        code="RUN-012",
    ),
    Signature(
        "scales-unlike",
        r"w1_weight_scale_2 must match w3_weight_scale_2",
        "gate and up projections of the experts have scales of their own, and the kernel takes one for both",
        "take a checkpoint whose gate and up projections share a scale",
        "vllm-project/vllm#54150",
        code="RUN-012",
    ),
)

# The same line comes once or twice while a healthy engine compiles.
STALLED = Signature(
    "stalled",
    r"No available shared memory broadcast block found in \d+ seconds",
    "a rank has not taken its work for a minute and more",
    "sparkcluster down INVENTORY, then sparkcluster up INVENTORY --clear-caches",
    "eugr/spark-vllm-docker#367",
    code="RUN-017",
)

EXPERTS = r"Using '?(?P<name>[A-Za-z0-9_ ]+?)'? (?P<kind>\w+) MoE backend"
"""The line in which vLLM names the kernel of the experts (vllm-project/vllm#31085)."""

DEGRADED = (TCP, EAGER, *SCALES, STALLED)
