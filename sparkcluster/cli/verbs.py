"""Commands of other programs (docker, kubectl, ray, ollama, vllm, systemctl, kamal), and what to type instead.

Imported for an unknown command alone.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from importlib import import_module

from sparkcluster.cli.commands import COMMANDS, module
from sparkcluster.cli.common import default_inventory
from sparkcluster.cli.parser import Parser
from sparkcluster.errors import UsageError
from sparkcluster.suggest import closest

# What to type, after ";" what else the word may have meant, and the words.
_WORDS = {
    "up INVENTORY": "start run serve launch deploy apply boot create compose",
    "down INVENTORY": "stop kill destroy rm delete remove shutdown halt terminate teardown drain pause",
    "down INVENTORY && sparkcluster up INVENTORY": "restart reload redeploy bounce",
    "status INVENTORY": "ps get describe show info top stats state health nodes node hosts cluster cluster-info "
    "metrics dashboard watch monitor wait ready uptime",
    "status INVENTORY; weights: sparkcluster models INVENTORY; playbooks: sparkcluster playbooks": "list ls",
    "discover -o sparkcluster.yaml": "init new inventory scan find detect",
    "discover --into INVENTORY": "add join",
    "setup INVENTORY": "install configure prepare provision bootstrap",
    "setup INVENTORY --undo": "uninstall reset",
    "lint INVENTORY": "validate config edit",
    "preflight INVENTORY; without contacting a node: sparkcluster lint INVENTORY": "check test verify",
    "plan INVENTORY": "diff dry-run preview template",
    "checks CODE": "explain rule rules code codes",
    "doctor INVENTORY": "diagnose debug troubleshoot why",
    "doctor INVENTORY --bundle bundle.tar.gz": "report bundle support collect collect-env",
    "logs INVENTORY": "log journal events",
    "logs INVENTORY --follow": "tail attach",
    "plan INVENTORY; its output names the containers, for docker exec on a node": "exec shell ssh",
    "ask INVENTORY": "chat query prompt complete generate infer",
    "ask INVENTORY Hello; links between nodes: sparkcluster preflight INVENTORY --deep": "bench benchmark perf speed",
    "stage INVENTORY": "pull push download fetch sync copy cp distribute",
    "stage INVENTORY image": "build image images",
    "models INVENTORY": "weights cache",
    "models INVENTORY --prune": "prune clean cleanup gc rmi",
    "upgrade INVENTORY": "update switch rollout replace scale set",
    "upgrade INVENTORY --resume": "resume continue",
    "rollback INVENTORY": "revert downgrade undo",
    "releases INVENTORY": "history versions deployments revisions",
    "playbooks": "recipes recipe library catalog",
    "import FILE": "convert translate",
    "fit PLAYBOOK": "memory size estimate calc calculate vram",
    "enable INVENTORY": "autostart daemon service systemd",
    "lab up": "demo sim simulate simulator sandbox emulate vm",
}
VERBS = {word: line for line, words in _WORDS.items() for word in words.split()}


def instead_of(words: Sequence[str]) -> str | None:
    """What to type instead of the command line ``words``, whose command does not exist; None where that is not known.

    It has the arguments of ``words`` that fit: an inventory, flags that the command has, the playbook of
    ``run PLAYBOOK``, a node, a code, a prompt. A word that is rather a misspelt command of ours is not known.
    """
    if words[0].endswith((".yaml", ".yml")):
        return f"the command comes first: sparkcluster status {shlex.quote(words[0])}"
    line = VERBS.get(words[0].lower())
    if line is None:
        misspelt = closest(words[0], VERBS, cutoff=0.8)
        if misspelt is None or closest(words[0], COMMANDS, cutoff=0.8):
            return None
        line = VERBS[misspelt]
    command, semicolon, more = line.partition(";")
    name = command.split()[0]
    parser = Parser(prog=name)
    import_module(module(name)).add_arguments(parser)
    flags, arguments = parser.split(words[1:])
    path = next((word for word in arguments if _is_path(word)), None)
    if path is not None and "INVENTORY" in command:
        arguments.remove(path)
    if name == "up" and len(arguments) == 1:
        command += f" --playbook {shlex.quote(arguments[0])}"
    elif name == "ask" and arguments:
        command = f"{command.removesuffix(' Hello')} {shlex.quote(' '.join(arguments))}"
    elif name in {"checks", "fit", "import", "logs"} and len(arguments) == 1:
        command = f"{re.sub(' (CODE|FILE|PLAYBOOK)$', '', command)} {shlex.quote(arguments[0])}"
    if flags and parser.knows(flags) and "&&" not in command:
        command += f" {shlex.join(flags)}"
    hint = f"sparkcluster {command}{semicolon}{more}"
    return hint.replace("INVENTORY", shlex.quote(path)) if path else _with_default(hint)


def _is_path(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or os.path.isfile(word)  # noqa: PTH113 - any word, as it was typed


def _with_default(hint: str) -> str:
    """``hint`` without INVENTORY where that may be left out."""
    try:
        default_inventory()
    except UsageError:
        return hint
    return hint.replace(" INVENTORY", "")
