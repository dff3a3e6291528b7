"""So that `import sglang; sglang.__version__` answers; no model runs here."""

from stubengine import SGLANG_VERSION as __version__  # noqa: F401
