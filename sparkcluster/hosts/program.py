"""Runs a module of ``sparkcluster.node`` on a node: source and request are sent by standard input.

The line that starts it is the same for every program and holds no user data. The first line of input
is a JSON document with the sources and the request; what follows belongs to the program.
"""

from __future__ import annotations

import base64
import functools
import importlib.resources
import json
import math
import re
import zlib
from typing import Any, TypeVar

from sparkcluster.answers import checked
from sparkcluster.errors import CommandFailed
from sparkcluster.hosts.base import DOCUMENT_BYTES, Host, Stream
from sparkcluster.hosts.quote import PYTHON_OPTIONS

T = TypeVar("T")

_START = "import sys,json;sys.dont_write_bytecode=True;boot=json.loads(sys.stdin.buffer.readline());exec(boot['start'])"

# Sources are sent compressed: a third of the bytes, which matters on a slow uplink to many nodes.
# An older Python cannot read them.
_UNPACK = """
import binascii, zlib
if sys.version_info < (3, 10):
    sys.exit("its python3 is %s, and 3.10 or newer is needed" % sys.version.split()[0])
boot["modules"] = json.loads(zlib.decompress(binascii.a2b_base64(boot["packed"])))
"""

# Runs on the node with ``boot`` in scope: makes the sent modules importable, then calls main.
_LOADER = """
import types
for name in ("sparkcluster", "sparkcluster.node"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in boot["modules"]:
    module = types.ModuleType("sparkcluster.node." + name)
    module.__file__ = "<sparkcluster/node/%s.py>" % name
    sys.modules[module.__name__] = module
    setattr(sys.modules["sparkcluster.node"], name, module)
    exec(compile(text, module.__file__, "exec"), module.__dict__)
answer = module.main(boot["request"], sys.stdin.buffer)
if answer is not None:
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
"""

# An empty list takes three bytes of text, and 80 in memory.
_MAX_VALUES = 1_000_000
_DEPTH = 64

_IMPORT = re.compile(r"^ *from sparkcluster\.node(?:\.(\w+) import| import (.+))", re.MULTILINE)


@functools.cache
def source(module: str, engine: str = "") -> str:
    """Source of ``sparkcluster.node.<module>``; of its ``engine``, that in the engine's directory, if there is one."""
    if module == "engine" and engine:
        engine_program = importlib.resources.files(f"sparkcluster.engines.{engine}") / "node.py"
        if engine_program.is_file():
            return engine_program.read_text()
    return (importlib.resources.files("sparkcluster.node") / f"{module}.py").read_text()


def _modules(module: str, engine: str) -> dict[str, str]:
    """Sources of ``sparkcluster.node.<module>`` and of what it imports by name, imported ones first."""
    found: dict[str, str] = {}
    for single, several in _IMPORT.findall(source(module, engine)):
        for name in [single] if single else several.split(", "):
            found |= _modules(name, engine)
    return {**found, module: source(module, engine)}


@functools.cache
def _packed(module: str, engine: str) -> str:
    """``_modules`` as one printable string."""
    modules = list(_modules(module, engine).items())
    return base64.b64encode(zlib.compress(json.dumps(modules).encode())).decode()


def standalone(module: str, engine: str = "") -> str:
    """``sparkcluster.node.<module>`` and what it imports as one program in a file of its own.

    It calls ``main`` with its command line and exits with what that returns.
    """
    modules = list(_modules(module, engine).items())
    start = _LOADER.rsplit("answer = ", 1)[0]
    return f"import sys\nboot = {{'modules': {modules!r}}}\n{start}sys.exit(module.main(sys.argv))\n"


def command(module: str, request: dict[str, Any], *, task: str = "", engine: str = "") -> tuple[list[str], bytes]:
    """Command line and input that run a program of ``sparkcluster.node`` with ``request``.

    The last word of the command line is its ``task``, for ``ps`` on the node and for messages; default: ``module``.
    ``engine`` is the inference engine whose ``node.py`` is sent along.
    """
    boot = {"start": _UNPACK + _LOADER, "program": module, "packed": _packed(module, engine), "request": request}
    return ["python3", *PYTHON_OPTIONS, _START, task or module], json.dumps(boot).encode() + b"\n"


def full_disk(host: Host, reason: str) -> str | None:
    """What to type where a program ended since it could not write."""
    return f"df -h   on {host.name}, whose disk is full: remove what is not needed" if "Errno 28" in reason else None


def call(
    host: Host,
    module: str,
    request: dict[str, Any],
    *,
    answer: type[T],
    timeout_s: float = 30,
    task: str = "",
    engine: str = "",
) -> T:
    """Run a program to its end and return the document that it prints, as ``answer``.

    Raises:
        CommandFailed: it failed, or printed no such document; the message has its last line of stderr.
        HostError: the node could not be reached, or did not answer within ``timeout_s``.
    """
    task = task or module
    argv, stdin = command(module, request, task=task, engine=engine)
    result = host.run(argv, stdin=stdin, timeout_s=timeout_s)
    found = document(result.stdout.rstrip().rpartition(b"\n")[2]) if result.ok else None
    if found is None:
        hint = (
            f"on {host.name}: sudo apt-get install python3"
            if result.exit_code == 127
            else full_disk(host, result.reason)
        )
        raise CommandFailed(f"{task} failed on {host.name}: {result.reason}", node=host.name, step=task, hint=hint)
    return checked(answer, found, node=host.name, step=task)


def document(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line of output; None if there is none, or one that would take much memory or nests too deep.

    A number that is not finite, as in some models' config.json, is null; one of more than 64 bits is a float.
    """
    if len(line) > DOCUMENT_BYTES or sum(map(line.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        return None
    try:
        text = line.decode(errors="replace")
        found = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=lambda _: None)
        if not isinstance(found, dict) or not _is_flat(found, _DEPTH):
            return None
        if "\\u" in text:  # half of a surrogate pair, as in the name of a file that is not UTF-8, cannot be printed
            found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return dict(found)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _whole(text: str) -> float | None:
    number = int(text) if len(text) <= 20 else 1 << 64
    return number if -(1 << 63) <= number < 1 << 63 else _finite(text)


def _is_flat(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    return depth > 0 and all(
        _is_flat(each, depth - 1) for each in (value.values() if isinstance(value, dict) else value)
    )


def stream(host: Host, module: str, request: dict[str, Any]) -> Stream:
    """Start a program that prints lines."""
    argv, stdin = command(module, request)
    return host.stream(argv, stdin=stdin)
