"""Processes with a title that never outlive their parent."""

import ctypes
import importlib
import os
import socket
import subprocess
import sys
import threading

from stubengine.wire import Channel

PR_SET_NAME = 15
SITE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
CHILD = "import sys; sys.path.insert(0, %r); from stubengine import proc; proc.run_child()" % SITE


def set_title(title):
    """Shows ``title`` in /proc/PID/cmdline and as the thread's name, as setproctitle does for vLLM.

    If the kernel does not report the address of the arguments, they stay; the title is one of them anyway.
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


def spawn(module, title, **options):
    """Starts ``main(channel)`` of a module in a new process; returns (Popen, Channel to the process).

    The process exits when this end of the channel is closed.
    """
    parent_end, child_end = socket.socketpair()
    with child_end:
        argv = [sys.executable or "python3", "-I", "-S", "-B", "-c", CHILD, module, title]
        return subprocess.Popen(argv, stdin=child_end, **options), Channel(parent_end)


def run_child():
    """Entry point of every process that ``spawn`` starts; its channel is file descriptor 0."""
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    module, title = sys.argv[1:]
    set_title(title)
    importlib.import_module("stubengine." + module).main(Channel(sock))


def serve_parent(channel, handle):
    """Passes the parent's messages to ``handle`` in the background; exits when the parent exits."""

    def loop():
        for message in channel.messages():
            handle(message)
        os._exit(1)

    threading.Thread(target=loop, daemon=True, name="lifeline").start()
