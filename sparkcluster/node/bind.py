"""Keeps every socket of the engine on the interconnect: nothing listens on "all addresses".

Part of ``launcher``; Python 3.8, standard library only.

Ray's servers (gcs_server, raylet, every worker) and torch's store listen on 0.0.0.0 or [::], and no setting
moves them: ray#59852 gave Ray's the node's address and ray#60012 took that back three days later. What they
all share is libc's ``bind``. A small library that stands in front of it turns "any address" into the node's
own; addresses that a program names itself stay as they are, and so do the ports that are to be open. It is
compiled where it is needed, in the container: images that can run Triton have a C compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Iterable, MutableMapping

from sparkcluster.node.programs import succeeds

ADDRESS = "SPARKCLUSTER_BIND_ADDRESS"
OPEN_PORTS = "SPARKCLUSTER_BIND_OPEN"
COMPILERS = ("cc", "gcc", "clang", "tcc")

# No header is included: a compiler without the C library's development files is enough. The layouts are
# those of Linux (struct sockaddr_in, sockaddr_in6), the numbers those of its system call tables.
SOURCE = r"""
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned char u8;

extern long syscall(long, ...);
extern char *getenv(const char *);
extern int inet_pton(int, const char *, void *);

enum { AF_INET = 2, AF_INET6 = 10, V4_SIZE = 16, V6_SIZE = 28 };
#if defined(__x86_64__)
enum { NR_BIND = 49 };
#elif defined(__aarch64__)
enum { NR_BIND = 200 };
#else
#error this machine is neither x86_64 nor aarch64
#endif

/* Whether the port, in network order, is among those that may listen everywhere. */
static int is_open(u16 port)
{
    const char *text = getenv("SPARKCLUSTER_BIND_OPEN");
    u32 own_port = (u32)((port & 255) << 8 | port >> 8), number = 0;
    if (!text)
        return 0;
    for (;; text++) {
        if (*text >= '0' && *text <= '9') {
            number = number * 10 + (u32)(*text - '0');
            continue;
        }
        if (number && number == own_port)
            return 1;
        if (!*text)
            return 0;
        number = 0;
    }
}

int bind(int fd, const void *name, u32 size)
{
    const u8 *given = name;
    const u16 *head = name; /* family, port */
    const char *own = getenv("SPARKCLUSTER_BIND_ADDRESS");
    u8 copy[V6_SIZE], bytes[4], any = 0;
    u32 start, end, i;

    if (!name || !own || inet_pton(AF_INET, own, bytes) != 1)
        return (int)syscall(NR_BIND, fd, name, size);
    if (size >= V4_SIZE && head[0] == AF_INET)
        start = 4, end = 8;
    else if (size >= V6_SIZE && head[0] == AF_INET6)
        start = 8, end = 24;
    else
        return (int)syscall(NR_BIND, fd, name, size);
    for (i = start; i < end; i++)
        any |= given[i];
    if (any || is_open(head[1]))
        return (int)syscall(NR_BIND, fd, name, size);
    for (i = 0; i < V6_SIZE && i < size; i++)
        copy[i] = given[i];
    if (head[0] == AF_INET6)
        copy[18] = copy[19] = 255; /* ::ffff:a.b.c.d, the IPv4 address in IPv6's form */
    for (i = 0; i < 4; i++)
        copy[end - 4 + i] = bytes[i];
    return (int)syscall(NR_BIND, fd, copy, head[0] == AF_INET6 ? V6_SIZE : V4_SIZE);
}
"""

_TRIAL = "import socket,sys;s=socket.socket();s.bind(('',0));sys.exit(s.getsockname()[0]!=sys.argv[1])"


def build(path: str, env: MutableMapping[str, str]) -> str | None:
    """Compile the library to ``path``. Returns what went wrong in one line, or None."""
    candidates = ([env["CC"]] if env.get("CC") else []) + list(COMPILERS)
    compiler = next((found for name in candidates if (found := shutil.which(name, path=env.get("PATH")))), None)
    if compiler is None:
        return "no C compiler (%s) in this image" % ", ".join(COMPILERS)
    fresh = "%s.%d" % (path, os.getpid())
    argv = [compiler, "-O2", "-shared", "-fPIC", "-nostdlib", "-o", fresh, "-x", "c", "-"]
    if os.path.basename(compiler) == "tcc":
        argv = [compiler, "-shared", "-nostdlib", "-o", fresh, "-"]
    try:
        done = subprocess.run(
            argv,
            input=SOURCE.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return "%s: %s" % (compiler, error)
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        return "%s exited with %d: %s" % (compiler, done.returncode, lines[0] if lines else "no output")
    os.replace(fresh, path)
    return None


def works(path: str, env: MutableMapping[str, str], address: str) -> bool:
    """Whether a program started with the library has its "any address" turned into ``address``."""
    trial = dict(env, LD_PRELOAD=path)
    trial[ADDRESS] = address
    trial.pop(OPEN_PORTS, None)
    argv = [sys.executable, "-I", "-S", "-c", _TRIAL, address]
    return succeeds(argv, 30, env=trial)


def confine(env: MutableMapping[str, str], address: str, open_ports: Iterable[int], folder: str) -> str:
    """Have everything that is started with ``env`` listen on ``address`` where it would on all addresses.

    ``env`` is changed; ``open_ports`` may listen on all addresses; the library is put in ``folder``, where only we may
    write. Returns what was done, in words; a text that begins with ``missing:`` says that sockets stay as they are.
    """
    path = os.path.join(folder, "bind.so")
    if not works(path, env, address):
        trouble = build(path, env)
        if trouble is None and not works(path, env, address):
            trouble = "%s was built and has no effect" % path
        if trouble is not None:
            return "missing: %s" % trouble
    others = [name for name in env.get("LD_PRELOAD", "").replace(":", " ").split() if name != path]
    env["LD_PRELOAD"] = ":".join([path, *others])
    # Without it a raylet removes LD_PRELOAD from the environment of its workers.
    env["RAY_LD_PRELOAD_ON_WORKERS"] = "1"
    env[ADDRESS] = address
    ports = ",".join(str(port) for port in open_ports)
    env.pop(OPEN_PORTS, None)
    if ports:
        env[OPEN_PORTS] = ports
    return "%s%s" % (address, ", every address for port " + ports if ports else "")
