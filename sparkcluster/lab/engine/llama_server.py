"""A ``llama-server`` out of xllamacpp, whose wheels have llama.cpp's own server as a library.

``python -m sparkcluster.lab.engine.llama_server DIRECTORY`` makes a virtual environment with it, whose Python is the
``runtime.python`` of runtime ``process``. xllamacpp has no parser of llama.cpp's flags: those below are understood,
others end it with llama.cpp's own message. This file is the program, too: it uses nothing else of this project then.
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
    """Serve as ``words`` say, until SIGTERM."""
    import xllamacpp

    if words == ["--version"]:
        sys.stderr.write(f"version: 0.5.0-dev (build {xllamacpp.__version__.rpartition('.')[2]}, commit xllamacpp)\n")
        return 0
    params: Any = xllamacpp.CommonParams()
    key = os.environ.get("LLAMA_API_KEY")
    params.api_keys = key.split(",") if key else []
    given = iter(words)
    for word in given:
        if not put(params, word.removeprefix("--"), given):
            sys.stderr.write(f"error: invalid argument: {word}\n")
            return 1
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:  # its log says why
        return 1
    while server:
        signal.pause()
    return 0


def put(params: Any, name: str, given: Any) -> bool:
    """Set what the flag ``name`` means, with the next of ``given`` as its value; whether it is known."""
    plain = name.removeprefix("no-")
    if plain in _SWITCHES:
        setattr(params, _SWITCHES[plain], plain == name)
    elif name in _NUMBERS:
        setattr(params, _NUMBERS[name], int(next(given)))
    elif name == "threads":
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(next(given))
    elif name == "model":
        params.model.path = next(given)
    elif name == "alias":
        params.model_alias = set(next(given).split(","))
    elif name == "host":
        params.hostnames = [next(given)]
    else:
        return False
    return True


def make(directory: Path) -> Path:
    """The Python of a virtual environment with xllamacpp and ``llama-server``, which is made if it is not there."""
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
