"""Keeps all sockets of the engine on the interconnect: nothing listens on all addresses.

Part of ``launcher`` and of ``agent``.

Ray's servers (gcs_server, raylet, every worker) and torch's store listen on 0.0.0.0 or [::], and no setting changes
that: ray#59852 gave Ray's servers the node's address, and ray#60012 reverted it three days later. They all use libc's
``bind`` and ``listen``. A small preloaded library wraps these and replaces "any address" with the node's address;
explicit addresses and ports that must be open are left unchanged. It needs no C library to build or run, so the agent
compiles it on the node, since DGX OS has a compiler; the launcher compiles it in the image only if the node has none.
docs/internals/ray-sockets.md compares alternatives.

Programs that call the kernel directly (Go, static programs) bypass the library: ``network.wildcards`` finds their
sockets.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, MutableMapping

from sparkcluster.node.programs import Failed, run, succeeds
from sparkcluster.node.shared import BIND_FILE, COMPILERS

ADDRESS = "SPARKCLUSTER_BIND_ADDRESS"
OPEN_PORTS = "SPARKCLUSTER_BIND_OPEN"

# No header is included, so that the compiler needs no development files. The layouts are Linux's (struct sockaddr_in,
# sockaddr_in6), the numbers are from its system call tables.
SOURCE = r"""
typedef unsigned int u32;
typedef unsigned char u8;

extern long syscall(long, ...);
extern char *getenv(const char *);
extern int inet_pton(int, const char *, void *);

enum { AF_UNSPEC = 0, AF_INET = 2, AF_INET6 = 10, V4_SIZE = 16, V6_SHORTEST = 24, V6_SIZE = 28 };
#if defined(__x86_64__)
enum { NR_BIND = 49, NR_LISTEN = 50, NR_GETSOCKNAME = 51 };
#elif defined(__aarch64__)
enum { NR_BIND = 200, NR_LISTEN = 201, NR_GETSOCKNAME = 204 };
#else
#error this machine is neither x86_64 nor aarch64
#endif

/* Whether the port is among those that may listen everywhere. */
static int is_open(u32 port)
{
    const char *text = getenv("SPARKCLUSTER_BIND_OPEN");
    u32 number = 0;
    if (!text)
        return 0;
    for (;; text++) {
        if (*text >= '0' && *text <= '9') {
            number = number * 10 + (u32)(*text - '0');
            continue;
        }
        if (number && number == port)
            return 1;
        if (!*text)
            return 0;
        number = 0;
    }
}

/* Whether ``name`` is a wildcard address with a port that must be confined; if so, ``own`` gets the node's address. */
static int is_confined(const u8 *name, u32 size, u8 *own)
{
    const char *address = getenv("SPARKCLUSTER_BIND_ADDRESS");
    u32 family = name[0] | (u32)name[1] << 8, i;
    u8 any = 0;

    if (family == AF_INET6 && size >= V6_SHORTEST) {
        for (i = 8; i < 24; i++)
            any |= i == 18 || i == 19 ? name[i] != name[18] : name[i];
        if (name[18] != 0 && name[18] != 255) /* ::ffff:0.0.0.0 is 0.0.0.0 */
            return 0;
    } else if ((family == AF_INET || family == AF_UNSPEC) && size >= V4_SIZE) { /* the kernel takes both */
        for (i = 4; i < 8; i++)
            any |= name[i];
    } else {
        return 0;
    }
    return !any && !is_open((u32)name[2] << 8 | name[3]) && address && inet_pton(AF_INET, address, own) == 1;
}

int bind(int fd, const void *name, u32 size)
{
    const u8 *asked = name;
    u8 own[4], copy[V6_SIZE];
    u32 six, i;

    if (!name || size < 2 || !is_confined(asked, size, own))
        return (int)syscall(NR_BIND, fd, name, size);
    six = asked[0] == AF_INET6;
    for (i = 0; i < V6_SIZE; i++)
        copy[i] = i < size ? asked[i] : 0;
    copy[0] = six ? AF_INET6 : AF_INET;
    if (six)
        copy[18] = copy[19] = 255; /* ::ffff:a.b.c.d, the IPv4 address in IPv6's form */
    for (i = 0; i < 4; i++)
        copy[(six ? 20 : 4) + i] = own[i];
    return (int)syscall(NR_BIND, fd, copy, six ? V6_SIZE : V4_SIZE);
}

