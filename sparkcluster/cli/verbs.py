"""Commands of other programs (docker, kubectl, ray, ollama, vllm, systemctl, kamal), and what to type instead.

Imported for an unknown command alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sparkcluster.cli.commands import COMMANDS
from sparkcluster.suggest import closest

_WORDS = {
    "up": "start run serve launch deploy apply boot create compose",
    "down": "stop kill destroy rm delete remove shutdown halt terminate teardown drain pause",
    "status": "ps get describe show info top stats state health nodes node hosts cluster cluster-info metrics "
    "dashboard watch monitor wait ready uptime list ls",
    "discover": "init new inventory scan find detect add join",
    "setup": "install configure prepare provision bootstrap",
    "setup --undo": "uninstall reset",
    "lint": "validate config edit",
    "preflight": "check test verify",
    "plan": "diff dry-run preview template exec shell ssh",
    "checks": "explain rule rules code codes",
    "doctor": "diagnose debug troubleshoot why report bundle support collect collect-env",
    "logs": "log journal events tail attach",
    "ask": "chat query prompt complete generate infer bench benchmark perf speed",
    "stage": "pull push download fetch sync copy cp distribute build image images",
    "models": "weights cache",
    "models --prune": "prune clean cleanup gc rmi",
    "upgrade": "update switch rollout replace scale set",
    "upgrade --resume": "resume continue",
    "rollback": "revert downgrade undo",
    "restart": "reload redeploy bounce",
    "releases": "history versions deployments revisions",
    "playbooks": "recipes recipe library catalog",
    "import": "convert translate",
    "fit": "memory size estimate calc calculate vram",
    "enable": "autostart daemon service systemd",
    "lab up": "demo sim simulate simulator sandbox emulate vm",
}
ALIASES = {word: command for command, words in _WORDS.items() for word in words.split()}


def instead_of(words: Sequence[str]) -> str | None:
    """What to type instead of ``words``, whose command does not exist: ours, and what follows it; None if unknown."""
    word = words[0].lower()
    if word.endswith((".yaml", ".yml")):
        return f"the command comes first: sparkcluster status {shlex.quote(words[0])}"
    near = word if word in ALIASES else closest(word, [*ALIASES, *COMMANDS])
    return f"sparkcluster {ALIASES.get(near, near)} {shlex.join(words[1:])}".rstrip() if near else None
