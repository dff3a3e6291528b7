"""Log lines in vLLM's format."""

import os
import sys
import threading
import time

_lock = threading.Lock()
_process = "APIServer"
_sink = None


def configure(process, sink=None):
    """Names this process in its lines; ``sink(line)`` receives them instead of stdout."""
    global _process, _sink
    _process, _sink = process, sink


def emit(line, stream=None):
    """Writes a raw line to this process's log."""
    if _sink is not None:
        _sink(line)
        return
    stream = stream or sys.stdout
    with _lock:
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            return


def _write(level, where, message):
    prefix = "(%s pid=%d) %s %s [%s] " % (_process, os.getpid(), level, time.strftime("%m-%d %H:%M:%S"), where)
    for line in str(message).split("\n"):
        emit(prefix + line)


def ray(where, message):
    """A line of Ray's console."""
    now = time.time()
    emit(
        "%s,%03d\tINFO %s -- %s"
        % (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)), now % 1 * 1000, where, message)
    )


def info(where, message, *args):
    """An INFO line; ``where`` is file:line as vLLM prints it."""
    _write("INFO", where, message % args if args else message)


def warning(where, message, *args):
    """A WARNING line."""
    _write("WARNING", where, message % args if args else message)


def error(where, message, *args):
    """An ERROR line per line of the message, as vLLM prefixes tracebacks."""
    _write("ERROR", where, message % args if args else message)


def traceback(where, title, frames, last):
    """A traceback as the real engine would log it: ``frames`` are (path, line, function)."""
    lines = [title, "Traceback (most recent call last):"]
    lines += ['  File "%s", line %d, in %s' % frame for frame in frames]
    error(where, "%s", "\n".join(lines + [last]))


def uvicorn(message):
    """A line of uvicorn's own."""
    emit("INFO:     %s" % message, sys.stderr)


def shards(done, total, elapsed_s):
    """tqdm's line of the weights, one line each as vLLM sets it."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    left_s = (total - done) / rate if rate else 0
    emit(
        "Loading safetensors checkpoint shards: %3.0f%% Completed | %d/%d [%02d:%02d<%s, %s]"
        % (
            100.0 * done / total,
            done,
            total,
            elapsed_s // 60,
            elapsed_s % 60,
            "%02d:%02d" % (left_s // 60, left_s % 60) if rate else "?",
            "%.2fit/s" % rate if rate else "?it/s",
        ),
        sys.stderr,
    )
