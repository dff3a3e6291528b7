"""How causes show in the logs of engines that did not come up, with the public threads that have them.

Those that name a root come before those that name its consequence: no memory, then no worker, then no engine.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank ended, in one line, and what mends it (None where nothing better than the log is known)."""

    summary: str
    hint: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """How one cause shows in a log.

    Attributes:
        name: short and stable.
        pattern: searched for in single lines, the last match counts.
        summary: what it means; names of the pattern's groups in braces.
        hint: what mends it; likewise.
        source: public thread that has the line.
    """

    name: str
    pattern: str
    summary: str
    hint: str | None
    source: str
    more: Callable[[re.Match[str], Sequence[str]], Cause] | None = None

    def match(self, lines: Sequence[str]) -> Cause | None:
        """The cause when one of ``lines`` shows it."""
        for line in reversed(lines):
            found = re.search(self.pattern, line)
            if found is None:
                continue
            if self.more is not None:
                return self.more(found, lines)
            values = {name: value if value is not None else "?" for name, value in found.groupdict().items()}
            return Cause(self.summary.format(**values), self.hint.format(**values) if self.hint else None)
        return None


# Flags that playbooks use, to guess at what a misspelt one was meant to be (vLLM 0.32, `vllm serve --help`).
_FLAGS = re.findall(
    r"\S+",
    """
    attention-backend chat-template data-parallel-size distributed-executor-backend dtype
    enable-auto-tool-choice enable-chunked-prefill enable-expert-parallel enable-prefix-caching
    enforce-eager gpu-memory-utilization headless host kv-cache-dtype limit-mm-per-prompt load-format
    master-addr master-port max-model-len max-num-batched-tokens max-num-seqs mm-encoder-tp-mode
    moe-backend nnodes node-rank pipeline-parallel-size port quantization reasoning-parser revision
    safetensors-load-strategy seed served-model-name speculative-config swap-space tensor-parallel-size
    tokenizer tool-call-parser trust-remote-code
    """,
)


def _argument(found: re.Match[str], _lines: Sequence[str]) -> Cause:
    flags = [word for word in found["what"].split() if word.startswith("-")] or found["what"].split()
    flag = flags[0].split("=")[0]
    name = flag.lstrip("-").replace("_", "-")
    close = [one for one in difflib.get_close_matches(name, _FLAGS, n=1, cutoff=0.75) if one != name]
    meant = f"write {close[0]}" if close else f"remove {name}"
    return Cause(
        f"this vLLM does not know the argument {flag}",
        f"{meant} under args in the playbook, or take an image whose vLLM has it",
    )


