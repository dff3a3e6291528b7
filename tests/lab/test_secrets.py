"""Secrets are visible nowhere, hostile values run nothing, and an unreachable node costs one time-out. Stub engine."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

WANDB_KEY = "hf_dIsTiNcTiVe0Token7Value"
API_KEY = "kEy-dIsTiNcTiVe-9f2c~value"


class Watcher:
    """Reads every command line on this machine, and so on all virtual Sparks, continuously."""

    def __init__(self, *words):
        self.words = [word.encode() for word in words]
        self.seen: set[bytes] = set()
        self.count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._over.wait(0.05):
            self.count += 1
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        line = (entry / "cmdline").read_bytes()
                        if any(word in line for word in self.words):
                            self.seen.add(line)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()


def files_with(spark, word):
    """Files of the Spark that contain ``word``, in places where people and programs write; with the users who may read them."""
    places = [
        "/root",
        "/home",
        "/tmp",
        "/run",
        "/var/log",
        "/var/lib/docker/containers",
        "/var/tmp",
        "/dev/shm",
        "/etc",
    ]
    # Files appear and disappear while grep runs, which changes its exit code.
    found = spark.run(["grep", "-rlsF", "--devices=skip", "-e", word, *places], check=False).stdout.splitlines()
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "test", "-r"]
    return {path: spark.run([*nobody, path], check=False).returncode == 0 for path in found}


def kept_file(lab):
    """The file with the secrets of release 1 on each node, for a rollback."""
    return f"/root/.local/state/sparkcluster/clusters/{lab.name}/releases/000001.env"


def post(spark, key=None):
    """Status of a completion requested from this machine."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(
        f"http://{spark.host}:8000/v1/chat/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def commands(inventory):
    """All commands that show something about a cluster, in the order of its life."""
    yield from (("plan", inventory), ("plan", inventory, "--json"))
    yield from (("up", inventory, "--json-lines", "--yes"), ("up", inventory, "--json"))
    yield from (("status", inventory), ("status", inventory, "--json"), ("releases", inventory, "--json"))
    yield ("connect", inventory, "--client", "curl")
    yield from (("logs", inventory), ("ask", inventory, "Hello", "--max-tokens", "8"))


