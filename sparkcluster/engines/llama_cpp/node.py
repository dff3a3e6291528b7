"""llama.cpp on a node: the version next to an interpreter. Sent instead of ``sparkcluster.node.engine``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NAME = "llama.cpp"
LABEL = ""

# Images are read without a driver, which a CUDA build may need to start: LLAMA_CPP_VERSION may have the version.
INSPECTION = """
import subprocess
def llama_server():
    beside = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    program = shutil.which("llama-server", path=beside)
    if program is None:
        return None
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10)
        said = re.search(r"(?:\\(build |version: )(\\d{3,})", done.stdout + done.stderr)
    except Exception:
        said = None
    return said.group(1) if said else os.environ.get("LLAMA_CPP_VERSION") or "unknown"
ENGINE = {"version": llama_server()}
"""


def is_official(entrypoint: list[str]) -> bool:
    """Whether an image with this entrypoint is upstream's server (.devops/cuda.Dockerfile)."""
    return entrypoint[:1] == ["/app/llama-server"]


def is_nvidia_image(labels: Iterable[str], variables: Iterable[str]) -> bool:
    """False: NVIDIA does not publish an image; its guide builds it."""
    return False


def keep_variables(env: dict[str, Any], names: Iterable[str], private: str) -> str | None:
    """None: llama.cpp runs without Ray."""
    return None


def command(words: list[str], env: dict[str, str], private: str) -> list[str]:
    """Returns ``words`` unchanged: llama.cpp needs no file from sparkcluster."""
    return words
