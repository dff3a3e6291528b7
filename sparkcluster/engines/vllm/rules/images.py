"""Rules on images and drivers: whether the image runs on a GB10, supports the model, and fits the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.check import Seen
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


@rule("IMG-010", "The image is pinned", severity="info", source=f"{sources.VLLM_BLOG}; {sources.GUIDE}")
def moving(served: Served) -> Iterator[Seen]:
    """A tag that is reassigned may bring a different vLLM tomorrow; nightlies have broken clusters.

    Every release records the digest it ran with (`sparkcluster releases`), but a new node pulls the tag's current
    image. A registry may reassign any tag.
    """
    if served.moves or ("/" in served.image and "@" not in served.image):
        shown = "NAME@sha256:…; for an image from a registry, sparkcluster status shows it after the launch"
        remedy = f"write image: {served.digest or shown}"
        summary = "is reassigned to new builds" if served.moves else "may be reassigned: it is not a digest"
        yield served.say(IMAGE, f"the tag {served.tag or 'latest'} {summary}", remedy)


@rule(
    "IMG-013",
    "The image is in a registry, or on a node",
    source="https://github.com/eugr/spark-vllm-docker (build-and-copy.sh); a published build: "
    "https://github.com/spark-arena/recipe-registry/issues/13",
)
def local(served: Served) -> Iterator[Seen]:
    """`vllm-node` is the image that eugr/spark-vllm-docker builds locally: no registry has it.

    Build it on one node; `up` copies it to the others. Published builds have other names.
    """
    if served.image.startswith("vllm-node") and not served.present:
        remedy = "on one node: git clone https://github.com/eugr/spark-vllm-docker && cd spark-vllm-docker && "
        remedy += "./build-and-copy.sh"
        published = "or use ghcr.io/spark-arena/dgx-vllm-eugr-nightly, after a comparison"
        severity: Severity | None = None if served.asked else "info"
        yield served.say(IMAGE, "this image is not in a registry: build it first", remedy, published, severity=severity)


@rule("SM121-027", "The driver is new enough for the image", severity="warning", source=sources.GUIDE)
def forward(served: Served) -> Iterator[Seen]:
    """NGC's 25.12.post1 is built for driver 590.44; on an older driver it needs CUDA forward compatibility.

    Its log then has `CUDA Forward Compatibility mode ENABLED`. If it has `UNAVAILABLE`, the container exits
    immediately. It is known to work with driver 580 and newer.
    """
    if served.family != "ngc" or not served.tag.startswith("25.12.post1"):
        return
    for node, installed in served.drivers.items():
        driver = numbers(installed) or (590, 44)
        if driver < (590, 44):
            old = driver < (580,)
            summary = f"driver {installed} of {node} runs this image through forward compatibility"
            remedy = "sudo apt-get install -y nvidia-driver-580-open" if old else "look for ENABLED in its log"
            yield served.say(None, summary, remedy, severity=None if old else "info", node=node)


@rule("SM121-031", "Software is part of the image", severity="info", source=sources.GUIDE)
def installs(served: Served) -> Iterator[Seen]:
    """Packages that `setup` installs are downloaded at every start, and their version may change each time."""
    for index, line in enumerate(served.playbook.setup):
        if re.search(r"\b(pip3?|uv|apt|apt-get|conda)\b.{0,200}\binstall\b", line):
            summary = "setup installs software at every start"
            yield served.say(("setup", index), summary, "once it works, build an image that contains it")
