"""The command `trtllm-serve`."""
