"""The real engine on virtual Sparks: vLLM, Ray, SSH and Docker, without imitations.

Every start of the engine is a module fixture: it starts a cluster, collects evidence and stops it; the tests check the
evidence. The plain run makes two starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import ipaddress
import json
import threading
from pathlib import Path

import pytest

from tests.lab.switching import images_of, settled

pytestmark = pytest.mark.engine

# Left's HCAs have a common GID index, right's do not: NCCL_IB_GID_INDEX is set only on the head.
SPARKS = """
sparks:
- name: left
  ports: p0
  gids: shifted
- name: right
  ports: p1
  gids: {rocep1s0f1: shifted, roceP2p1s0f1: standard}
  interfaces: {enp1s0f1np1: fast0, enP2p1s0f1np1: fast1}
"""

PROMPTS = ("Say something", "What is a DGX Spark?")
TOKENS = "24"
SECRETS = {"WANDB_KEY": "hf-5e2c1d90b7a64f38", "LAB_API_KEY": "key-91f0c47ad2b35e68"}

DUMPS = "/root/dumps"


@pytest.fixture(scope="module")
def shared_lab(make_lab):
    return make_lab(SPARKS, engine="vllm")


@dataclasses.dataclass
class Rank:
    """Evidence from one Spark while its cluster served."""

    dumps: list[dict]
    sockets: list[str]
    inspected: dict
    log: list[tuple[str, str]]
    ptxas: dict
    processes: list[str]
    secret_files: list[tuple[str, str]]

    @property
    def environ(self):
        """``os.environ`` inside the rank after its initialization."""
        (dump,) = self.dumps
        return dump["environ"]

    def at(self, text):
        """Number of the first line of the log that contains ``text``."""
        return next(number for number, (_, line) in enumerate(self.log) if text in line)


@dataclasses.dataclass
class Evidence:
    """Evidence from one start of the engine."""

    up: object
    status: dict
    plan: dict
    again: object
    answers: list[str]
    ranks: dict[str, Rank]
    token: str | None
    asked_ray: dict[str, object]
    keyless: str
    command_lines: set[str]
    left: dict[str, list]
    left_processes: list[str]

    @property
    def said(self):
        """Complete output of the controller."""
        return self.up.out + self.up.err + self.again.out + self.again.err + json.dumps([self.status, self.plan])


@pytest.fixture(scope="module")
def observe(shared_lab, module_cli, module_variant, clean, ranks):
    """``gather(playbook={…}, **inventory)``: one start of the engine, and the evidence."""

    def do(*, playbook=None, **inventory):
        lab = shared_lab
        clean(lab)
        for spark in lab.sparks:
            spark.run(["sh", "-c", f"rm -rf {DUMPS} && mkdir -m 700 {DUMPS}"])
        path = module_variant(
            lab,
            playbook={
                "mounts": [{"source": DUMPS, "target": "/dumps", "read_only": False}],
                "secrets": ["WANDB_KEY"],
                **(playbook or {}),
                "env": {"SPARKCLUSTER_LAB_DUMP_ENV": "/dumps", **((playbook or {}).get("env", {}))},
            },
            **{
                "api": {"host": "interconnect", "key": {"env": "LAB_API_KEY"}},
                "permit": {"mounts": [f"{DUMPS}:rw"], "secrets": ["WANDB_KEY"]},
                **inventory,
            },
        )

        cli = functools.partial(module_cli, env=SECRETS)

        try:
            with command_lines() as seen:
                up = cli("up", path, "--yes", timeout=600).ok()
                status = cli("status", path, "--json").json
                plan = cli("plan", path, "--json").ok().json
                again = cli("up", path, "--json").ok()
                answers = [cli("ask", path, prompt, "--max-tokens", TOKENS, "--json").ok().json for prompt in PROMPTS]
            head = lab.sparks[0]
            found = Evidence(
                up=up,
                status=status,
                plan=plan,
                again=again,
                answers=[answer["content"] for answer in answers],
                ranks={},
                token=token_of(head),
                asked_ray=ask_ray(head) if uses_ray(head) else {},
                keyless=without_key(head, status["endpoint"]),
                command_lines=seen,
                left={},
                left_processes=[],
            )
            secrets = [*SECRETS.values(), *([found.token] if found.token else [])]
            members = [node["name"] for node in status["nodes"]]
            found.ranks = {spark.name: inspect_rank(spark, secrets) for spark in lab.sparks if spark.name in members}
        finally:
            cli("down", path).ok()
        found.left = ranks(lab)
        found.left_processes = [line for spark in lab.sparks for line in processes(spark) if of_engine(line)]
        return found

    return do


@contextlib.contextmanager
def command_lines():
    """Every command line visible on this machine, including the command lines on its virtual Sparks."""
    seen, over = set(), threading.Event()

    def watch():
        while not over.wait(0.25):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def inspect_rank(spark, secrets):
    """Evidence from a Spark whose cluster serves."""
    name = container(spark)
    files = spark.run(["sh", "-c", f"cat {DUMPS}/*.json"], check=False).stdout
    log = spark.run(["sh", "-c", f"docker logs --timestamps {name} 2>&1"]).stdout
    return Rank(
        dumps=list(documents(files)),
        sockets=[line.split()[3] + " " + line.split()[-1] for line in listening(spark)],
        inspected=json.loads(spark.run(["docker", "inspect", name]).stdout)[0],
        log=[tuple(line.partition(" ")[::2]) for line in log.splitlines()],
        ptxas=json.loads(spark.run(["docker", "exec", name, "python3", "-c", PTXAS]).stdout),
        processes=processes(spark),
        secret_files=secret_files(spark, name, secrets),
    )


PTXAS = """
import importlib.util, json, os, subprocess
folder = importlib.util.find_spec("triton").submodule_search_locations[0]
link = os.path.join(folder, "backends/nvidia/bin/ptxas-blackwell")
print(json.dumps({
    "target": os.path.realpath(link),
    "resolves": os.path.exists(link),
    "made": os.lstat(link).st_mtime if os.path.lexists(link) else None,
    "says": subprocess.run([link, "--version"], capture_output=True, text=True).stdout,
}))
"""


def documents(text):
    """JSON documents that follow each other without separator."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        yield document