/* Bind a socket that was never bound: it would listen on all addresses. Fail if it is bound to them otherwise. */
int listen(int fd, int backlog)
{
    u8 name[V6_SIZE], own[4];
    u32 size = sizeof(name);

    if (syscall(NR_GETSOCKNAME, fd, name, &size) == 0 && is_confined(name, size, own) && bind(fd, name, size) != 0)
        return -1;
    return (int)syscall(NR_LISTEN, fd, backlog);
}
"""

_TRIAL = """
import socket, sys
bound, unbound = socket.socket(), socket.socket()
bound.bind(("", 0))
unbound.listen(1)
sys.exit({bound.getsockname()[0], unbound.getsockname()[0]} != {sys.argv[1]})
"""


def build(path: str, env: Mapping[str, str]) -> str | None:
    """Compile the library to ``path``, readable by all users. Returns the error in one line, or None."""
    candidates = ([env["CC"]] if env.get("CC") else []) + list(COMPILERS)
    program = next((found for name in candidates if (found := shutil.which(name, path=env.get("PATH")))), None)
    if program is None:
        return "no C compiler (%s)" % ", ".join(COMPILERS)
    fresh = "%s.%d" % (path, os.getpid())
    argv = [program, "-O2", "-s", "-shared", "-fPIC", "-fno-stack-protector", "-nostdlib", "-o", fresh, "-x", "c", "-"]
    if os.path.basename(program) == "tcc":
        argv = [program, "-shared", "-nostdlib", "-o", fresh, "-"]
    try:
        run(argv, 60, sent=SOURCE.encode(), env=dict(env))
        os.chmod(fresh, 0o644)
        os.replace(fresh, path)
    except (Failed, OSError) as error:
        return "%s: %s" % (program, str(error).strip().splitlines()[0])
    return None


def works(path: str, env: Mapping[str, str], address: str) -> bool:
    """Whether the library at ``path`` turns "any address" into ``address`` in a test program."""
    trial = dict(env, LD_PRELOAD=path)
    trial[ADDRESS] = address
    trial.pop(OPEN_PORTS, None)
    argv = [sys.executable, "-I", "-S", "-c", _TRIAL, address]
    return os.path.exists(path) and succeeds(argv, 30, env=trial)


def confine(env: MutableMapping[str, str], address: str, open_ports: Iterable[int], folder: str, private: str) -> str:
    """Make all programs that are started with ``env`` listen on ``address`` instead of all addresses.

    ``env`` is changed; ``open_ports`` may listen on all addresses. The library in ``folder`` is compiled by the agent;
    if it has no effect, one is compiled in ``private``, a directory that only we can write. Returns the result in
    words; a text that begins with ``missing:`` says that sockets are not confined.
    """
    path = os.path.join(folder, BIND_FILE)
    if not works(path, env, address):
        path = os.path.join(private, BIND_FILE)
        trouble = build(path, env)
        if trouble is None and not works(path, env, address):
            trouble = "%s was built but has no effect" % path
        if trouble is not None:
            return "missing: %s" % trouble
    others = [name for name in env.get("LD_PRELOAD", "").replace(":", " ").split() if name != path]
    env["LD_PRELOAD"] = ":".join([path, *others])
    # Otherwise a raylet removes LD_PRELOAD from the environment of its workers.
    env["RAY_LD_PRELOAD_ON_WORKERS"] = "1"
    env[ADDRESS] = address
    ports = ",".join(str(port) for port in open_ports)
    env.pop(OPEN_PORTS, None)
    if ports:
        env[OPEN_PORTS] = ports
    return "%s%s" % (address, ", every address for port " + ports if ports else "")
