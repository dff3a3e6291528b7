"""The launcher of one rank: makes the node ready, waits for all ranks, then becomes the engine.

Runs as ``python3 entry.py LAUNCHER.json``, in the serving container or directly on the host. Every step
is announced by one line that begins with ``[sparkcluster] phase=``; the last step is ``exec``, so that
the engine's end is the container's end.

Exit codes before the engine takes over: 2 the document makes no sense, 3 a setup line failed, 4 a rank
did not come in time, 5 Ray did not start or did not let us in, 127 no such engine, 143 SIGTERM.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterable, NoReturn

PREFIX = "[sparkcluster] "
MARK = "SPARKCLUSTER_RANK"
CARRY_OVER_FILE = "ray_non_carry_over_env_vars.json"

BAD_DOCUMENT, SETUP_FAILED, RANK_MISSING, RAY_FAILED, NO_ENGINE, TERMINATED = 2, 3, 4, 5, 127, 143

# sm_121a, the GB10, is known to PTX from ISA 8.8 on (PTX ISA release notes, CUDA 12.9).
_TRIAL_PTX = ".version 8.8\n.target sm_121a\n.address_size 64\n.visible .entry k() { ret; }\n"

# Runs in the image's Python: asks Ray once a second which nodes are alive, by address. Public API alone,
# so that it works with every Ray that an image may carry.
_RAY_NODES = """
import json, os, sys, time
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
try:
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    while True:
        alive = sorted({n["NodeManagerAddress"] for n in ray.nodes() if n.get("Alive", n.get("alive"))})
        print(json.dumps({"alive": alive}), flush=True)
        time.sleep(1)
except Exception as error:
    print(json.dumps({"error": "%s: %s" % (type(error).__name__, error)}), flush=True)
    sys.exit(1)
