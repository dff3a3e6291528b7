"""A ``llama-server`` made of xllamacpp, whose wheels have llama.cpp's server as a library.

``python -m sparkcluster.lab.engine.llama_server DIRECTORY`` creates a virtual environment with it; its Python is the
``runtime.python`` of runtime ``process``. xllamacpp does not parse llama.cpp's flags: this file parses the flags below,
and refuses others with llama.cpp's message. The file is also copied as the program, and then imports nothing else of
this project.
"""

from __future__ import annotations

import os
import signal
import sys
import venv
from pathlib import Path
from typing import Any

VERSION = "2026.10.11549"
"""llama.cpp b11549."""

# Flags with a number or without a value, and the members of xllamacpp's CommonParams that they set.
_NUMBERS = {"ctx-size": "n_ctx", "parallel": "n_parallel", "port": "port", "cache-ram": "cache_ram_mib"}
_SWITCHES = {"metrics": "endpoint_metrics", "offline": "offline", "jinja": "use_jinja", "ui": "ui", "warmup": "warmup"}


def main(words: list[str]) -> int:
    """Serve with the flags ``words``, until SIGTERM."""
    import xllamacpp

    if words == ["--version"]:
        sys.stderr.write(f"version: 0.5.0-dev (build {xllamacpp.__version__.rpartition('.')[2]}, commit xllamacpp)\n")
        return 0
    params: Any = xllamacpp.CommonParams()
    key = os.environ.get("LLAMA_API_KEY")
    params.api_keys = key.split(",") if key else []
    values = iter(words)
    for word in values:
        if not put(params, word.removeprefix("--"), values):
            sys.stderr.write(f"error: invalid argument: {word}\n")
            return 1
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:  # the cause is in its log
        return 1
    while server:
        signal.pause()
    return 0


def put(params: Any, name: str, values: Any) -> bool:
    """Apply the flag ``name``, whose value is the next item of ``values``; False if the flag is unknown."""
    plain = name.removeprefix("no-")
    if plain in _SWITCHES:
        setattr(params, _SWITCHES[plain], plain == name)
    elif name in _NUMBERS:
        setattr(params, _NUMBERS[name], int(next(values)))
    elif name == "threads":
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(next(values))
    elif name == "model":
        params.model.path = next(values)
    elif name == "alias":
        params.model_alias = set(next(values).split(","))
    elif name == "host":
        params.hostnames = [next(values)]
    else:
        return False
    return True


def make(directory: Path) -> Path:
    """The Python of a virtual environment with xllamacpp and ``llama-server``; creates the environment if missing."""
    from sparkcluster.lab.engine.install import Tool

    python, program = directory / "bin" / "python", directory / "bin" / "llama-server"
    if not program.exists():
        venv.create(directory, symlinks=True)
        (site,) = directory.glob("lib/python*/site-packages")
        Tool(site).install(["--no-deps", f"xllamacpp=={VERSION}"])
    program.write_text(f"#!{python}\n{Path(__file__).read_text(encoding='utf-8')}", encoding="utf-8")
    program.chmod(0o755)
    return python


if __name__ == "__main__":
    if sys.argv[0].endswith(".py"):
        sys.stdout.write(f"{make(Path(sys.argv[1]).absolute())}\n")
    else:
        sys.exit(main(sys.argv[1:]))
