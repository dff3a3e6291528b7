"""The image, the architectures it supports, and the weights: complete and of the same revision on every node."""

from __future__ import annotations

import re

import pytest

from sparkcluster import checks, topology
from sparkcluster.facts.base import Unread
from sparkcluster.facts.weights import Foreign, Weights

from .conftest import reported

FOLDER = "models--Qwen--Qwen3-8B"

BOTH = pytest.mark.parametrize("name", ["alpha", "beta"])
FLAGS = ("enable-auto-tool-choice", "max-model-len", "no-enable-prefix-caching", "enable-prefix-caching", "kv-cache-dtype",
         "compilation-config", "tool-call-parser", "reasoning-parser", "tool-parser-plugin")  # fmt: skip


@pytest.fixture
def image(spark):
    """The plain image with changes; ``inside`` is merged key by key."""

    def make(inside=None, **changes):
        own = spark().image.model_copy(update=changes)
        if inside is not None:
            own = own.model_copy(update={"inside": own.inside.model_copy(update=inside)})
        return {"image": own}

    return make


def knowing(image, names=("alpha", "beta"), **inside):
    return {name: image(inside={"flags": FLAGS, **inside}) for name in names}


def test_the_heads_image_is_the_reference_and_a_different_image_is_reported(see, image):
    other = image(id="sha256:" + "77" * 32, layers=("sha256:88",))
    (finding,) = see({"b": other}, names=("a", "b", "c"))
    assert reported([finding]) == [("IMG-001", "error", "b")]
    assert finding.remedy == ("docker rmi --force vllm/vllm-openai:v0.18.0", "sparkcluster stage INVENTORY image")
    assert reported(see({"alpha": other})) == [("IMG-001", "error", "beta")]


def test_containerds_store_may_have_several_ids_for_one_image(see, spark, image):
    store = {"docker": spark().docker.model_copy(update={"containerd_store": True})}
    other = image(id="sha256:" + "77" * 32)
    assert see({"beta": {**other, **store}}) == []
    changed = image(id="sha256:" + "77" * 32, config_sum="0badcafe")
    assert reported(see({"beta": {**changed, **store}})) == [("IMG-001", "error", "beta")]
    assert reported(see({"alpha": store, "beta": {**image(layers=("sha256:88",), id="x"), **store}})) == [
        ("IMG-001", "error", "beta")
    ]


def test_an_absent_or_unqueried_image_is_an_info_finding(see, image):
    (absent,) = see({"beta": {"image": None}})
    assert reported([absent]) == [("IMG-009", "info", "beta")]
    assert "are unknown" in absent.seen


@pytest.mark.parametrize(
    ("said", "told_as"),
    [
        ("no answer within 60 s: docker", ("IMG-009", "warning", "beta")),
        ("neither python3 nor python starts in the image", ("IMG-003", "error", "beta")),
    ],
)
def test_an_image_that_timed_out_is_not_reported_as_lacking_python(see, image, said, told_as):
    silent = image()["image"].model_copy(update={"inside": Unread(unread=said)})
    assert reported(see({"beta": {"image": silent}})) == [told_as]


def test_an_image_for_another_architecture_is_not_also_reported_as_lacking_python(see, image):
    silent = Unread(unread="neither python3 nor python starts in the image")
    foreign = image()["image"].model_copy(update={"architecture": "amd64", "inside": silent})
    assert reported(see({"beta": {"image": foreign}})) == [("IMG-002", "error", "beta")]


def test_an_image_or_a_python_without_the_engine(see, image):
    (finding,) = see({"beta": image(inside={"version": None})})
    assert reported([finding]) == [("IMG-003", "error", "beta")]
    own = {"image": None, "engine": Unread(unread="no vLLM")}
    findings = see({"me": own}, names=("me",), runtime={"kind": "process"}, playbook={"image": None})
    assert reported(findings) == [("IMG-003", "error", "me")]


def test_ray_without_a_token_needs_a_compiler_to_bind_to_the_interconnect(see, image):
    old = {name: image(inside={"ray_version": "2.51.1"}) for name in ("alpha", "beta")}
    compiled = {name: {**own, "compiler": "/usr/bin/cc"} for name, own in old.items()}
    assert {(each.code, each.severity) for each in see(compiled)} == {("IMG-004", "warning")}
    built = image(inside={"ray_version": "2.51.1", "compiler": True})
    (error,) = [each for each in see({**old, "beta": built}) if each.severity == "error"]
    assert reported([error]) == [("IMG-004", "error", "alpha")]
    assert "sudo apt-get install gcc" in error.remedy


