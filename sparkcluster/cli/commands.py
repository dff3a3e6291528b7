"""The commands, grouped and in the order of ``--help``; imports nothing."""

from __future__ import annotations

GROUPS = {
    "Begin": {
        "discover": "find Sparks and write their inventory",
        "setup": "prepare every node for a cluster, or undo that",
        "up": "start a cluster and verify that the model answers",
    },
    "Use": {
        "ask": "send a prompt or chat: streams the answer and shows its speed",
        "connect": "print the settings for a client, such as Open WebUI or Cline",
        "load": "load an on-demand model before a client asks for it",
        "unload": "unload an on-demand model after its requests have finished",
        "bench": "measure how fast a model answers, and compare runs",
        "status": "show what runs on which node, and whether it serves",
        "web": "serve a page on this machine that shows Sparks and models live",
        "export": "serve metrics of Sparks and models to Prometheus",
        "logs": "print the logs of all nodes by time, or of a launch that failed",
        "key": "create or rotate the API key",
        "completion": "print the completion script of a shell",
    },
    "Fix": {
        "preflight": "check nodes before up; --fix repairs what it can",
        "doctor": "diagnose a cluster that runs or should run; changes nothing",
        "checks": "list the checks by code, or explain one of them",
    },
    "Change": {
        "upgrade": "switch to another image or playbook; rolls back if that fails",
        "rollback": "roll back to an earlier release",
        "restart": "restart the running model, with the current API key",
        "releases": "list releases, or compare two",
        "stage": "copy weights and image to every node; starts nothing",
        "models": "list the models on every node; --prune removes unused ones",
        "enable": "turn on automatic restart after a reboot or a crash",
        "disable": "turn off automatic restart",
        "down": "stop the cluster on every node",
    },
    "Models": {
        "playbooks": "list the bundled playbooks, show one, or write one for a model",
        "fit": "calculate whether a model fits in memory, before any download",
        "import": "convert another tool's recipe or a docker run line to a playbook",
        "lint": "check inventories and playbooks without contacting a node",
        "plan": "query the nodes, and show what up would do on each",
    },
    "Try": {
        "lab": "run virtual Sparks on this machine, without hardware",
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}

# "import" is a keyword, so not a module name; "web" shares the module of "export".
_MODULES = {"import": "import_", "web": "export"}


def module(name: str) -> str:
    """The module of the command ``name``."""
    return f"sparkcluster.cli.{_MODULES.get(name, name)}"


def help_of(name: str) -> str | None:
    """The ``--help`` text of a command, as ``lab up``, or of the program if ``name`` is empty; None if unknown.

    ``scripts/make-docs`` writes it beforehand: importing argparse alone takes as long as starting Python.
    """
    with open(__file__.replace("commands.py", "help.txt"), encoding="utf-8") as file:  # noqa: PTH123 - quick to import
        return dict(part.split("\n", 1) for part in file.read().split("\f")).get(name)
