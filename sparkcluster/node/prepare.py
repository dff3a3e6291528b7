"""Prepares a rank before anything starts: paths, setup, ptxas, variables that Ray must not carry over.

Part of ``launcher``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from typing import Any

from sparkcluster.node import engine
from sparkcluster.node.bind import ADDRESS, OPEN_PORTS, confine
from sparkcluster.node.programs import Failed, run, succeeds
from sparkcluster.node.shared import hub_folder

PREFIX = "[sparkcluster] "
MARK = "SPARKCLUSTER_RANK"
MODEL_LINK = "/sparkcluster/model"  # in the container, for playbooks that refer to files of the model

BAD_DOCUMENT, SETUP_FAILED, RANK_MISSING, RAY_FAILED, UNREADABLE, NO_ENGINE, TERMINATED = 2, 3, 4, 5, 6, 127, 143

# Its place in CUDA's own images.
CUDA_PTXAS = "/usr/local/cuda/bin/ptxas"

# PTX supports sm_121a, the GB10, since ISA 8.8 (PTX ISA release notes, CUDA 12.9).
_TRIAL_PTX = ".version 8.8\n.target sm_121a\n.address_size 64\n.visible .entry k() { ret; }\n"


class Stop(Exception):
    """Ends the launch with an exit code and a message of one line."""

    def __init__(self, code: int, message: str) -> None:
        Exception.__init__(self, message)
        self.code = code


def say(text: str) -> None:
    """Print a line for the watcher on the controller."""
    sys.stdout.write(PREFIX + text.replace("\n", " | ") + "\n")
    sys.stdout.flush()


def tail(path: str, lines: int = 15) -> str:
    """Last lines of a file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return b"\n".join(file.read().splitlines()[-lines:]).decode(errors="replace")
    except OSError:
        return ""