def test_flags_that_the_image_supports(see, image):
    args = {"max-model-len": 1, "kv_cache_dtype": 1, "compilation-config.mode": 1}
    assert see(knowing(image), playbook={"args": args}) == []


def test_a_flag_that_the_image_does_not_support(see, image):
    (finding,) = see(knowing(image), playbook={"args": {"max-modell-len": 4096, "kv-cache-dtype": "fp8"}})
    assert reported([finding]) == [("IMG-007", "error", None)]
    assert "write max-model-len instead of max-modell-len" in finding.remedy[0]


def test_flags_of_a_custom_command_are_not_checked(see, image):
    assert see(knowing(image), playbook={"args": {"nonsense": None}}) == []


@pytest.mark.parametrize(
    ("flag", "field"), [("tool-call-parser", "tool_parsers"), ("reasoning_parser", "reasoning_parsers")]
)
def test_a_parser_that_the_image_does_not_support(see, image, flag, field):
    known = knowing(image, **{field: ("hermes", "qwen3_coder")})
    (finding,) = see(known, playbook={"args": {flag: "qwen3_code"}})
    assert reported([finding]) == [("IMG-007", "error", None)]
    assert "qwen3_coder" in finding.remedy[0]
    assert see(known, playbook={"args": {flag: "hermes"}}) == []
    assert see(knowing(image), playbook={"args": {flag: "qwen3_code"}}) == []


def test_ray_is_added_to_an_image_without_it(see, image):
    without = {name: image(inside={"ray_version": None}) for name in ("alpha", "beta")}
    assert reported(see(without)) == [("IMG-006", "info", "alpha"), ("IMG-006", "info", "beta")]
    assert see(without, playbook={"executor": "native"}) == []
    brought = {name: {**finding, "rays": ("2.60.0-cp312-linux_aarch64",)} for name, finding in without.items()}
    assert see(brought) == []
    assert see({"solo": without["alpha"]}, names=("solo",)) == []


def process(spark, **changes):
    inside = spark().image.inside.model_copy(update=changes)
    return {"image": None, "engine": inside}


@BOTH
@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"version": "0.17.0"}, "error"),
        ({"torch_version": "2.8.0"}, "warning"),
    ],
)
def test_different_engines_on_nodes_without_containers(see, spark, name, changes, severity):
    own = {node: process(spark, torch_version="2.9.0") for node in ("alpha", "beta")}
    own[name] = process(spark, **{"torch_version": "2.9.0", **changes})
    findings = see(own, runtime={"kind": "process"}, playbook={"image": None})
    assert reported(findings) == [("IMG-005", severity, name)]


FILES = ({"name": "config.json", "size_bytes": 900}, {"name": "model.safetensors", "size_bytes": 5_000_000_000},
         {"name": "tokenizer.json", "size_bytes": 70}, {"name": "README.md", "size_bytes": 10})  # fmt: skip


def weights(**changes):
    return {"weights": Weights.model_validate({"path": "/w", "revision": "r1" * 20, "files": FILES, **changes})}


def everywhere(*names):
    return {name: weights() for name in names or ("alpha", "beta")}


def sized(**sizes):
    return tuple({"name": name.replace("_", "."), "size_bytes": size} for name, size in sizes.items())


@BOTH
def test_truncated_or_missing_weights(see, name):
    broken = weights(missing=["a.safetensors", "b.safetensors"], truncated=["model.safetensors", "c"])
    (finding,) = see({**everywhere(), name: broken})
    assert reported([finding]) == [("MDL-001", "error", name)]
    assert finding.seen.startswith("a.safetensors is missing; b.safetensors is missing; model.safetensors is truncated")
    assert "and 1 more" in finding.seen
    assert finding.remedy == ("sparkcluster stage INVENTORY weights",)


def test_a_model_path_that_exists_on_no_node_is_an_error(see):
    absent = {name: {"weights": Weights(path=None)} for name in ("alpha", "beta")}
    model = {"model": {"path": "/models/my own"}}
    (finding,) = see(absent, playbook=model)
    assert reported([finding]) == [("MDL-001", "error", None)]
    assert finding.remedy[0] == "rsync -a DIRECTORY/ 'nvidia@192.168.86.11:/models/my own/'"
    assert reported(see({**absent, "beta": weights()}, playbook=model)) == [("MDL-001", "info", "alpha")]


def test_unreadable_weights_are_reported_as_unread(see):
    findings = see({**everywhere(), "beta": {"weights": Unread(unread="permission denied: /w")}})
    assert reported(findings) == [("FACT-001", "warning", "beta"), ("MDL-001", "error", "beta")]
    denied = next(finding for finding in findings if finding.code == "MDL-001")
    assert denied.remedy[0] == "sudo chown -R nvidia /w"
    late = see({**everywhere(), "beta": {"weights": Unread(unread="no answer within 10 s: /w")}})
    assert reported(late) == [("FACT-001", "warning", "beta")]


