"""sparkcluster turns NVIDIA DGX Sparks into one verified OpenAI-compatible endpoint."""

__version__ = "0.1.0"