"""


class Stop(Exception):  # noqa: N818 - it also ends a launch in which nothing went wrong
    """The launch ends here, with an exit code and one line that says why."""

    def __init__(self, code: int, message: str) -> None:
        Exception.__init__(self, message)
        self.code = code


def say(text: str) -> None:
    """One line that the watcher on the controller reads."""
    sys.stdout.write(PREFIX + text.replace("\n", " | ") + "\n")
    sys.stdout.flush()


def tail(path: str, lines: int = 15) -> str:
    """Last lines of a file, or an empty text."""
    try:
        with open(path, "rb") as file:
            return b"\n".join(file.read().splitlines()[-lines:]).decode(errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------------------------------------- the image


def interpreter_of(program: str) -> str | None:
    """Python that runs ``program`` by its first line, or None where it is no Python script."""
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


def module_directory(name: str, python: str | None = None) -> str | None:
    """Folder of an installed top-level module as this or another interpreter finds it, or None.

    The module is not imported: triton takes seconds and may fail without a driver.
    """
    code = (
        "import importlib.util,sys;"
        "spec=importlib.util.find_spec(sys.argv[1]);"
        "sys.stdout.write((list(spec.submodule_search_locations or [''])[0]) if spec else '')"
    )
    if python is None or os.path.realpath(python) == os.path.realpath(sys.executable):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        places = list(spec.submodule_search_locations or []) if spec else []
        return places[0] if places else None
    try:
        done = subprocess.run(
            [python, "-c", code, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() or None


def ptxas_name(triton_dir: str) -> str:
    """Name under which this Triton looks for the assembler of a GB10 (triton#10331: its own from 3.6 on)."""
    try:
        with open(os.path.join(triton_dir, "__init__.py"), encoding="utf-8", errors="replace") as file:
            found = re.search(r"__version__\s*=\s*['\"](\d+)\.(\d+)", file.read())
    except OSError:
        found = None
    version = (int(found.group(1)), int(found.group(2))) if found else (3, 6)
    return "ptxas-blackwell" if version >= (3, 6) else "ptxas"


def assembles(ptxas: str) -> bool:
    """Whether this ptxas can make code for a GB10."""
    if not os.path.isfile(ptxas) or not os.access(ptxas, os.X_OK):
        return False
    with tempfile.TemporaryDirectory(prefix="sparkcluster-ptxas-") as folder:
        source = os.path.join(folder, "trial.ptx")
        with open(source, "w") as file:
            file.write(_TRIAL_PTX)
        argv = [ptxas, "--gpu-name", "sm_121a", source, "-o", os.path.join(folder, "trial.cubin")]
        try:
            done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0


def place_ptxas(triton_dir: str, env: dict[str, str], in_place: bool) -> str:
    """Give this Triton an assembler that knows the GB10, before the engine's first line.

    ``in_place`` is False where the installation is the user's own and only a variable may be set.
    Returns what was done, in words.
    """
    name = ptxas_name(triton_dir)
    variable = "TRITON_" + name.upper().replace("-", "_") + "_PATH"
    if env.get(variable):
        return "%s=%s is set already" % (variable, env[variable])
    link = os.path.join(triton_dir, "backends", "nvidia", "bin", name)
    if assembles(link):
        return "%s assembles sm_121a already" % link
    cuda = "/usr/local/cuda/bin/ptxas"
    if not os.path.exists(cuda):
        cuda = shutil.which("ptxas", path=env.get("PATH")) or ""
    if not cuda:
        return "missing: no ptxas at /usr/local/cuda/bin nor on PATH, the first Triton kernel will fail"
    if not os.access(cuda, os.X_OK):
        return "missing: %s is not executable, the first Triton kernel will fail" % cuda
    note = "" if assembles(cuda) else ", which does not assemble sm_121a either"
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
    """Put ``value`` before what a path variable holds."""
    env[name] = value + (os.pathsep + env[name] if env.get(name) else "")


def private_directory(beside: str) -> str:
    """A folder that only we may read: beside the launcher where that can be written, else a temporary one."""
    path = os.path.join(beside, "vllm-config")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    return tempfile.mkdtemp(prefix="sparkcluster-")


def known_names(root: str) -> set[str]:
    """Names in the list that a configuration folder already has."""
    try:
        with open(os.path.join(root, CARRY_OVER_FILE)) as file:
            names = json.load(file)
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def write_carry_over(env: dict[str, str], names: Iterable[str], private: str) -> str:
    """Tell vLLM which variables Ray must not carry from the head to this node's worker.

    The list goes into ``VLLM_CONFIG_ROOT`` (vllm/ray/ray_env.py reads it at import). A list that the user
    already has is kept. Returns the file's path.
    """
    wanted = set(names) | {"VLLM_CONFIG_ROOT", MARK}
    theirs = env.get("VLLM_CONFIG_ROOT") or os.path.join(env.get("HOME", "/root"), ".config", "vllm")
    wanted |= known_names(os.path.expanduser(theirs))
    roots = [os.path.expanduser(env["VLLM_CONFIG_ROOT"])] if env.get("VLLM_CONFIG_ROOT") else []
    for root in [*roots, private, tempfile.mkdtemp(prefix="sparkcluster-")]:
        path = os.path.join(root, CARRY_OVER_FILE)
        fresh = "%s.%d" % (path, os.getpid())
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)
            with open(fresh, "w") as file:
                json.dump(sorted(wanted), file)
            os.replace(fresh, path)
        except OSError:
            continue
        env["VLLM_CONFIG_ROOT"] = root
        return path
    raise Stop(RAY_FAILED, "no folder can be written for %s" % CARRY_OVER_FILE)