def interpreter_of(program: str) -> str | None:
    """The Python in the first line of ``program``; None if it is not a Python script."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    if not line.startswith(b"#!") or b"python" not in line:
        return None
    words = line[2:].decode(errors="replace").split()
    name = words[1] if os.path.basename(words[0]) == "env" and len(words) > 1 else words[0]
    return shutil.which(name)


# Without the working directory, which may contain a folder with the module's name.
_FIND = """
import importlib.util, sys
sys.path = [path for path in sys.path if path]
spec = importlib.util.find_spec(sys.argv[1])
places = list(spec.submodule_search_locations or []) if spec else []
sys.stdout.write(places[0] if places else "")
"""


def module_directory(name: str, python: str | None = None) -> str | None:
    """Directory of an installed top-level module, as found by this or another interpreter, or None.

    The module is not imported: triton takes seconds and may fail without a driver.
    """
    try:
        return run([python or sys.executable, "-c", _FIND, name], 30).strip() or None
    except Failed:
        return None


def ptxas_name(triton_dir: str) -> str:
    """Name under which this Triton looks for the assembler of a GB10 (triton#10331: a separate one since 3.6)."""
    try:
        with open(os.path.join(triton_dir, "__init__.py"), encoding="utf-8", errors="replace") as file:
            found = re.search(r"__version__\s*=\s*['\"](\d+)\.(\d+)", file.read())
    except OSError:
        found = None
    version = (int(found.group(1)), int(found.group(2))) if found else (3, 6)
    return "ptxas-blackwell" if version >= (3, 6) else "ptxas"


def assembles(ptxas: str) -> bool:
    """Whether this ptxas can assemble code for a GB10."""
    if not os.path.isfile(ptxas) or not os.access(ptxas, os.X_OK):
        return False
    with tempfile.TemporaryDirectory(prefix="sparkcluster-ptxas-") as folder:
        source = os.path.join(folder, "trial.ptx")
        with open(source, "w") as file:
            file.write(_TRIAL_PTX)
        argv = [ptxas, "--gpu-name", "sm_121a", source, "-o", os.path.join(folder, "trial.cubin")]
        return succeeds(argv, 20)


def place_ptxas(triton_dir: str, env: dict[str, str], in_place: bool) -> str:
    """Provide a ptxas that supports the GB10 to this Triton, before the engine starts.

    ``in_place`` is False if the installation belongs to the user; then only a variable is set. Returns the result in
    words.
    """
    name = ptxas_name(triton_dir)
    variable = "TRITON_" + name.upper().replace("-", "_") + "_PATH"
    if env.get(variable):
        return "%s=%s is already set" % (variable, env[variable])
    link = os.path.join(triton_dir, "backends", "nvidia", "bin", name)
    if assembles(link):
        return "%s already supports sm_121a" % link
    cuda = CUDA_PTXAS
    if not os.path.exists(cuda):
        cuda = shutil.which("ptxas", path=env.get("PATH")) or ""
    if not cuda:
        return "missing: no %s and no ptxas on PATH, the first Triton kernel will fail" % CUDA_PTXAS
    if not os.access(cuda, os.X_OK):
        return "missing: %s is not executable, the first Triton kernel will fail" % cuda
    note = "" if assembles(cuda) else ", which does not support sm_121a either"
    if in_place:
        fresh = "%s.%d" % (link, os.getpid())
        try:
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(cuda, fresh)
            os.replace(fresh, link)
            return "%s -> %s%s" % (link, cuda, note)
        except OSError:
            note = " (read-only folder)" + note
    env[variable] = cuda
    return "%s=%s%s" % (variable, cuda, note)


def prepend(env: dict[str, str], name: str, value: str) -> None:
    """Prepend ``value`` to a path variable."""
    env[name] = value + (os.pathsep + env[name] if env.get(name) else "")


# Runs in the engine's Python: prints which of these distributions are missing.
_LACKING = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
lacking = []
for name in json.loads(sys.argv[1]):
    try:
        version(name)
    except PackageNotFoundError:
        lacking.append(name)
print(json.dumps(lacking))
"""


def missing_needs(ray_path: str, python: str) -> dict[str, list[str]]:
    """Requirements of the staged Ray that ``python`` lacks: names in the folder ``needs``, by distribution.

    Installed ones are not replaced: folders in PYTHONPATH come first, so ours would shadow what the engine was built
    with.
    """
    try:
        with open(os.path.join(ray_path, "needs.json")) as file:
            needs: dict[str, list[str]] = json.load(file)
    except OSError:
        return {}
    try:
        lacking = run([python, "-c", _LACKING, json.dumps(sorted(needs))], 60)
        return {name: needs[name] for name in json.loads(lacking)}
    except (Failed, ValueError) as error:
        raise Stop(RAY_FAILED, "%s did not list its packages: %s" % (python, error)) from error


def show_needs(ray_path: str, lacking: dict[str, list[str]], private: str) -> str:
    """A folder with links to only the ``lacking`` distributions, for PYTHONPATH."""
    folder = tempfile.mkdtemp(prefix="ray-needs-", dir=private)
    for names in lacking.values():
        for name in names:
            os.symlink(os.path.join(ray_path, "needs", name), os.path.join(folder, name))
    return folder


def private_directory(beside: str) -> str:
    """A directory that only we can read: next to the launcher if that is writable, else a temporary one."""
    path = os.path.join(beside, "private")
    with contextlib.suppress(OSError):
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    return tempfile.mkdtemp(prefix="sparkcluster-")


def model_paths(model: dict[str, str], env: dict[str, str]) -> list[str]:
    """Paths that must be readable to find the model's files; the last is their directory."""
    if model.get("path"):
        return [model["path"]]
    folder = os.path.join(env.get("HF_HOME", ""), hub_folder(model["id"]))
    revision = model.get("revision") or "main"
    ref = os.path.join(folder, "refs", *revision.split("/"))
    with contextlib.suppress(OSError), open(ref) as file:  # a commit is its own name
        revision = file.read().strip()
    return [folder, ref, os.path.join(folder, "snapshots", revision)]


def unreadable(paths: list[str]) -> str | None:
    """The first path that this user may not read, of ``paths`` and below the last one; None if all are readable."""
    waiting, below = list(paths), paths[-1]
    while waiting:
        path = waiting.pop(0)
        try:
            is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        except PermissionError:
            return path
        except OSError:
            continue  # a missing file is another error
        if not os.access(path, os.R_OK | (os.X_OK if is_folder else 0)):
            return path
        if is_folder and (path == below or (path.startswith(below + os.sep) and not os.path.islink(path))):
            waiting += [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return None


def link_model(model: dict[str, str], env: dict[str, str], link: str = MODEL_LINK) -> str:
    """Link ``link`` to the model's files, so that a playbook can refer to them. Returns the result in words."""
    path = model_paths(model, env)[-1]
    fresh = "%s.%d" % (link, os.getpid())
    try:
        os.symlink(path, fresh)
        os.replace(fresh, link)
    except OSError as error:
        return "%s cannot be linked to the model: %s" % (link, error.strerror or error)
    return "%s -> %s" % (link, path)


def located(document: dict[str, Any], env: dict[str, str]) -> list[str]:
    """The engine's command, with the model's directory instead of ``MODEL_LINK``, which exists only in a container."""
    words: list[str] = document["engine"]
    if document.get("runtime") != "process" or not document.get("model"):
        return words
    path = model_paths(document["model"], env)[-1]
    return [path + word[len(MODEL_LINK) :] if word.startswith(MODEL_LINK + "/") else word for word in words]


def run_setup(lines: list[str], env: dict[str, str], limit_s: float) -> None:
    """Run the playbook's ``setup`` lines in order, each with a limit in seconds."""
    for number, line in enumerate(lines, 1):
        say("phase=setup %d/%d" % (number, len(lines)))
        child = subprocess.Popen(["sh", "-c", line], env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Stop(SETUP_FAILED, "setup line %d did not finish within %d s" % (number, limit_s)) from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if code != 0:
            raise Stop(SETUP_FAILED, "setup line %d exited with %d" % (number, code))


def has_open_ray(document: dict[str, Any]) -> bool:
    """Whether any client of Ray may run code in it."""
    return bool(document["executor"] == "ray" and not document["ray"].get("token"))


def prepare(document: dict[str, Any], folder: str, env: dict[str, str]) -> str:
    """The steps common to all executors; returns the private directory."""
    inside = document.get("runtime", "docker") == "docker"
    before = dict(env)
    private = private_directory(folder)
    ray_path = document.get("ray_path")
    if ray_path:
        python = interpreter_of(document["engine"][0]) or sys.executable
        lacking = missing_needs(ray_path, python)
        if lacking:
            prepend(env, "PYTHONPATH", show_needs(ray_path, lacking, private))
        prepend(env, "PYTHONPATH", ray_path)
        prepend(env, "PATH", os.path.join(ray_path, "bin"))
        say("phase=ray-path %s with %s" % (ray_path, " ".join(sorted(lacking)) or "nothing else"))
    if inside and document.get("model"):
        closed = unreadable(model_paths(document["model"], env))
        if closed:
            raise Stop(UNREADABLE, "user %d of the container cannot read %s" % (os.geteuid(), closed))
        say("phase=model %s" % link_model(document["model"], env))
    run_setup(document.get("setup") or [], env, document.get("setup_timeout_s", 900))
    if document.get("ptxas"):
        engine_python = interpreter_of(document["engine"][0])
        triton = module_directory("triton") or module_directory("triton", engine_python)
        done = place_ptxas(triton, env, inside) if triton else "no Triton in this image, nothing to do"
        say("phase=ptxas %s" % done)
    if len(document["members"]) > 1:
        done = confine(env, document["address"], document.get("open_ports") or [], folder, private)
        if done.startswith("missing:") and has_open_ray(document):
            raise Stop(RAY_FAILED, "Ray has no token and would listen on all addresses: %s" % done[9:])
        say("phase=bind %s" % done)
    added = {name for name in env if name.startswith("TRITON_") and name not in before}
    names = set(document.get("carry_over") or []) | added | {"LD_PRELOAD", ADDRESS, OPEN_PORTS}
    if document.get("executor") == "ray":
        kept = engine.keep_variables(env, names | {MARK}, private)
        if kept is None:
            raise Stop(RAY_FAILED, "no folder can be written for the list of variables that Ray must not carry over")
        say("phase=carry-over %s" % kept)
    return private
