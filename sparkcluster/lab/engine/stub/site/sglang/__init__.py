"""Makes `import sglang; sglang.__version__` work; runs no model."""

from stubengine import SGLANG_VERSION as __version__  # noqa: F401
