"""So that `import vllm; vllm.__version__` answers; no model runs here."""

from stubengine import VLLM_VERSION as __version__  # noqa: F401
