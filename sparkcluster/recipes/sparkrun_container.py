"""What sparkrun's containers have beside the image: options, environment, the Hugging Face cache at its own path."""

from __future__ import annotations

import re
from typing import Any

from sparkcluster.recipes.shell import shown
from sparkcluster.recipes.structured import Fields, short
from sparkcluster.spec.secret_patterns import names_secret

CACHE = "/cache/huggingface"
"""Where sparkrun mounts the cache (models/download.py), and what HF_HOME is in its containers."""
MODEL = "/sparkcluster/model"
"""The model in the container of a rank, whatever its revision."""
_CACHED = re.compile(
    CACHE + r"/hub/models--([A-Za-z0-9_.]+(?:-[A-Za-z0-9_.]+)*)--([A-Za-z0-9_.-]+)/snapshots/([A-Za-z0-9_.-]+)(/?)"
)
_VARIABLE = re.compile(r"\$[\w{]")
# executor_config by option of docker run (orchestration/executor.py); true or false, text, or a list of texts.
_TEXTS = {
    "restart_policy": "restart", "gpus": "gpus", "ipc": "ipc", "shm_size": "shm-size", "network": "network",
    "user": "user", "memory_limit": "memory",
}  # fmt: skip
_LISTS = {
    "security_opt": "security-opt", "cap_add": "cap-add", "ulimit": "ulimit", "devices": "device", "labels": "label",
}  # fmt: skip


def options(top: Fields, notes: list[str]) -> list[str]:
    """``executor_config`` as options of ``docker run``; what is none of them is noted."""
    config = top.mapping("executor_config")
    words: list[str] = []
    for key, value in config.data.items():
        if key in _TEXTS:
            words += [f"--{_TEXTS[key]}={config.written(key)}"] if value not in (None, "") else []
        elif key in _LISTS:
            listed = [value] if isinstance(value, str) else config.texts(key)
            words += [f"--{_LISTS[key]}={each}" for each in listed]
        elif key == "privileged":
            words += ["--privileged"] if config.flag(key) else []
        elif key == "entrypoint":
            if value not in (None, ""):
                notes.append(
                    f"executor_config.entrypoint {short(config.written(key))}: ranks start without an entrypoint"
                )
        elif key == "volumes":
            notes.append(f"executor_config.volumes: {short(str(value))}: write the directories under mounts")
        elif key not in {"auto_remove", "executor"}:
            notes.append(f"executor_config.{shown(key)}: a playbook has no such key")
    return words


def environment(env: Fields, notes: list[str]) -> dict[str, str | None]:
    """Variables of the container; those that take their value from sparkrun's own environment are noted."""
    out: dict[str, str | None] = {}
    for name, value in env.data.items():
        text = env.written(name)
        if value is None:
            notes.append(f"env: {shown(name)}: it is empty, which sparkrun sets to None")
        if _VARIABLE.search(text) and not names_secret(name):
            what = shown(f"env: {name}={text}")
            notes.append(f"{what}: sparkrun before 0.3 takes it from its own environment; write its value under env")
        else:
            out[name] = text
    return out


def revisions(text: str, model: str) -> list[str]:
    """Revisions of the model by which ``text`` names its directory in sparkrun's cache."""
    found = _CACHED.finditer(text)
    return list(dict.fromkeys(each[3] for each in found if f"{each[1]}/{each[2]}" == model))


def snapshots(text: str, model: str, notes: list[str], *, inside: bool = False) -> str:
    """``text`` with repositories in place of their directories in sparkrun's cache.

    ``inside`` the container, as in a setup line, the model is at ``/sparkcluster/model``.
    """

    def instead(found: re.Match[str]) -> str:
        repository, revision, below = f"{found[1]}/{found[2]}", found[3], found[4]
        if repository == model and (inside or below):
            return MODEL + below
        if inside or below:
            return found[0]
        if repository != model:
            notes.append(f"{shown(repository)}: the text has revision {shown(revision)} of it; its main is staged")
        return repository

    return _CACHED.sub(instead, text)


def unseen(document: dict[str, Any]) -> list[str]:
    """A note for each place that names sparkrun's cache, which ranks do not have."""
    places = [("setup", line) for line in document.get("setup", [])]
    places += [(f"env: {name}", value) for name, value in document.get("env", {}).items()]
    places += [(f"args: {name}", str(value)) for name, value in document.get("args", {}).items()]
    why = f"ranks have no {CACHE}; the model is at {MODEL}, caches are under caches"
    return [f"{where}: {short(text)}: {why}" for where, text in places if CACHE in text]