def run_setup(lines: list[str], env: dict[str, str], limit_s: float) -> None:
    """The playbook's own lines, in order, each with its limit in seconds."""
    for number, line in enumerate(lines, 1):
        say("phase=setup %d/%d" % (number, len(lines)))
        child = subprocess.Popen(
            ["sh", "-c", line], env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Stop(SETUP_FAILED, "setup line %d ran longer than %d s" % (number, limit_s)) from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if code != 0:
            raise Stop(SETUP_FAILED, "setup line %d exited with %d" % (number, code))


# ---------------------------------------------------------------------------------------------------- Ray


def ray_python(ray_path: str | None, engine: str) -> str:
    """Interpreter that can import Ray: our own when Ray was brought along, else the one that has it."""
    if ray_path:
        return interpreter_of(engine) or sys.executable
    for python in (sys.executable, interpreter_of("ray"), interpreter_of(engine)):
        if python and module_directory("ray", python):
            return python
    raise Stop(RAY_FAILED, "No module named 'ray': this image has no Ray and none was brought along")


def ray_command(argv: list[str], python: str) -> list[str]:
    """``ray …`` as a command that runs whether or not the script ``ray`` fits this interpreter."""
    if argv and argv[0] == "ray" and interpreter_of("ray") != python:
        return [python, "-m", "ray.scripts.scripts", *argv[1:]]
    return list(argv)


def start_ray_head(argv: list[str], env: dict[str, str], private: str, limit_s: float = 180) -> None:
    """Start Ray's head. It stays behind as daemons, so its output goes to a file and holds no pipe."""
    log = os.path.join(private, "ray-start.log")
    with open(log, "wb") as output:
        try:
            child = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            code = child.wait(timeout=limit_s)
        except OSError as error:
            raise Stop(RAY_FAILED, "ray start failed: %s" % error) from error
        except subprocess.TimeoutExpired:
            child.kill()
            raise Stop(RAY_FAILED, "ray start took longer than %d s: %s" % (limit_s, tail(log))) from None
    if code != 0:
        sys.stderr.write(tail(log, 60) + "\n")
        raise Stop(RAY_FAILED, "ray start exited with %d: %s" % (code, tail(log, 4)))


def wait_for_members(
    document: dict[str, Any],
    python: str,
    env: dict[str, str],
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until every member is alive in Ray, by its address; the count alone could be a stranger."""
    address, members = document["ray"]["address"], document["members"]
    until, said, said_at, buffer, missing = clock() + limit_s, "", 0.0, b"", list(members)
    error = None
    alive: list[str] = []
    child = subprocess.Popen(
        [python, "-u", "-c", _RAY_NODES, address], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    output = child.stdout.fileno() if child.stdout else -1
    try:
        while missing and clock() < until:
            line = "phase=ray-wait %d/%d missing %s" % (
                len(members) - len(missing),
                len(members),
                " ".join(missing),
            )
            if line != said or clock() - said_at >= 10:
                say(line)
                said, said_at = line, clock()
            if not select.select([output], [], [], 1)[0]:
                continue
            data = os.read(output, 65536)
            if not data:
                raise Stop(RAY_FAILED, "Ray at %s cannot be asked: %s" % (address, error or "no answer"))
            *whole, buffer = (buffer + data).split(b"\n")
            for one in whole:
                try:
                    answer = json.loads(one.decode(errors="replace"))
                except ValueError:
                    continue
                error = answer.get("error", error)
                alive = answer.get("alive", alive)
            missing = [member for member in members if member not in alive]
    finally:
        child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()
    if missing:
        raise Stop(
            RANK_MISSING,
            "after %d s Ray at %s still lacks %s (alive: %s)"
            % (limit_s, address, " ".join(missing), " ".join(alive) or "none"),
        )
    say("phase=ray-formed %d/%d" % (len(members), len(members)))


def wait_for_head(
    address: str,
    own: str,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the head's Ray takes connections from our own interconnect address."""
    host, _, port = address.rpartition(":")
    until = clock() + limit_s
    said_at = float("-inf")
    while True:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(3)
                probe.bind((own, 0))
                probe.connect((host, int(port)))
            return
        except OSError as error:
            last = error.strerror or str(error)
        if clock() >= until:
            raise Stop(
                RANK_MISSING,
                "after %d s Ray's head at %s does not answer %s: %s" % (limit_s, address, own, last),
            )
        if clock() - said_at >= 10:
            say("phase=ray-join waiting for %s (%s)" % (address, last))
            said_at = clock()
        pause(1)


def end_started(mark: str) -> None:
    """End what this launcher started, by the mark in its environment; nobody else's Ray is touched."""
    needle = ("%s=%s" % (MARK, mark)).encode()
    for sent in (signal.SIGTERM, signal.SIGKILL):
        alive = False
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in (1, os.getpid()):
                continue
            try:
                with open("/proc/%s/environ" % name, "rb") as file:
                    if needle in file.read().split(b"\0"):
                        os.kill(int(name), sent)
                        alive = True
            except OSError:
                continue
        if not alive:
            return
        time.sleep(1)


# --------------------------------------------------------------------------------------------- the launch


def prepare(document: dict[str, Any], folder: str, env: dict[str, str]) -> str:
    """What holds for every executor: paths, setup, ptxas, carry-over file. Returns the private folder."""
    inside = document.get("runtime", "docker") == "docker"
    before = dict(env)
    for path in document.get("python_path") or []:
        prepend(env, "PYTHONPATH", path)
    ray_path = document.get("ray_path")
    if ray_path:
        prepend(env, "PYTHONPATH", ray_path)
        prepend(env, "PATH", os.path.join(ray_path, "bin"))
        say("phase=ray-path %s" % ray_path)
    run_setup(document.get("setup") or [], env, document.get("setup_timeout_s", 900))
    if document.get("ptxas"):
        engine_python = interpreter_of(document["engine"][0])
        triton = module_directory("triton") or module_directory("triton", engine_python)
        done = place_ptxas(triton, env, inside) if triton else "no Triton in this image, nothing to do"
        say("phase=ptxas %s" % done)
    private = private_directory(folder)
    added = {name for name in env if name.startswith("TRITON_") and name not in before}
    names = set(document.get("carry_over") or []) | added
    if document.get("executor") == "ray":
        say("phase=carry-over %s" % write_carry_over(env, names, private))
    return private


def become(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Turn into ``argv``; from here on its end is ours."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        raise Stop(NO_ENGINE, "%s: command not found (%s)" % (argv[0], error.strerror)) from error


def launch(document: dict[str, Any], folder: str, env: dict[str, str]) -> NoReturn:
    """Go through the steps of this rank; does not return."""
    limit_s = document.get("join_timeout_s", 300)
    private = prepare(document, folder, env)
    if document["executor"] == "ray":
        ray = document["ray"]
        if ray.get("token"):
            if not (env.get("RAY_AUTH_TOKEN") or env.get("RAY_AUTH_TOKEN_PATH")):
                raise Stop(RAY_FAILED, "no RAY_AUTH_TOKEN in the environment, though Ray is to ask for one")
            env["RAY_AUTH_MODE"] = "token"
        env["RAY_ADDRESS"] = ray["address"]
        python = ray_python(document.get("ray_path"), document["engine"][0])
        start = ray_command(ray["start"], python)
        # For the engine alone: what starts or joins a cluster is told the address by its arguments.
        starting = {name: value for name, value in env.items() if name != "RAY_ADDRESS"}
        if document["role"] == "worker":
            wait_for_head(ray["address"], document["address"], limit_s)
            say("phase=ray-start worker %s" % document["address"])
            become(start, starting)
        say("phase=ray-start head %s" % ray["address"])
        start_ray_head(start, starting, private)
        wait_for_members(document, python, env, limit_s)
    say("phase=engine %s" % os.path.basename(document["engine"][0]))
    become(document["engine"], env)


def checked(path: str) -> dict[str, Any]:
    """The launcher document, complete enough to be used."""
    try:
        with open(path) as file:
            document: dict[str, Any] = json.load(file)
        missing = [
            name for name in ("executor", "role", "address", "members", "engine") if not document.get(name)
        ]
        if document.get("executor") == "ray" and not document.get("ray"):
            missing.append("ray")
        version = document.get("version")
    except (OSError, ValueError, AttributeError) as error:
        raise Stop(BAD_DOCUMENT, "%s: %s" % (path, error)) from error
    if missing or version != 1:
        what = "lacks " + ", ".join(missing) if missing else "has version %r, wanted 1" % (version,)
        raise Stop(BAD_DOCUMENT, "%s %s" % (path, what))
    return document


def terminated(_signal: int, _frame: object) -> NoReturn:
    """SIGTERM and SIGINT before the engine took over."""
    raise Stop(TERMINATED, "asked to stop before the engine started")


def main(argv: list[str]) -> int:
    """Run the launcher document in ``argv[1]``; returns only where the engine was not reached."""
    if len(argv) != 2:
        sys.stderr.write("usage: entry.py LAUNCHER.json\n")
        return BAD_DOCUMENT
    mark = "%d-%x" % (os.getpid(), int(time.time() * 1000))
    env = dict(os.environ, PYTHONUNBUFFERED="1")
    env[MARK] = mark
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, terminated)
    try:
        document = checked(argv[1])
        launch(document, os.path.dirname(os.path.abspath(argv[1])), env)
    except Stop as stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        say("error: %s" % stop)
        end_started(mark)
        return stop.code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