def test_secrets_are_visible_nowhere(lab, cli, ranks, variant):
    environment = {"WANDB_KEY": WANDB_KEY, "THE_KEY": API_KEY}
    permit = {"secrets": ["WANDB_KEY"]}
    inventory = variant(lab, playbook={"secrets": ["WANDB_KEY"]}, permit=permit, api={"key": {"env": "THE_KEY"}})
    with Watcher(WANDB_KEY, API_KEY) as watcher:
        results = [cli(*words, env=environment).ok() for words in commands(inventory)]
        assert results[3].json["changed"] is False
        assert len(results[-1].out.split()) > 1
        assert (post(lab.sparks[0]), post(lab.sparks[0], "wrong"), post(lab.sparks[0], API_KEY)) == (401, 401, 200)
    assert watcher.count > 10
    assert watcher.seen == set()

    ray_token = None
    for spark in lab.sparks:
        ((_, name, _),) = ranks(lab)[spark.name]
        env_file = f"/root/.local/state/sparkcluster/clusters/{lab.name}/ranks/{name}/secrets.env"
        assert spark.run(["stat", "-c", "%a %U", env_file]).stdout.split() == ["600", "root"]
        variables = dict(line.split("=", 1) for line in spark.run(["cat", env_file]).stdout.splitlines())
        assert variables["WANDB_KEY"] == WANDB_KEY
        ray_token = ray_token or variables["RAY_AUTH_TOKEN"]
        assert variables["RAY_AUTH_TOKEN"] == ray_token
        inside = spark.run(["docker", "exec", name, "printenv", "WANDB_KEY"]).stdout.strip()
        assert inside == WANDB_KEY
        for word in (WANDB_KEY, API_KEY, ray_token):
            assert word not in spark.run(["sh", "-c", f"docker logs {name} 2>&1"]).stdout
            assert [path for path, readable in files_with(spark, word).items() if readable] == []
            paths = [path for path in files_with(spark, word) if "/docker/" not in path]
            assert sorted(paths) == ([env_file, kept_file(lab)] if word in variables.values() else [])
    assert "VLLM_API_KEY" not in spark.run(["cat", env_file]).stdout, "only the head serves the API"
    for word in (WANDB_KEY, API_KEY, ray_token):
        for done in results:
            assert word not in done.out + done.err, done.argv
        kept = [path for path in cli.home.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
        assert kept == []

    cli("down", inventory, env=environment).ok()
    for spark in lab.sparks:
        assert spark.run(["stat", "-c", "%a %U", kept_file(lab)]).stdout.split() == ["600", "root"]
        for word in (WANDB_KEY, API_KEY, ray_token):
            assert not files_with(spark, word).keys() - {kept_file(lab)}


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": "a; touch {mark}"},
        {"nodes": [{"name": "ok", "host": "$(touch {mark})"}]},
        {"nodes": [{"name": "ok", "host": "-oProxyCommand=touch {mark}"}]},
        {"ssh": {"user": "root; touch {mark}"}},
    ],
    ids="-".join,
)
def test_names_that_contain_commands_are_refused_and_run_nothing(lab, cli, variant, tmp_path, change):
    mark = tmp_path / "mark"
    text = json.dumps(change).replace("{mark}", str(mark))
    inventory = variant(lab)
    inventory.write_text(yaml.safe_dump({**yaml.safe_load(inventory.read_text()), **json.loads(text)}))
    done = cli("up", inventory)
    assert done.code == 2, done
    assert "Traceback" not in done.err
    assert "error: " in done.err
    assert not mark.exists()
    for spark in lab.sparks:
        assert spark.run(["ls", str(mark)], check=False).returncode != 0


def test_values_that_look_like_commands_reach_the_engine_unchanged(lab, cli, ranks, variant):
    evil = "$(touch /tmp/mark) `touch /tmp/mark`; touch /tmp/mark & | > /tmp/mark ' \" \\ %s {0} ~"
    inventory = variant(
        lab,
        playbook={"env": {"OF_EVIL": evil}, "verify": {"prompt": evil}},
        state_dir="/root/a b; touch $(mark) ' & #",
    )
    cli("up", inventory).ok()
    assert cli("up", inventory, "--json").ok().json["changed"] is False
    for spark in lab.sparks:
        ((_, name, _),) = ranks(lab)[spark.name]
        assert spark.run(["docker", "exec", name, "printenv", "OF_EVIL"]).stdout == evil + "\n"
        assert spark.run(["docker", "exec", name, "ls", "/tmp/mark"], check=False).returncode != 0
        assert spark.run(["sh", "-c", "ls /tmp/mark /root/mark"], check=False).stdout == ""
        assert spark.run(["ls", "/root/a b; touch $(mark) ' & #/clusters"]).stdout.split() == [lab.name]
    cli("ask", inventory, evil, "--max-tokens", "4").ok()
    cli("down", inventory).ok()
    assert ranks(lab) == {spark.name: [] for spark in lab.sparks}
    for spark in lab.sparks:
        spark.run(["rm", "-rf", "/root/a b; touch $(mark) ' & #"])