def test_different_revisions(see):
    other = weights(revision="r2" * 20)
    (finding,) = see({**everywhere("a", "b", "c"), "b": other}, names=("a", "b", "c"))
    assert reported([finding]) == [("MDL-003", "error", "b")]
    assert reported(see({"alpha": other, "beta": weights()})) == [("MDL-003", "error", "beta")]


@BOTH
def test_weights_of_different_sizes(see, name):
    other = weights(files=sized(config_json=900, model_safetensors=4_999_999_999, tokenizer_json=70))
    own = {**everywhere("alpha", "beta", "gamma"), name: other}
    (finding,) = see(own, names=("alpha", "beta", "gamma"))
    assert reported([finding]) == [("MDL-003", "error", name)]
    assert "model.safetensors has 4999999999 bytes, 5000000000 elsewhere" in finding.seen
    assert finding.remedy == ("sparkcluster stage INVENTORY weights --verify",)


def test_differing_small_files_are_a_warning_unless_the_engine_does_not_read_them(see):
    other = weights(files=(*FILES[:2], {"name": "tokenizer.json", "size_bytes": 71}, FILES[3]))
    assert reported(see({**everywhere(), "beta": other})) == [("MDL-003", "warning", "beta")]
    other = weights(files=(*FILES[:3], {"name": "README.md", "size_bytes": 4000}))
    assert see({**everywhere(), "beta": other}) == []


@pytest.mark.parametrize(
    ("uid", "runtime", "severity", "owner"),
    [(0, "docker", "info", "root"), (0, "process", "warning", "root"), (1234, "docker", "error", "user ID 1234")],
)
def test_an_unwritable_cache_is_reported_before_staging(see, uid, runtime, severity, owner):
    absent = {
        "weights": Weights(path=None, foreign=Foreign(path="/h f/hub/models--x/blobs", uid=uid)),
        "hf_home": "/h f",
    }
    found = see({**everywhere(), "beta": absent}, runtime={"kind": runtime})
    (finding,) = [each for each in found if each.code == "HOST-031"]
    assert (finding.severity, finding.node, finding.seen) == (severity, "beta", f"it belongs to {owner}")
    folders = " ".join(f"'/h f/hub{place}/{FOLDER}'" for place in ("", "/.locks"))
    by_hand = f"sudo chown -R --from={uid} nvidia: {folders}"
    up = "sparkcluster up INVENTORY   changes the owner"
    assert finding.remedy == (up if (uid, runtime) == (0, "docker") else by_hand,)
    assert finding.step == (None if uid else "hf-cache")


def test_a_missing_cache_on_a_root_owned_disk_is_created_and_not_its_parent(see):
    """The remedy used to be `sudo chown -R USER /` if hf_home was on a missing disk."""
    absent = Weights(path=None, foreign=Foreign(path="/h f", uid=0, missing=True))
    found = see({**everywhere(), "beta": {"weights": absent, "hf_home": "/h f"}}, runtime={"kind": "process"})
    (finding,) = [each for each in found if each.code == "HOST-031"]
    assert (finding.remedy, finding.step) == (("sudo install -d -o nvidia '/h f'",), None)


def test_no_free_space_for_missing_weights(see, spark):
    small = tuple(
        disk.model_copy(update={"free_bytes": 4 * 10**9}) if disk.purpose == "hf_home" else disk
        for disk in spark().disks
    )
    absent = {"weights": Weights(path=None), "disks": small}
    assert reported(see({**everywhere(), "beta": absent})) == [
        ("HOST-028", "error", "beta"),
        ("MDL-001", "info", "beta"),
    ]


@pytest.mark.parametrize(
    ("model", "image", "free_gb", "severity", "seen"),
    [
        ("openai/gpt-oss-120b", True, 37, "error", ", 65.3 GB needed"),
        ("openai/gpt-oss-120b", True, 66, None, ""),
        ("openai/gpt-oss-120b", False, 80, "warning", "65.3 GB and about 25.0 GB (an estimate) needed"),
        ("openai/gpt-oss-120b", False, 91, None, ""),
        ("Qwen/Qwen3-Coder-Next-FP8", True, 37, "error", "about 82.0 GB (an estimate) needed"),
        ("Qwen/Qwen3-Coder-Next-FP8", True, 80, "warning", "about 82.0 GB"),
        ("nobody/knows-this", True, 2, None, ""),
    ],
)
def test_missing_weights_and_image_are_counted_together_on_a_shared_disk(
    see, spark, model, image, free_gb, severity, seen
):
    """Three paths on one file system; sizes are the recorded one of the model and an estimate of the image."""
    shared = tuple(disk.model_copy(update={"free_bytes": free_gb * 10**9}) for disk in spark().disks)
    absent = {"weights": Weights(path=None), "disks": shared, **({} if image else {"image": None})}
    findings = see({"me": absent}, names=("me",), playbook={"model": {"id": model}})
    found = [each for each in findings if each.code.startswith("HOST")]
    assert reported(found) == ([("HOST-028", severity, "me")] if severity else [])
    assert all(seen in each.seen for each in found)