def container(spark):
    """Name of the only running container on a Spark."""
    (name,) = spark.run(["docker", "ps", "--format", "{{.Names}}"]).stdout.split()
    return name


def listening(spark):
    """Lines of ``ss`` about listening sockets, except sshd's."""
    lines = spark.run(["ss", "-Htlnp"]).stdout.splitlines()
    return [line for line in lines if '"sshd"' not in line]


def processes(spark):
    """Command lines of all processes of a Spark."""
    lines = spark.run(["ps", "-eo", "args", "--no-headers", "-ww"]).stdout.splitlines()
    return [line for line in lines if not line.startswith("ps ")]


def of_engine(line):
    return any(word in line for word in ("vllm", "VLLM", "ray::", "raylet", "gcs_server"))


def uses_ray(spark):
    return any("gcs_server" in line for line in processes(spark))


def secret_files(spark, name, secrets):
    """(mode, path) of the files with a secret, on the node and in its container."""
    words = [word for secret in secrets for word in ("-e", secret)]
    on_node = ["grep", "-rlF", *words, "/root", "/home", "/tmp", "/var/log", "/var/lib/docker/containers"]
    inside = ["docker", "exec", name, "grep", "-rlF", *words, "/sparkcluster", "/tmp", "/root", "/dev/shm", "/run"]
    found = []
    for prefix, search in (([], on_node), (["docker", "exec", name], inside)):
        paths = spark.run(search, check=False).stdout.splitlines()
        found += [(spark.run([*prefix, "stat", "-c", "%a", path]).stdout.strip(), path) for path in paths]
    return found


def token_of(spark):
    """The token that Ray requires, from a file readable only by its owner."""
    text = spark.run(["sh", "-c", "cat /root/.local/state/sparkcluster/clusters/*/ranks/*/secrets.env"]).stdout
    return dict(line.split("=", 1) for line in text.splitlines()).get("RAY_AUTH_TOKEN")


def ask_ray(spark):
    """Ray's answers to clients with its token, without one, and with another one."""
    code = (
        "import sys; from ray._raylet import GcsClient;print(len(GcsClient(address=sys.argv[1]).get_all_node_info()))"
    )
    address = next(line.split()[3] for line in listening(spark) if '"gcs_server"' in line and ":6379" in line)
    who = {
        "member": [],
        "without": ["-u", "RAY_AUTH_TOKEN", "-u", "RAY_AUTH_MODE"],
        "other": ["RAY_AUTH_TOKEN=" + 64 * "0"],
    }
    enter = ["docker", "exec", container(spark), "env"]
    return {
        name: spark.run([*enter, *words, "python3", "-c", code, address], check=False) for name, words in who.items()
    }


