"""Runs a module of ``sparkcluster.node`` on a node: its source and its request are sent by standard input.

The command line is the same for every program and holds no user data. The first line of input is a JSON document with
the sources and the request; the rest of the input is read by the program.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.resources
import json
import math
import re
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

from sparkcluster.answers import checked
from sparkcluster.errors import CommandFailed, HostError
from sparkcluster.hosts.base import DOCUMENT_BYTES, Closing, Host, Stream
from sparkcluster.hosts.fleet import Calls
from sparkcluster.hosts.quote import PYTHON_OPTIONS
from sparkcluster.printable import one_line

T = TypeVar("T")

_START = "import sys,json;sys.dont_write_bytecode=True;boot=json.loads(sys.stdin.buffer.readline());exec(boot['start'])"

# Sources are sent compressed: a third of the bytes, which matters on a slow uplink to many nodes. Older versions of
# Python cannot parse them.
_UNPACK = """
import binascii, zlib
if sys.version_info < (3, 10):
    sys.exit("its python3 is %s, but 3.10 or newer is required" % sys.version.split()[0])
boot["modules"] = json.loads(zlib.decompress(binascii.a2b_base64(boot["packed"])))
"""

# Runs on the node with ``boot`` in scope: makes the modules that were sent importable, then calls main.
_LOADER = """
import types
package = "sparkcluster." + boot.get("package", "node")
for name in ("sparkcluster", package):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in boot["modules"]:
    module = types.ModuleType(package + "." + name)
    module.__file__ = "<%s/%s.py>" % (package.replace(".", "/"), name)
    sys.modules[module.__name__] = module
    setattr(sys.modules[package], name, module)
    exec(compile(text, module.__file__, "exec"), module.__dict__)
