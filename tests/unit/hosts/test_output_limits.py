"""Nodes whose programs print without end: every call and line has a limit, and memory is bounded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.errors import CommandFailed, CommandTimeout
from sparkcluster.hosts import base, program
from sparkcluster.hosts.local import LocalHost

# A hostile node's python3, which ignores its input.
HOSTILE = {
    "flood": "import sys\nwhile True: sys.stdout.write('x' * 99 + '\\n' + 'y' * 1000)",
    "endless-line": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "trickle": "import sys, time\nprint('begun')\nwhile True: sys.stdout.write('x'); sys.stdout.flush(); time.sleep(0.05)",
}


@pytest.fixture(params=["local", "ssh"])
def node(request):
    """This machine, directly and through a real sshd."""
    return LocalHost("spark-1") if request.param == "local" else request.getfixturevalue("host")


def hostile(kind: str) -> list[str]:
    return [sys.executable, "-c", HOSTILE[kind]]


def test_a_call_with_endless_output_fails_at_its_limit(node, monkeypatch):
    monkeypatch.setattr(base, "OUTPUT_BYTES", 3_000_000)
    with pytest.raises(CommandFailed, match=r"on spark-1 printed output of more than 3 MB") as caught:
        node.run(hostile("flood"), timeout_s=60)
    assert caught.value.node == "spark-1"


def test_an_endless_line_fails_at_its_limit(node):
    with (
        node.stream(hostile("endless-line")) as stream,
        pytest.raises(CommandFailed, match=r"on spark-1 printed a line of more than 1 MB"),
    ):
        next(stream.lines(30))


def test_output_without_line_ends_counts_as_silence(node):
    with node.stream(hostile("trickle")) as stream:
        assert next(stream.lines(30)) == b"begun"
        with pytest.raises(CommandTimeout, match=r"printed no complete line for 0\.6 s"):
            next(stream.lines(0.6))


def test_endless_lines_end_at_the_total_limit(node):
    line = "import time\nwhile True: print('{}', flush=True); time.sleep(0.05)"
    with (
        node.stream([sys.executable, "-c", line]) as stream,
        pytest.raises(CommandTimeout, match=r"did not end within 0\.8 s"),
    ):
        list(stream.lines(30, within_s=0.8))


def test_a_document_with_too_many_values_is_refused():
    """A byte of JSON may take 80 bytes in memory."""
    assert program.document(b"[" + b"[]," * 1_500_000 + b"[]]") is None
    assert program.document(b'{"one": "' + b"x" * 17_000_000 + b'"}') is None
    assert len(program.document(b'{"files": [' + b'{"path": "a"},' * 20_000 + b"0]}")["files"]) == 20_001


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"a": ' + b"[" * 63 + b"]" * 63 + b"}", True),
        (b'{"a": ' + b"[" * 100_000, None),
        (b'{"a": [1e999, -1e999, NaN, Infinity]}', {"a": [None] * 4}),
        (b'{"a\\ud800": "\\udfff"}', {"a?": "?"}),
    ],
)
def test_a_document_may_be_as_large_as_can_be_handled(line, found):
    """No recursion, number or text on which other code fails."""
    parsed = program.document(line)
    assert bool(parsed) if found is True else repr(parsed) == repr(found)


MEMORY = """
import resource, sys
from pathlib import Path
from sparkcluster.errors import SparkclusterError
from sparkcluster.hosts import program
from sparkcluster.hosts.local import LocalHost

host, kind = LocalHost("spark-1"), sys.argv[1]
try:
    if kind == "lines":
        with program.stream(host, "watch", {}) as stream:
            for line in stream.lines(30):
                pass
    else:
        program.call(host, "probe", {}, answer=dict, timeout_s=60)
except SparkclusterError as error:
    print(error)
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize(
    ("kind", "how", "message"),
    [
        ("flood", "call", "printed output of more than 64 MB"),
        ("endless-line", "lines", "printed a line of more than 1 MB"),
    ],
)
def test_memory_is_bounded(tmp_path: Path, kind: str, how: str, message: str) -> None:
    """The controller as a separate process, and a node with another python3."""
    python = tmp_path / "python3"
    python.write_text(f"#!{sys.executable}\n{HOSTILE[kind]}\n")
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, how], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    said, peak_kb = done.stdout.splitlines()
    assert message in said
    assert int(peak_kb) < 320_000