INSTALL = "RUN apt-get update && apt-get install -y libibverbs1 ibverbs-providers"


@pytest.mark.parametrize("verdict", ["no libibverbs", "no mlx5"])
def test_an_image_without_rdma_libraries_is_an_error_on_nodes_with_hcas(see, image, verdict):
    both = {name: image(inside={"verbs": verdict}, user="vllm") for name in ("alpha", "beta")}
    (finding,) = see(both)
    assert reported([finding]) == [("IMG-011", "error", None)]
    assert finding.seen == "vllm/vllm-openai:v0.18.0 on alpha and beta"
    assert finding.remedy[0] == (
        f"printf '%s\\n' 'FROM vllm/vllm-openai:v0.18.0' 'USER root' '{INSTALL}' 'USER vllm'"
        " | docker build --tag vllm-openai-v0-18-0:rdma -"
    )
    assert finding.remedy[1].startswith("set image: vllm-openai-v0-18-0:rdma in the playbook, then ")
    assert see({"me": both["alpha"]}, names=("me",)) == []
    assert see({name: image(inside={"verbs": "yes"}) for name in both}) == []


RING = {
    "a": {"enp1s0f0np0": "10.0.1.1/24", "enp1s0f1np1": "10.0.3.1/24"},
    "b": {"enp1s0f0np0": "10.0.2.2/24", "enp1s0f1np1": "10.0.1.2/24"},
    "c": {"enp1s0f0np0": "10.0.3.3/24", "enp1s0f1np1": "10.0.2.3/24"},
}


def ring_findings(see, image, playbook=None, **inside):
    described = {name: {"rails": own} for name, own in RING.items()}
    findings = see({name: image(inside=inside) for name in "abc"}, names="abc", described=described, playbook=playbook)
    return [finding for finding in findings if finding.code == "IMG-012"]


@pytest.mark.parametrize(
    ("inside", "severity"),
    [
        ({"nccl_loaded": "2.30.7"}, None),
        ({"nccl_loaded": "2.28.9"}, "error"),
        ({"nccl_loaded": None}, "warning"),
    ],
)
def test_a_ring_of_three_needs_an_nccl_with_support_for_subnets(see, image, inside, severity):
    expected = [("IMG-012", severity, None)] if severity else []
    assert reported(ring_findings(see, image, **inside)) == expected
    both = {name: image(inside=inside) for name in ("alpha", "beta")}
    assert see(both) == []


def test_different_prefix_lengths_in_a_ring_are_an_error(see):
    described = {
        name: {"rails": {key: re.sub(r"^(10\.0\.1\..)/24", r"\1/30", value) for key, value in own.items()}}
        for name, own in RING.items()
    }
    findings = see(names="abc", described=described)
    assert ("NET-027", "error", None) in reported(findings)


def test_a_patched_nccl_is_declared_or_loaded_by_the_playbook(see, image):
    accepted = {"allow": [{"code": "IMG-012", "reason": "patched build of 2.28"}]}
    assert reported(ring_findings(see, image, accepted, nccl_loaded="2.28.9")) == [("IMG-012", "warning", None)]
    own = {"env": {"VLLM_NCCL_SO_PATH": "/opt/sparkring/libnccl-switchless.so.2"}}
    (finding,) = ring_findings(see, image, own, nccl_loaded="2.28.9")
    assert reported([finding]) == [("IMG-012", "warning", None)]
    assert "VLLM_NCCL_SO_PATH in env of the playbook" in finding.seen


def test_a_flag_unknown_to_every_vllm_is_reported_once_by_image_or_table(spark, cluster, image):
    spec = cluster({"solo": "h"}, playbook={"args": {"max-modell-len": 4096}})
    facts = {"solo": spark().model_copy(update=image(inside={"flags": FLAGS}))}
    unasked = {"solo": spark().model_copy(update={"image": None})}
    for known, code in ((facts, "IMG-007"), (unasked, "SPEC-003")):
        found = checks.run_checks(spec, known, topology.build(spec, known))
        assert reported([each for each in found if each.severity == "error"]) == [(code, "error", None)]