answer = module.main(boot["request"], sys.stdin.buffer)
if answer is not None:
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
"""

# A JSON text of 3 bytes can become a list of 80 bytes in memory.
_MAX_VALUES = 1_000_000
_DEPTH = 64

_IMPORT = re.compile(r"^ *from sparkcluster\.(?:node|gateway)(?:\.(\w+) import| import (.+))", re.MULTILINE)


@functools.cache
def source(module: str, engine: str = "", package: str = "node") -> str:
    """Source of ``sparkcluster.<package>.<module>``.

    For module ``engine``, the ``node.py`` of the inference engine ``engine``, if it has one.
    """
    if module == "engine" and engine:
        engine_program = importlib.resources.files(f"sparkcluster.engines.{re.sub('[.-]', '_', engine)}") / "node.py"
        if engine_program.is_file():
            return engine_program.read_text()
    return (importlib.resources.files(f"sparkcluster.{package}") / f"{module}.py").read_text()


def _modules(module: str, engine: str, package: str = "node") -> dict[str, str]:
    """Sources of ``sparkcluster.<package>.<module>`` and of the modules that it imports, in order of import."""
    found: dict[str, str] = {}
    for single, several in _IMPORT.findall(source(module, engine, package)):
        for name in [single] if single else several.split(", "):
            found |= _modules(name, engine, package)
    return {**found, module: source(module, engine, package)}


@functools.cache
def _packed(module: str, engine: str) -> str:
    """``_modules`` as one printable string."""
    modules = list(_modules(module, engine).items())
    return base64.b64encode(zlib.compress(json.dumps(modules).encode())).decode()


def standalone(module: str, engine: str = "", package: str = "node") -> str:
    """``sparkcluster.<package>.<module>`` and the modules that it imports, as a program in one file.

    The program calls ``main`` with its command line and exits with the return value.
    """
    boot = {"modules": list(_modules(module, engine, package).items()), "package": package}
    start = _LOADER.rsplit("answer = ", 1)[0]
    return f"import sys\nboot = {boot!r}\n{start}sys.exit(module.main(sys.argv))\n"


def command(module: str, request: dict[str, Any], *, task: str = "", engine: str = "") -> tuple[list[str], bytes]:
    """Command line and input that run a program of ``sparkcluster.node`` with ``request``.

    The last word of the command line is ``task`` (default: ``module``), for ``ps`` on the node and for messages. The
    ``node.py`` of the inference engine ``engine`` is sent along.
    """
    boot = {"start": _UNPACK + _LOADER, "program": module, "packed": _packed(module, engine), "request": request}
    return ["python3", *PYTHON_OPTIONS, _START, task or module], json.dumps(boot).encode() + b"\n"


def _failed(host: Host, task: str, reason: str, exit_code: int | None = None) -> CommandFailed:
    hint = None
    if exit_code == 127:
        hint = f"on {host.name}: sudo apt-get install python3"
    elif "Errno 28" in reason:
        hint = f"df -h   on {host.name}: its disk is full; remove files that are not needed"
    return CommandFailed(f"{task} failed on {host.name}: {reason}", node=host.name, step=task, hint=hint)


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
    """Run a program until it exits and return the document that it prints, as ``answer``.

    Raises:
        CommandFailed: it failed, or did not print a valid document; the message has the last line of stderr.
        HostError: the node could not be reached, or did not answer within ``timeout_s``.
    """
    task = task or module
    argv, stdin = command(module, request, task=task, engine=engine)
    result = host.run(argv, stdin=stdin, timeout_s=timeout_s)
    found = document(result.stdout.rstrip().rpartition(b"\n")[2]) if result.ok else None
    if found is None:
        raise _failed(host, task, result.reason, result.exit_code)
    return checked(answer, found, node=host.name, step=task)


def document(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line of output; None if there is none, or if it is too large or too deeply nested.

    A number that is not finite, as in some models' config.json, becomes null; one of more than 64 bits becomes a float.
    """
    if len(line) > DOCUMENT_BYTES or sum(map(line.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        return None
    try:
        text = line.decode(errors="replace")
        found = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=lambda _: None)
        if not isinstance(found, dict) or not _is_flat(found, _DEPTH):
            return None
        if "\\u" in text:  # half of a surrogate pair, as in a file name that is not UTF-8, cannot be printed
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


def stream(host: Host, module: str, request: dict[str, Any], content: bytes = b"") -> Stream:
    """Start a program that prints lines; its input starts with ``content``."""
    argv, stdin = command(module, request)
    return host.stream(argv, stdin=stdin + content)


class Conversation(Closing):
    """A running program ``module`` of ``sparkcluster.node`` on ``host``, which exits when its input is closed.

    ``silence_s`` is how long it may print nothing. ``within_s`` is how long it may take in total, from the first call
    of ``answer``. A subclass may accept only shorter documents.
    """

    line_bytes = DOCUMENT_BYTES

    def __init__(
        self, host: Host, module: str, request: dict[str, Any], *, silence_s: float, within_s: float = math.inf
    ) -> None:
        self.host = host
        self.module = module
        self.stream: Stream = stream(host, module, request)
        self._lines: Iterator[bytes] = self.stream.lines(silence_s, line_bytes=self.line_bytes, within_s=within_s)

    def say(self, request: dict[str, Any]) -> None:
        """Send a line to the program."""
        self.stream.send(json.dumps(request).encode() + b"\n")

    def answer(self, kind: type[T]) -> T:
        """The next document that the program prints, as ``kind``.

        Raises:
            CommandFailed: it exited, or printed anything but a ``kind``.
            HostError: it printed nothing for too long, took too long, or the connection broke.
        """
        line = next(self._lines, b"")
        found = document(line)
        if found is None:
            reason = one_line(line[:500].decode(errors="replace")) or self.stream.finish().reason
            raise _failed(self.host, self.module, reason)
        return checked(kind, found, node=self.host.name, step=self.module)

    def close(self) -> None:
        """Close the input and wait at most 5 s for the program to exit. Never raises; may be called twice."""
        with contextlib.suppress(HostError):
            self.stream.finish()
        self.stream.close()


class Conversations(Closing):
    """The program ``module`` on several nodes; all are closed when the block ends, also by an error or Ctrl-C."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.closed = False
        self._started: list[Conversation] = []

    def start(
        self, host: Host, request: dict[str, Any], *, silence_s: float, within_s: float = math.inf
    ) -> Conversation:
        """Start the program on ``host``; HostError if this is closed."""
        if self.closed:
            raise HostError(f"{self.module} was stopped", node=host.name, step=self.module)
        conversation = Conversation(host, self.module, request, silence_s=silence_s, within_s=within_s)
        self._started.append(conversation)
        return conversation

    def close(self) -> None:
        """Close all at the same time; each has seconds to clean up."""
        self.closed = True
        started = {str(place): conversation for place, conversation in enumerate(self._started)}
        Calls(Conversation.close, started).wait(8)
