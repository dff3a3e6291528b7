"""The stub's TensorRT-LLM: no model runs here."""

__version__ = "1.3.0rc13+stub"
