"""vLLM: its command line, its log, its numbers."""
