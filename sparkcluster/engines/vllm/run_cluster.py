"""vLLM's ``run_cluster.sh``, which starts the containers of a Ray cluster; the engine follows by ``docker exec``.

Arguments: https://docs.vllm.ai/en/stable/examples/online_serving/run_cluster.html
"""

from __future__ import annotations

from sparkcluster.recipes.container import Container, Volume, read

_SHELLS = frozenset({"bash", "sh"})
_CACHE = "/root/.cache/huggingface"


def launched(words: list[str]) -> Container | None:
    """The container of ``run_cluster.sh IMAGE HEAD_ADDRESS --head|--worker HF_HOME [OPTIONS]``."""
    if words[0].rpartition("/")[2] in _SHELLS:
        words = words[1:]
    if not words or words[0].rpartition("/")[2] != "run_cluster.sh" or len(words) < 5:
        return None
    container = read([*words[5:], words[1]])
    container.entrypoint = "/bin/bash"
    container.volumes.append(Volume(words[4], _CACHE, read_only=False))
    return container
