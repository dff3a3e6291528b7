"""Rules on images and drivers: which image runs on a GB10, knows the model, and fits the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.engines.vllm.versions import numbers as numbers_of

LOADER = "/vllm/model_executor/models/gemma4.py"


@rule(
    "SM121-020",
    "The image is built for CUDA 13",
    source=f"{sources.GUIDE}; the default since 0.20: https://github.com/vllm-project/vllm/issues/42738",
)
def cuda(served: Served) -> Iterator[Seen]:
    """Release images of vLLM before 0.20 are built for CUDA 12, whose kernels a GB10 does not run.

    Their builds with `cu130` in the tag do, as do NGC's images and vLLM's own from 0.20 on.
    """
    release = served.family == "upstream" and served.since(0, 20) is False
    if served.spark and release and not served.asked and "cu13" not in served.tag and "gemma" not in served.tag:
        remedy = f"take {served.image}-cu130, an image from 0.20 on, or nvcr.io/nvidia/vllm"
        yield served.say("warning", ("image",), "this image is built for CUDA 12", remedy)


@rule("SM121-021", "Gemma 4 is served by the image for CUDA 13", severity="error", source=sources.GUIDE)
def gemma_image(served: Served) -> Iterator[Seen]:
    """The tag `gemma4` is a build of 0.18.2 that ends with `Failed to run cutlass FP4 gemm on sm120`."""
    if served.spark and served.family == "upstream" and served.tag == "gemma4":
        yield served.say("error", ("image",), "this image crashes on a GB10", "write vllm/vllm-openai:gemma4-cu130")


@rule(
    "SM121-022",
    "The image's vLLM knows the model",
    severity="error",
    source=f"vllm/model_executor/models/registry.py of 0.15.1 to 0.32.0; {sources.GUIDE}",
)
def too_old(served: Served) -> Iterator[Seen]:
    """An older vLLM ends with `model type ... not recognized`."""
    needs = served.model.needs if served.model else None
    if needs and served.model and served.since(*needs) is False and not served.tag.startswith("gemma4"):
        wanted = ".".join(map(str, needs))
        remedy = f"take an image with vLLM {wanted} or newer"
        if served.family != "ngc" or not served.named("Nemotron 3 Nano Omni"):
            yield served.say("error", ("image",), f"{served.model.name} needs vLLM {wanted}", remedy)


@rule("SM121-023", "Nemotron Omni hears", source=f"NVIDIA's release notes of NGC 26.04, as told in {sources.GUIDE}")
def omni(served: Served) -> Iterator[Seen]:
    """NGC 26.04 serves the Omni model as the older vision model alone, by `--hf-overrides`: without sound.

    vLLM 0.20.0, which its card names, has the whole of it.
    """
    if served.named("Nemotron 3 Nano Omni") and served.family == "ngc" and served.since(0, 20) is False:
        summary = "this image serves the model without sound"
        remedy = "take vllm/vllm-openai:v0.20.0, with pip install vllm[audio] under setup"
        yield served.say("warning", ("image",), summary, remedy)


@rule("IMG-010", "The image is pinned", severity="info", source=f"{sources.VLLM_BLOG}; {sources.GUIDE}")
def moving(served: Served) -> Iterator[Seen]:
    """A tag that moves brings another vLLM tomorrow; nightlies have broken clusters that worked.

    Every release records the digest it ran with, so `rollback` finds it again; a new node would not.
    """
    if served.moves:
        remedy = f"write image: {served.digest or 'NAME@sha256:…, which sparkcluster status shows once it serves'}"
        yield served.say("info", ("image",), f"the tag {served.tag or 'latest'} is given to new builds", remedy)


@rule(
    "SM121-025",
    "The nightly is the one that moves",
    severity="info",
    source="https://github.com/vllm-project/vllm/issues/42738; used in June 2026 by " + sources.VLLM_BLOG,
)
def stale_nightly(served: Served) -> Iterator[Seen]:
    """Since 0.20 plain nightlies are built for CUDA 13, and `cu130-nightly` was seen to stand still at 0.19.

    Sources disagree: recipes of June 2026 still name it and a guide takes it for 0.23.
    """
    if served.family == "upstream" and served.tag == "cu130-nightly" and not served.asked:
        summary = "cu130-nightly may be older than it sounds"
        yield served.say("info", ("image",), summary, "compare with vllm/vllm-openai:nightly")


@rule("SM121-027", "The driver is what the image was built for", severity="warning", source=sources.GUIDE)
def forward(served: Served) -> Iterator[Seen]:
    """NGC's 25.12.post1 is built for driver 590.44; an older one runs it by CUDA's forward compatibility.

    Its log then says `CUDA Forward Compatibility mode ENABLED`. Where it says `UNAVAILABLE` the container ends at
    once. It is known to work from 580 on.
    """
    if served.family != "ngc" or not served.tag.startswith("25.12.post1"):
        return
    for node, installed in served.drivers.items():
        numbers = numbers_of(installed) or ()
        if numbers and numbers < (590, 44):
            old = numbers < (580,)
            summary = f"driver {installed} of {node} runs this image by forward compatibility"
            remedy = "sudo apt-get install -y nvidia-driver-580-open" if old else "look for ENABLED in its log"
            yield served.say("warning" if old else "info", None, summary, remedy, node=node)


@rule("SM121-028", "The image loads mixed precision", severity="error", source=sources.GUIDE)
def mixed(served: Served) -> Iterator[Seen]:
    """NGC 26.02 and older refuse checkpoints that mix FP8 with NVFP4 (`MIXED_PRECISION` in config.json)."""
    if served.mixed and served.family == "ngc" and served.since(0, 15, 2) is False:
        yield served.say("error", ("image",), "this image refuses mixed FP8 and NVFP4", "take NGC 26.03 or newer")


@rule(
    "SM121-029",
    "Gemma 4's experts find their scales",
    severity="error",
    source=f"https://github.com/vllm-project/vllm/issues/38912; {sources.GUIDE}",
)
def loader(served: Served) -> Iterator[Seen]:
    """The loader of Gemma 4 in vLLM 0.19 does not know the experts' scales: `KeyError: ...down_proj.input_scale`.

    bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4 brings a corrected gemma4.py, to be mounted over the image's own.
    """
    old = served.since(0, 20) is False
    mounted = any(mount.target.endswith(LOADER) for mount in served.playbook.mounts)
    mounted = mounted or any(LOADER in line for line in served.playbook.setup)
    if served.named("Gemma 4 26B-A4B") and served.weights == "nvfp4" and old and not mounted:
        target = f"/usr/local/lib/python3.12/dist-packages{LOADER}"
        remedy = f"mount the checkpoint's gemma4_patched.py at {target}"
        yield served.say("error", ("mounts",), "this image cannot load these experts", remedy)


@rule("SM121-030", "Ray is there where it is asked for", severity="info", source=sources.GUIDE)
def ray(served: Served) -> Iterator[Seen]:
    """NGC's images from 26.04 and vLLM's from 0.19 hold no Ray: `ray: command not found`.

    sparkcluster brings a pinned one to every node; `executor: native` needs none.
    """
    without = served.family in {"ngc", "upstream"} and served.since(0, 19)
    if served.playbook.executor == "ray" and served.nodes > 1 and without and not served.asked:
        summary = "this image holds no Ray, so a pinned one is staged with it"
        yield served.say("info", ("executor",), summary, "write executor: native to do without")


@rule("SM121-031", "Software comes with the image", severity="info", source=sources.GUIDE)
def installs(served: Served) -> Iterator[Seen]:
    """What `setup` installs comes from the internet at every start, and may be another version each time."""
    for index, line in enumerate(served.playbook.setup):
        if re.search(r"\b(pip3?|uv|apt|apt-get|conda)\b.*\binstall\b", line):
            summary = "setup installs software at every start"
            yield served.say("info", ("setup", index), summary, "build an image that has it, once it works")
