"""Rules on images and drivers: which image runs on a GB10, supports the model, and fits the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.engines.vllm.versions import dotted, numbers
from sparkcluster.findings import Severity

IMAGE = ("image",)
VENDORS = {
    "rocm": "AMD's GPUs", "xpu": "Intel's GPUs", "gaudi": "Intel's Gaudi", "hpu": "Intel's Gaudi",
    "tpu": "Google's TPUs", "neuron": "AWS Neuron",
}  # fmt: skip
_OTHER_VENDOR = re.compile(r"(?:^|[/:._-])(" + "|".join(VENDORS) + r")(?=\d|[/:._-]|$)")
LOADER = "/vllm/model_executor/models/gemma4.py"


@rule(
    "SM121-020",
    "The image is built for CUDA 13",
    source=f"{sources.GUIDE}; the default since 0.20: https://github.com/vllm-project/vllm/issues/42738",
)
def cuda(served: Served) -> Iterator[Seen]:
    """Release images of vLLM before 0.20 are built for CUDA 12, whose kernels a GB10 does not run.

    Builds with `cu130` in the tag do run, as do NGC's images and vLLM's own from 0.20 on.
    """
    release = served.family == "upstream" and served.since(0, 20) is False
    if served.spark and release and not served.reported and "cu13" not in served.tag and "gemma" not in served.tag:
        remedy = f"use {served.image}-cu130, an image from 0.20 on, or nvcr.io/nvidia/vllm"
        yield served.say(IMAGE, "this image is built for CUDA 12", remedy)


@rule("SM121-021", "Gemma 4 is served by the image for CUDA 13", severity="error", source=sources.GUIDE)
def gemma_image(served: Served) -> Iterator[Seen]:
    """The tag `gemma4` is a build of 0.18.2 that fails with `Failed to run cutlass FP4 gemm on sm120`."""
    if served.spark and served.family == "upstream" and served.tag == "gemma4":
        yield served.say(IMAGE, "this image crashes on a GB10", "write vllm/vllm-openai:gemma4-cu130")


@rule(
    "SM121-022",
    "The image's vLLM supports the model",
    severity="error",
    source=f"vllm/model_executor/models/registry.py of 0.15.1 to 0.32.0; {sources.GUIDE}",
)
def too_old(served: Served) -> Iterator[Seen]:
    """An older vLLM fails with `model type ... not recognized`."""
    model = served.model
    if model is None or model.needs is None or served.tag.startswith("gemma4"):
        return
    vision_alone = served.family == "ngc" and served.named("Nemotron 3 Nano Omni")  # SM121-023
    if served.since(*model.needs) is False and not vision_alone:
        needed = f"vLLM {dotted(model.needs)}"
        yield served.say(IMAGE, f"{model.name} needs {needed}", f"use an image with {needed} or newer")


@rule(
    "SM121-032",
    "The image is built for NVIDIA's GPUs",
    severity="error",
    source="docs.vllm.ai, Installation, GPU; https://rocm.docs.amd.com/projects/ai-ecosystem/en/latest/inference/vllm.html",
)
def vendor(served: Served) -> Iterator[Seen]:
    """Images for AMD (ROCm), Intel (XPU, Gaudi), TPU and Neuron have no kernels for a GB10, and most no ARM64 build."""
    found = _OTHER_VENDOR.search(served.image.lower())
    if served.spark and found:
        remedy = "use vllm/vllm-openai, or nvcr.io/nvidia/vllm"
        yield served.say(IMAGE, f"this image is built for {VENDORS[found[1]]}", remedy)


@rule("SM121-023", "Nemotron Omni has sound", source=f"NVIDIA's release notes of NGC 26.04, quoted in {sources.GUIDE}")
def omni(served: Served) -> Iterator[Seen]:
    """NGC 26.04 serves the Omni model as the older vision model, by `--hf-overrides`: without sound.

    vLLM 0.20.0, which its card names, supports all of it.
    """
    if served.named("Nemotron 3 Nano Omni") and served.family == "ngc" and served.since(0, 20) is False:
        remedy = "use vllm/vllm-openai:v0.20.0, with pip install vllm[audio] under setup"
        yield served.say(IMAGE, "this image serves the model without sound", remedy)


@rule("IMG-010", "The image is pinned", severity="info", source=f"{sources.VLLM_BLOG}; {sources.GUIDE}")
def moving(served: Served) -> Iterator[Seen]:
    """A tag that is reassigned brings another vLLM tomorrow; nightlies have broken clusters that worked.

    Every release records the digest it ran with (`sparkcluster releases`), but a new node pulls what the tag names now.
    A registry may reassign any tag.
    """
    if served.moves or ("/" in served.image and "@" not in served.image):
        shown = "NAME@sha256:…, which sparkcluster status shows once it serves, where a registry has the image"
        remedy = f"write image: {served.digest or shown}"
        summary = "is reassigned to new builds" if served.moves else "is not a digest: it may name another build"
        yield served.say(IMAGE, f"the tag {served.tag or 'latest'} {summary}", remedy)


@rule(
    "SM121-025",
    "The nightly is the current one",
    severity="warning",
    source="https://github.com/vllm-project/vllm/issues/42738; used in June 2026 by " + sources.VLLM_BLOG,
)
def stale_nightly(served: Served) -> Iterator[Seen]:
    """`cu130-nightly` is deprecated since 0.20, from which on plain images are built for CUDA 13; it stayed at 0.19.

    vLLM's maintainers say so. Recipes of June 2026 still name it, and a guide takes it for 0.23.
    """
    if served.family == "upstream" and served.tag == "cu130-nightly" and not served.reported:
        yield served.say(
            IMAGE, "cu130-nightly is deprecated, and may be vLLM 0.19", "use vllm/vllm-openai:v0.28.0, or nightly"
        )


@rule(
    "IMG-013",
    "The image is in a registry, or on a node",
    source="https://github.com/eugr/spark-vllm-docker (build-and-copy.sh); a published build: "
    "https://github.com/spark-arena/recipe-registry/issues/13",
)
def local(served: Served) -> Iterator[Seen]:
    """`vllm-node` is the name that eugr/spark-vllm-docker gives to the image that it builds: no registry has it.

    It is built on one node; `up` copies it to the others. Published builds have other names.
    """
    if served.image.startswith("vllm-node") and not served.present:
        remedy = "on one node: git clone https://github.com/eugr/spark-vllm-docker && cd spark-vllm-docker && "
        remedy += "./build-and-copy.sh"
        published = "or use ghcr.io/spark-arena/dgx-vllm-eugr-nightly, after a comparison"
        severity: Severity | None = None if served.asked else "info"
        yield served.say(
            IMAGE, "this image is in no registry: it has to be built", remedy, published, severity=severity
        )


@rule("SM121-027", "The driver is the one that the image was built for", severity="warning", source=sources.GUIDE)
def forward(served: Served) -> Iterator[Seen]:
    """NGC's 25.12.post1 is built for driver 590.44; on an older one it needs CUDA forward compatibility.

    Its log then says `CUDA Forward Compatibility mode ENABLED`. If it says `UNAVAILABLE`, the container exits at once.
    It is known to work from 580 on.
    """
    if served.family != "ngc" or not served.tag.startswith("25.12.post1"):
        return
    for node, installed in served.drivers.items():
        driver = numbers(installed) or (590, 44)
        if driver < (590, 44):
            old = driver < (580,)
            summary = f"driver {installed} of {node} runs this image by forward compatibility"
            remedy = "sudo apt-get install -y nvidia-driver-580-open" if old else "look for ENABLED in its log"
            yield served.say(None, summary, remedy, severity=None if old else "info", node=node)


@rule("SM121-028", "The image supports mixed precision", severity="error", source=sources.GUIDE)
def mixed(served: Served) -> Iterator[Seen]:
    """NGC 26.02 and older refuse checkpoints that mix FP8 with NVFP4 (`MIXED_PRECISION` in config.json)."""
    if served.mixed and served.family == "ngc" and served.since(0, 15, 2) is False:
        yield served.say(IMAGE, "this image refuses mixed FP8 and NVFP4", "use NGC 26.03 or newer")


@rule(
    "SM121-029",
    "The scales of Gemma 4's experts are loaded",
    severity="error",
    source=f"https://github.com/vllm-project/vllm/issues/38912; {sources.GUIDE}",
)
def loader(served: Served) -> Iterator[Seen]:
    """The Gemma 4 loader of vLLM 0.19 does not have the experts' scales: `KeyError: ...down_proj.input_scale`.

    bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4 has a corrected gemma4.py, to be mounted over the image's own.
    """
    mounted = any(mount.target.endswith(LOADER) for mount in served.playbook.mounts)
    mounted = mounted or any(LOADER in line for line in served.playbook.setup)
    old = served.since(0, 20) is False
    if served.named("Gemma 4 26B-A4B") and served.weights == "nvfp4" and old and not mounted:
        target = f"/usr/local/lib/python3.12/dist-packages{LOADER}"
        remedy = f"mount the checkpoint's gemma4_patched.py at {target}"
        yield served.say(("mounts",), "this image cannot load these experts", remedy)


@rule("SM121-030", "The image has Ray if executor is ray", severity="info", source=sources.GUIDE)
def ray(served: Served) -> Iterator[Seen]:
    """NGC's images from 26.04 and vLLM's from 0.19 have no Ray: `ray: command not found`.

    sparkcluster stages a pinned one on every node; `executor: native` needs none.
    """
    without = served.released and served.since(0, 19)
    if served.playbook.executor == "ray" and served.nodes > 1 and without and not served.reported:
        summary = "this image has no Ray: a pinned one is staged with it"
        yield served.say(("executor",), summary, "write executor: native to run without Ray")


@rule("SM121-031", "Software is part of the image", severity="info", source=sources.GUIDE)
def installs(served: Served) -> Iterator[Seen]:
    """What `setup` installs is downloaded at every start, and may be another version each time."""
    for index, line in enumerate(served.playbook.setup):
        if re.search(r"\b(pip3?|uv|apt|apt-get|conda)\b.{0,200}\binstall\b", line):
            summary = "setup installs software at every start"
            yield served.say(("setup", index), summary, "build an image that has it, once it works")
