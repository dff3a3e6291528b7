"""The engines of a lab: vLLM on a CPU, and the stub that imitates engines."""
