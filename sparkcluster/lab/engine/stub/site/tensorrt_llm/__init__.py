"""The stub's TensorRT-LLM, which runs no model."""

__version__ = "1.3.0rc13+stub"
