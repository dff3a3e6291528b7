"""Code that runs on a Spark, with its own python3 (3.10 or newer), its standard library, and nothing installed.

A program is a module of this package with ``main(request, lines) -> dict``. It travels as source over
the connection's standard input, so that one command is one round trip and leaves nothing behind.
"""
