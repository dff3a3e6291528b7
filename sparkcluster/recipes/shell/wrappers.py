"""Programs that run another one with their last words: ``env``, ``sudo``, ``nohup``, ``timeout`` and others.

Their options: the manuals of coreutils, sudo, util-linux and bash.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping

from sparkcluster.recipes.shell.marks import assignment

# Options with a word of their own.
_VALUED = {
    "env": {"-u", "--unset", "-C", "--chdir"},
    "exec": {"-a"},
    "sudo": {
        "-u", "--user", "-g", "--group", "-C", "--close-from", "-D", "--chdir", "-h", "--host", "-p", "--prompt", "-R",
        "--chroot", "-r", "--role", "-T", "--command-timeout", "-t", "--type", "-U", "--other-user",
    },
    "command": set[str](), "nohup": set[str](), "setsid": set[str](), "time": {"-f", "-o"},
}  # fmt: skip
# Those whose options are not read: what they run begins with the first word that `starts` something.
_OTHERS = frozenset(
    {
        "chrt", "conda", "ionice", "mamba", "micromamba", "nice", "nsys", "numactl", "pixi", "poetry", "sshpass",
        "stdbuf", "taskset", "timeout", "torchrun", "uv", "uvx",
    }
)  # fmt: skip
_SYSTEM = re.compile(r"(?:/usr(?:/local)?)?/s?bin/([\w-]+)|([\w-]+)")


@dataclasses.dataclass(slots=True)
class Unwrapped:
    """A command without what only runs it.

    Attributes:
        words: of the command.
        env: its environment.
        lost: names of the environment that ``sudo`` does not pass on.
        left_out: what was in front of it and may do more than run it.
    """

    words: list[str]
    env: dict[str, str | None]
    lost: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)


def unwrapped(
    words: Iterable[str], env: Mapping[str, str | None], starts: Callable[[list[str]], bool] | None = None
) -> Unwrapped:
    """``words``, which run in ``env``, without assignments and wrappers in front of them.

    ``starts`` says whether words begin with a program of interest.
    """
    out = Unwrapped(list(words), dict(env))
    while out.words:
        assigned = assignment(out.words[0])
        found = _SYSTEM.fullmatch(out.words[0])
        name = (found[1] or found[2]) if found else ""
        if assigned is not None:
            out.env[assigned[0]] = assigned[1]
            out.words = out.words[1:]
        elif name in _VALUED:
            if not _open(out, name):
                break
        elif name in _OTHERS and starts is not None:
            at = next((at for at in range(1, len(out.words)) if _begins(out.words, at, starts)), None)
            if at is None:
                break
            out.left_out += [" ".join(out.words[:at])]
            out.words = out.words[at:]
        else:
            break
    return out


def _begins(words: list[str], at: int, starts: Callable[[list[str]], bool]) -> bool:
    """Whether the program that a wrapper runs begins at ``at``; it may be another wrapper."""
    return starts(words[at:]) or (words[at] in _VALUED and not words[at - 1].startswith("-"))


def _open(out: Unwrapped, name: str) -> bool:
    """Take the wrapper ``name`` with its options off; whether it runs what follows."""
    options, words = _options(out.words[1:], name)
    flags = {flag for flag, _ in options}
    if (name == "command" and flags & {"-v", "-V"}) or (name == "env" and flags & {"-S", "--split-string"}):
        return False
    env = dict(out.env)
    if (name == "env" and flags & {"-", "-i", "--ignore-environment"}) or (name == "exec" and "-c" in flags):
        env.clear()
    if name == "env":
        env = {each: value for each, value in env.items() if not {("-u", each), ("--unset", each)} & {*options}}
    if name == "sudo" and not any(re.fullmatch(r"-[A-Za-z]*E[A-Za-z]*", flag) for flag in flags):
        listed = [value for flag, value in options if flag == "--preserve-env"]
        kept = {each for value in listed for each in value.split(",")}
        if "" not in listed:
            out.lost += [each for each in env if each not in kept]
            env = {each: value for each, value in env.items() if each in kept}
    out.words, out.env = words, env
    return True


def _options(words: list[str], name: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The options of the wrapper ``name`` with their values, and what it runs."""
    out: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        flag, equals, value = words[at].partition("=")
        at += 1
        if flag == "--":
            break
        if not equals and flag in _VALUED[name]:
            value, at = "".join(words[at : at + 1]), at + 1
        elif flag[:2] in _VALUED[name] | {"-S"} and not flag.startswith("--"):
            flag, value = flag[:2], words[at - 1][2:]
        out.append((flag, value))
    return out, words[at:]