def without_key(spark, endpoint):
    """The endpoint's answer without an API key."""
    return spark.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"{endpoint}/models"], check=False).stdout


@pytest.fixture(scope="module")
def single(observe, shared_lab):
    """One Spark: the reference for the answers of all other configurations."""
    left = shared_lab.sparks[0]
    return observe(nodes=[{"name": "left", "host": left.host, "connection": "ssh"}])


@pytest.fixture(scope="module")
def by_ray(observe):
    """Tensor parallel 2 over two nodes and Ray."""
    return observe(playbook={"executor": "ray", "tensor_parallel": 2})


@pytest.fixture(scope="module")
def natively(observe):
    """Tensor parallel 2 with vLLM's native multi-node backend."""
    return observe(playbook={"executor": "native", "tensor_parallel": 2})


@pytest.fixture(
    params=["single", "by_ray", pytest.param("natively", marks=pytest.mark.full)],
)
def any_start(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["by_ray", pytest.param("natively", marks=pytest.mark.full)])
def two_nodes(request):
    return request.getfixturevalue(request.param)


def misplaced_variables(found):
    """(node, variable) where a rank lacks a variable of the plan, or has one that is not planned."""
    planned = {name: node["env"] for name, node in found.plan["nodes"].items()}
    every = {name for env in planned.values() for name in env}
    return {
        (node, name)
        for node, env in planned.items()
        for name in every
        if found.ranks[node].environ.get(name) != env.get(name)
    }


def test_two_nodes_give_the_same_answer_as_one(two_nodes, single):
    assert all(len(answer) >= 8 for answer in single.answers)
    assert single.answers[0] != single.answers[1]
    assert two_nodes.answers == single.answers


def test_each_rank_has_the_environment_of_its_node(two_nodes):
    assert {node: [dump["rank"] for dump in rank.dumps] for node, rank in two_nodes.ranks.items()} == {
        "left": [0],
        "right": [1],
    }
    assert all(rank.dumps[0]["hostname"] == node for node, rank in two_nodes.ranks.items())
    assert misplaced_variables(two_nodes) == set()


def test_the_api_key_stays_on_the_head(two_nodes):
    assert two_nodes.ranks["left"].environ["VLLM_API_KEY"] == SECRETS["LAB_API_KEY"]
    assert "VLLM_API_KEY" not in two_nodes.ranks["right"].environ


def test_every_socket_is_on_the_interconnect_or_loopback(any_start):
    for node, rank in any_start.ranks.items():
        host_ip = any_start.plan["nodes"][node]["env"]["VLLM_HOST_IP"]
        for socket in rank.sockets:
            address = ipaddress.ip_address(socket.split()[0].rpartition(":")[0].strip("[]").partition("%")[0])
            mapped = getattr(address, "ipv4_mapped", None) or address
            assert mapped.is_loopback or str(mapped) == host_ip, socket
    head = any_start.ranks["left"].sockets
    assert any(":8000 " in socket for socket in head)


def test_ray_has_no_dashboard_and_refuses_strangers(by_ray):
    assert not any(":8265 " in socket for rank in by_ray.ranks.values() for socket in rank.sockets)
    answers = by_ray.asked_ray
    assert (answers["member"].returncode, answers["member"].stdout.strip()) == (0, "2")
    for who in ("without", "other"):
        assert answers[who].returncode != 0
        assert "AuthenticationError" in answers[who].stderr
    for rank in by_ray.ranks.values():
        assert rank.environ["RAY_AUTH_MODE"] == "token"


@pytest.mark.full
def test_one_node_needs_no_ray_and_two_can_work_without_it(single, natively):
    for found in (single, natively):
        lines = [line for rank in found.ranks.values() for line in rank.processes]
        assert not [line for line in lines if "ray::" in line or "raylet" in line or "gcs_server" in line]
        assert {node["ray"] for node in found.status["nodes"]} == {None}


