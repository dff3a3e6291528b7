"""The commands by what they are for, in the order of ``--help``; imports nothing."""

from __future__ import annotations

GROUPS = {
    "Begin": {
        "discover": "find Sparks and write their inventory",
        "setup": "set up every node for a cluster, or undo that",
        "up": "start a cluster and verify that the model answers",
    },
    "Use": {
        "ask": "send a prompt or chat: streams the answer and shows its speed",
        "connect": "print what to paste into a client, such as Open WebUI or Cline",
        "load": "load an on-demand model before a client asks for it",
        "unload": "unload an on-demand model after its requests have finished",
        "bench": "measure how fast a model answers, and compare runs",
        "status": "show what runs on which node, and whether it serves",
        "web": "serve a page on this machine that shows Sparks and models live",
        "export": "serve metrics of Sparks and models to Prometheus",
        "logs": "print the logs of all nodes by time, or of a launch that failed",
        "key": "make or rotate the API key, in a file that the inventory names",
        "completion": "print the completion script of a shell",
    },
    "Fix": {
        "preflight": "check every node for what would make up fail; --fix repairs it",
        "doctor": "diagnose a cluster that runs or should run; changes nothing",
        "checks": "list the checks by code, or explain one of them",
    },
    "Change": {
        "upgrade": "switch to another image or playbook, or go back where that fails",
        "rollback": "let an earlier release serve again",
        "restart": "start what serves anew, with the API key of today",
        "releases": "list what was deployed, and when",
        "stage": "copy weights and image to every node; starts nothing",
        "models": "list the models on every node; --prune removes unused ones",
        "enable": "bring a cluster back after a reboot, and restart a dead group",
        "disable": "undo enable; what serves goes on",
        "down": "stop and remove what up started, on every node",
    },
    "Models": {
        "playbooks": "list the bundled playbooks, show one, or write one for a model",
        "fit": "calculate whether a model fits in memory, before any download",
        "import": "convert another tool's recipe or a docker run line to a playbook",
        "lint": "check inventories and playbooks without contacting a node",
        "plan": "show what up would do: environment and commands of every node",
    },
    "Try": {
        "lab": "run virtual Sparks on this machine, to try it without hardware",
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}

# A command whose name cannot be a module's, and one that differs from another in what it prints alone.
_MODULES = {"import": "import_", "web": "export"}


def module(name: str) -> str:
    """The module of the command ``name``."""
    return f"sparkcluster.cli.{_MODULES.get(name, name)}"


def help_of(name: str) -> str | None:
    """The text of ``--help`` of a command, as ``lab up``, or of all if ``name`` is empty; None of another.

    It is written ahead, by ``scripts/make-docs``: argparse alone takes as long to import as Python to start.
    """
    with open(__file__.replace("commands.py", "help.txt"), encoding="utf-8") as file:  # noqa: PTH123 - quick to import
        return dict(part.split("\n", 1) for part in file.read().split("\f")).get(name)
