"""The engines of a lab: the real one on a CPU, and the stub that stands in for it."""
