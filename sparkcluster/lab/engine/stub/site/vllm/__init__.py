"""Makes `import vllm; vllm.__version__` work; runs no model."""

from stubengine import VLLM_VERSION as __version__  # noqa: F401
