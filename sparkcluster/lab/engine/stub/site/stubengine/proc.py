"""Processes that carry a title and that never outlive the one that started them."""

import ctypes
import os
import socket
import subprocess
import sys
import threading

from stubengine.wire import Channel

PR_SET_NAME = 15
CHILD = os.path.join(os.path.dirname(os.path.realpath(__file__)), "child.py")


def set_title(title):
    """Shows ``title`` in /proc/PID/cmdline and in the thread's name, as setproctitle does for vLLM.

    Where the kernel does not tell the place of the arguments, they stay: the title is one of them anyway.
    """
    try:
        with open("/proc/self/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49 of proc(5)
        libc = ctypes.CDLL(None, use_errno=True)
        room = end - start
        if start and room > 1:
            text = title.encode()[: room - 1]
            ctypes.memmove(start, text + b"\0" * (room - len(text)), room)
        libc.prctl(PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    except (OSError, ValueError, IndexError, AttributeError):
        return


def spawn(kind, title, env=None, stdout=None, stderr=None):
    """Starts a helper and returns (Popen, Channel to it). It ends when this end of the channel closes."""
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable or "python3", "-I", "-S", "-B", CHILD, kind, title],
            stdin=theirs,
            stdout=stdout,
            stderr=stderr,
            env=env,
        )
    finally:
        theirs.close()
    return process, Channel(ours)


def parent_channel():
    """The channel to the process that spawned this one, found on file descriptor 0."""
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return Channel(sock)


def serve_parent(channel, handle, orphaned=None):
    """Reads the parent's messages in the background, and ends this process when the parent is gone."""

    def loop():
        for message in channel.messages():
            handle(message)
        if orphaned is not None:
            orphaned()
        os._exit(1)

    thread = threading.Thread(target=loop, daemon=True, name="lifeline")
    thread.start()
    return thread
