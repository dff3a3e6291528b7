"""One module per command: parse, call one engine function, render, exit code."""