def test_ptxas_is_in_place_before_the_engine_logs_anything(any_start):
    for rank in any_start.ranks.values():
        assert rank.ptxas["resolves"], rank.ptxas
        assert rank.ptxas["target"] == "/usr/local/cuda/bin/ptxas"
        assert "ptxas" in rank.ptxas["says"]
        phase_lines = [number for number, (_, line) in enumerate(rank.log) if line.startswith("[sparkcluster] phase=")]
        placed = rank.at("[sparkcluster] phase=ptxas ")
        assert "ptxas-blackwell -> /usr/local/cuda/bin/ptxas" in rank.log[placed][1]
        # The image's entrypoint shows a banner; after that only the launcher logs until everything is in place.
        assert phase_lines == list(range(phase_lines[0], phase_lines[-1] + 1))
        assert placed < phase_lines[-1] < len(rank.log) - 1
        engine_spoke = dt.datetime.fromisoformat(rank.log[phase_lines[-1] + 1][0]).timestamp()
        assert rank.ptxas["made"] < engine_spoke


def test_containers_have_only_the_capabilities_that_they_need(any_start):
    for rank in any_start.ranks.values():
        host = rank.inspected["HostConfig"]
        assert host["Privileged"] is False
        assert host["RestartPolicy"]["Name"] in ("", "no")
        assert host["Init"] is True
        assert host["CapAdd"] in (["SYS_NICE"], ["CAP_SYS_NICE"])


def test_secrets_never_appear_in_output(any_start):
    secrets = [*SECRETS.values(), *([any_start.token] if any_start.token else [])]
    for secret in secrets:
        assert not [line for line in any_start.command_lines if secret in line]
        assert secret not in any_start.said
        for rank in any_start.ranks.values():
            assert not [line for _, line in rank.log if secret in line]
    for node, rank in any_start.ranks.items():
        assert rank.environ["WANDB_KEY"] == SECRETS["WANDB_KEY"]
        assert rank.secret_files, node
        assert {mode for mode, _ in rank.secret_files} <= {"600", "400"}, rank.secret_files


def test_the_endpoint_requires_its_key(any_start):
    assert any_start.keyless == "401"


def test_a_second_up_changes_nothing_and_status_agrees(any_start):
    again = any_start.again.json
    assert (again["changed"], again["release"]) == (False, 1), any_start.again.err
    assert any_start.status["state"] == "serving"
    assert {node["state"] for node in any_start.status["nodes"]} == {"running"}


def test_down_leaves_nothing(any_start):
    assert any_start.left == {"left": [], "right": []}
    assert any_start.left_processes == []


@pytest.mark.full
def test_an_engine_survives_an_outage_an_upgrade_a_freeze_and_the_death_of_its_head(lab, cli, variant, ranks, image):
    """The answers of a seeded model at temperature 0 are the same before an upgrade, after it, and after the rollback."""
    path = variant(lab, playbook={"executor": "ray", "verify": {"timeout_s": 20}})
    head, worker = lab.sparks

    def answer():
        return cli("ask", path, "What is a DGX Spark?", "--max-tokens", "16", "--json").ok().json["content"]

    def problems():
        findings = cli("doctor", path, "--json", "--timeout", "14").json["findings"]
        return {(each["code"], each["node"]) for each in findings if each["severity"] != "info"}

    up = cli.start("up", path, "--json-lines")
    for spark in lab.sparks:
        up.wait_for(f'"node": "{spark.name}", "text": "Ray ')  # its rank runs and is watched
    for spark in lab.sparks:
        lab.fault(spark.name, "silence", "40")
    said = up.wait(900).ok().out
    assert all(f"{spark.name}: reports again" in said for spark in lab.sparks)
    assert problems() == set()

    old, expected = images_of(cli("status", path, "--json").ok().json), answer()
    words = ("--image", image(lab, "newer"), "--min-speed", "0", "--json")
    cli("upgrade", path, *words, timeout=900).ok()
    assert images_of(settled(lab, cli, ranks, path)).isdisjoint(old)
    assert answer() == expected
    cli("rollback", path, "--json", timeout=900).ok()
    assert images_of(settled(lab, cli, ranks, path)) == old
    assert answer() == expected

    # the API server of a frozen engine reports healthy forever
    lab.fault("left", "kill-engine")
    health = ["curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", f"http://{head.host}:8000/health"]
    assert head.run(health).stdout == "200"
    assert cli("status", path, "--json").json["state"] == "degraded"
    assert problems() == {("RUN-003", "left")}

    # a worker exits on its own: Ray would drain for 30 s, and then kill the engine's processes
    head.run(["docker", "kill", container(head)])
    name = container(worker)
    worker.run(["docker", "stop", "--time", "60", name])
    code = worker.run(["docker", "inspect", "-f", "{{.State.ExitCode}}", name]).stdout.strip()
    assert code == "143", worker.run(["docker", "logs", "--tail", "40", name]).stdout
