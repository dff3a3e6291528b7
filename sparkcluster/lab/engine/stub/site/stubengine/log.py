"""Log lines in the formats of vLLM, SGLang, Ray, NCCL and uvicorn.

Shared processes log vLLM's lines. For SGLang a table replaces them with SGLang's lines.
"""

import functools
import os
import socket
import sys
import threading
import time

from stubengine import flags

SGLANG = "STUB_SGLANG"  # if set, this process and its children log in SGLang's format, with this text after the time
_lock = threading.Lock()
_process = "APIServer"


def configure(process):
    """Sets the name of this process in log lines."""
    global _process
    _process = process


def emit(line, stream=None):
    """Writes a raw line to this process's log."""
    stream = stream or sys.stdout
    with _lock:
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            return


def write(level, where, message, *args):
    """Logs each line of the message in vLLM's format; ``where`` is file:line as vLLM prints it."""
    prefix = "(%s pid=%d) %s %s [%s] " % (_process, os.getpid(), level, time.strftime("%m-%d %H:%M:%S"), where)
    if SGLANG in os.environ:
        if level == "INFO" or where in _sglang_lines():
            return sglang(where, *args)
        prefix = _stamp(os.environ[SGLANG])
    for line in (message % args if args else message).split("\n"):
        emit(prefix + line)


def sglang(where, *args):
    """Logs SGLang's lines for a file:line of vLLM, or for a name in the table, if any."""
    for text in _sglang_lines().get(where, ()):
        emit(_stamp(os.environ[SGLANG]) + text.format(*args), sys.stderr)


@functools.lru_cache
def _sglang_lines():
    found = {}
    for where, _, text in flags.rows("sglang-0.5.23-log.tsv"):
        found.setdefault(where, []).append(text)
    return found


def _stamp(rank=""):
    return time.strftime("[%Y-%m-%d %H:%M:%S") + rank + "] "


info = functools.partial(write, "INFO")
warning = functools.partial(write, "WARNING")
error = functools.partial(write, "ERROR")


def ray(where, message):
    """Logs a line in the format of Ray's console."""
    now = time.time()
    emit(
        "%s,%03d\tINFO %s -- %s"
        % (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)), now % 1 * 1000, where, message)
    )


def nccl(line):
    """Logs a line in NCCL's format."""
    emit("%s:%d:%d [0] NCCL %s" % (socket.gethostname(), os.getpid(), os.getpid(), line))


def uvicorn(message):
    """Logs a line in uvicorn's format."""
    emit((_stamp() if SGLANG in os.environ else "") + "INFO:     " + message, sys.stderr)


def traceback(last, *frames):
    """A traceback in Python's format, from frames (path, line, function)."""
    if SGLANG in os.environ:
        frames = [("sglang/srt/managers/scheduler.py", 6358, "run_scheduler_process")]
    lines = ['  File "%s", line %d, in %s' % frame for frame in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, last])


def shards(done, total, elapsed_s):
    """Logs tqdm's progress of the weights, on a new line each time, as vLLM does."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    remaining_s = (total - done) / rate if rate else 0
    emit(
        "Loading safetensors checkpoint shards: %3.0f%% Completed | %d/%d [%02d:%02d<%s, %s]"
        % (
            100.0 * done / total,
            done,
            total,
            elapsed_s // 60,
            elapsed_s % 60,
            "%02d:%02d" % (remaining_s // 60, remaining_s % 60) if rate else "?",
            "%.2fit/s" % rate if rate else "?it/s",
        ),
        sys.stderr,
    )