HUB = "/root/.cache/huggingface/hub"
REPOSITORY = f"{HUB}/models--org--tiny"
IN_CACHE = f"""
set -e
rm -rf /root/.cache/huggingface
mkdir -p {REPOSITORY}/blobs {REPOSITORY}/refs {REPOSITORY}/snapshots/abc {HUB}/models--other--model
for file in /root/models/tiny/*; do
  name=$(basename $file); cp $file {REPOSITORY}/blobs/$name; ln -s ../../blobs/$name {REPOSITORY}/snapshots/abc/$name
done
printf abc > {REPOSITORY}/refs/main
printf {WANDB_KEY} > /root/.cache/huggingface/token
printf '[x]\\nhf_token = {WANDB_KEY}\\n' > /root/.cache/huggingface/stored_tokens
"""
# Attempts of a hostile recipe as root in its container, and the needs of remote code.
READ = f"""
{{ cat $HF_HOME/token $HF_HOME/stored_tokens; cat /proc/*/environ; grep -rsF {WANDB_KEY} /root /home; }} 2>/dev/null |
grep -aF {WANDB_KEY} > /tmp/read; true
"""
WRITE = f"""
for try in 'touch {REPOSITORY}/planted' 'ln -s /etc {REPOSITORY}/snapshots/planted' 'rm -r {REPOSITORY}/refs' \\
  'mount -o remount,rw {REPOSITORY}' 'mv {REPOSITORY} {HUB}/gone' 'cp /bin/sh {REPOSITORY}/snapshots/abc/config.json'
do $try 2>/dev/null && echo "$try" >> /tmp/wrote
done
true
"""
UNPACK = "touch $HF_HOME/planted; mkdir -p $HF_HOME/modules && touch $HF_HOME/modules/unpacked"
ATTACK = [READ, WRITE, UNPACK]


def test_a_recipe_reads_no_token_and_changes_no_weights(lab, cli, ranks, variant):
    """It is root in its container, serves from the node's cache, and finds no other file of it."""
    for spark in lab.sparks:
        spark.run(["sh", "-c", IN_CACHE])
    listed = ["sh", "-c", f"cd {HUB}/.. && ls -lR . && cat token"]
    before = {spark.name: spark.run(listed).stdout for spark in lab.sparks}
    inventory = variant(lab, playbook={"model": {"id": "org/tiny", "path": None}, "setup": ATTACK})
    cli("up", inventory, "--yes", env={"HF_TOKEN": WANDB_KEY}).ok()
    assert len(cli("ask", inventory, "Hello", "--max-tokens", "8").ok().out.split()) > 1
    for spark in lab.sparks:
        ((_, name, _),) = ranks(lab)[spark.name]

        def inside(line, name=name, spark=spark):
            return spark.run(["docker", "exec", name, "sh", "-c", line], check=False).stdout.strip()

        assert inside("cat /tmp/read") == ""
        assert inside("ls /tmp/wrote") == ""
        assert inside(f"ls {HUB}") == "models--org--tiny"
        assert inside("ls $HF_HOME/modules") == "unpacked"
        served = spark.run(["cat", "/root/models/tiny/config.json"]).stdout.strip()
        assert inside("cat /sparkcluster/model/config.json") == served
        assert inside("env | grep -c HF_TOKEN") == "0"
        assert spark.run(listed).stdout == before[spark.name]
    cli("down", inventory).ok()
    for spark in lab.sparks:
        spark.run(["rm", "-r", "/root/.cache/huggingface"])


@pytest.mark.full
def test_a_link_in_the_cache_gives_a_container_no_other_file_of_the_node(lab, cli, ranks, variant):
    """An image that downloaded the model may have left one."""
    for spark in lab.sparks:
        spark.run(["sh", "-c", f"{IN_CACHE}\nln -s /root/.ssh {REPOSITORY}/keys"])
    mounts = [{"source": f"~{REPOSITORY[5:]}/keys", "target": "/x"}]
    inventory = variant(lab, playbook={"model": {"id": "org/tiny", "path": None}, "mounts": mounts})
    done = cli("up", inventory, "--yes")
    assert done.code == 1, done
    assert f"{REPOSITORY}/keys leads to /root/.ssh" in done.err
    assert f"namei -l {REPOSITORY}/keys" in done.err
    assert ranks(lab) == {spark.name: [] for spark in lab.sparks}
    for spark in lab.sparks:
        spark.run(["rm", "-r", "/root/.cache/huggingface"])