def _versions(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    told = [match for line in lines if (match := re.search(r"\b(Ray|Python): ([\w.]+)", line))]
    parts = [f"{match[1]} {match[2]}" for match in told[-4:]]
    seen = f": the head has {' and '.join(parts[:2])}, this rank {' and '.join(parts[2:])}" if len(parts) == 4 else ""
    return Cause(
        f"Ray or Python differ between the ranks{seen}",
        "the nodes run different images: sparkcluster stage INVENTORY image",
    )


def _actor(_found: re.Match[str], lines: Sequence[str]) -> Cause:
    places = [match[1] for line in lines if (match := re.search(r"^\W*(?:\(.*\)\s*)?ip: ([\d.]+)", line))]
    where = f" on {places[-1]}" if places else ""
    return Cause(
        f"a worker process{where} died",
        "its own log or the kernel's says why: sparkcluster logs INVENTORY NODE, and sudo dmesg on that node",
    )


def _port(port: str | None) -> Cause:
    if port is None:
        return Cause("a port is taken", "who holds it: sudo ss -ltnp on that node")
    return Cause(f"port {port} is taken", f"who holds it: sudo ss -ltnp 'sport = :{port}' on that node")


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
    Signature("argument", r"unrecognized arguments: (?P<what>.+)", "", None, "vllm-project/vllm#42399", _argument),
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
        _versions,
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
    ),
    Signature(
        "kv-cache-none",
        r"No available memory for the cache blocks",
        "the model leaves no memory for the KV cache",
        "raise gpu-memory-utilization (up to 0.90 on a Spark), or spread the model over more nodes",
        "vllm-project/vllm#17431",
    ),
    Signature(
        "kv-cache-small",
        r"max seq len \((?P<length>\d+)\), \(?(?P<need>[\d.]+ GiB) KV cache is needed, which is larger than"
        r" the available KV cache memory \((?P<have>[\d.]+ GiB)\)"
        r"(?:.*estimated maximum model length is (?P<fits>\d+))?",
        "max-model-len {length} needs {need} of KV cache and {have} are there",
        "set max-model-len to {fits} or less in the playbook, or raise gpu-memory-utilization",
        "vllm-project/vllm#34076",
    ),
    Signature(
        "cuda-oom",
        r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|NV_ERR_NO_MEMORY",
        "the GPU ran out of the memory that it shares with the host",
        MEMORY_HINT,
        "NVIDIA/dgx-spark-playbooks#97",
    ),
    # ports
    Signature(
        "port-busy",
        r"(?:bind on address \('[^']+', (?P<port>\d+)|local network address.*?port: (?P<store>\d+))"
        r".*(?i:address already in use)",
        "",
        None,
        "vllm-project/vllm#7514",
        lambda found, _: _port(found["port"] or found["store"]),
    ),
    Signature(
        "port-busy",
        r"(?i)address already in use|port is already allocated|EADDRINUSE",
        "",
        None,
        "vllm-project/vllm#11617",
        lambda _found, _lines: _port(None),
    ),
    # the interconnect
    Signature(
        "gid",
        r"ibv_modify_qp failed with (?:error )?(?P<why>[^,\n]+)(?:, on dev (?P<dev>[\w]+))?",
        "NCCL could not connect a queue pair on {dev} ({why}): the GID it used is not there",
        "the GID table moved since the plan was made; run up again, and see sparkcluster plan INVENTORY",
        "NVIDIA/nccl#1657",
    ),
    Signature(
        "memlock",
        r"ibv_reg_mr\w* failed[^\n]*Cannot allocate memory|ibv_create_cq failed[^\n]*Cannot allocate memory",
        "RDMA memory could not be pinned: the memlock limit is too low, or too little memory is truly free",
        "containers need --ulimit memlock=-1; if they have it, free the page cache: echo 3 | sudo tee"
        " /proc/sys/vm/drop_caches",
        "NVIDIA/nccl-tests#206",
    ),
    Signature(
        "rdma-device",
        r"Unable to open device (?P<dev>\w+)|ibv_open_device failed",
        "the container cannot open the RDMA device",
        "the node needs /dev/infiniband in the container: see sparkcluster plan INVENTORY",
        "NVIDIA/nccl#451",
    ),
    Signature(
        "interface",
        r"(?:Unable to find (?:address|interface) (?:for|matching|with)|no socket interface found)"
        r"[^\w]*(?P<name>[\w.-]*)",
        "an interface that the plan names is not there or has no address: {name}",
        "see sparkcluster plan INVENTORY; a cable pulled out also takes its interface away",
        "vllm-project/vllm#40991",
    ),
    Signature(
        "store",
        r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<have>\d+)/(?P<all>\d+) clients",
        "only {have} of {all} ranks met within {seconds} s",
        "the ranks do not reach each other: sparkcluster plan INVENTORY looks at address, MTU, firewall",
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
        "see sparkcluster plan INVENTORY; GLOO_SOCKET_IFNAME must name the interconnect on every node",
        "gpustack/gpustack#2125",
    ),
    # the GPU
    Signature(
        "gpu-lost",
        r"Failed to initialize NVML: Unknown Error|NVML: Unknown Error",
        "the container lost its GPU, as after systemctl daemon-reload or with a stale CDI specification",
        "on that node: sudo systemctl restart nvidia-cdi-refresh, then up again",
        "NVIDIA/nvidia-container-toolkit#48",
    ),
    Signature(
        "gpu-driver",
        r"nvml error: driver not loaded|could not select device driver|No CUDA GPUs are available"
        r"|no CUDA-capable device is detected|Found no NVIDIA driver|CUDA driver version is insufficient",
        "no GPU can be used there: driver, its kernel modules or the container toolkit are missing",
        "on that node: nvidia-smi, and docker run --rm --gpus all ubuntu nvidia-smi",
        "NVIDIA/nvidia-docker#1730",
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
    ),
    Signature(
        "nccl",
        r"NCCL error(?:: | in: )(?P<what>.{1,120})|(?P<kind>nccl\w*Error): .*",
        "NCCL failed",
        "run up with NCCL_DEBUG: INFO under env in the playbook to see which device and address",
        "NVIDIA/nccl#834",
    ),
    Signature(
        "worker-died",
        r"ActorDiedError|RayActorError|WorkerCrashedError|[Ww]orker proc(?:ess)? .* died unexpectedly"
        r"|ActorUnavailableError|NodeDiedError",
        "",
        None,
        "Simple-Efficient/RL-Factory#8",
        _actor,
    ),
    Signature(
        "engine-dead",
        r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)|Engine core initialization failed"
        r"|EngineCore failed to start",
        "the engine died; its API may live on and still answer /health",
        "the reason stands further up in its log: sparkcluster logs INVENTORY",
        "vllm-project/vllm#53157",
    ),
)

# Not fatal by itself, so it is asked only where nothing else explains an end.
TCP = Signature(
    "tcp",
    r"Using network Socket|NET/IB : No device found",
    "NCCL fell back from RDMA to TCP before that",
    "see sparkcluster plan INVENTORY: /dev/infiniband, memlock and the HCA list",
    "NVIDIA/nccl#941",
)
