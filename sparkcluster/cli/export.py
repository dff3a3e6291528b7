"""``sparkcluster export``, and ``web``, which runs the same server and prints the page's address."""

from __future__ import annotations

import argparse
import contextlib
import sys

from sparkcluster.cli import common
from sparkcluster.cli.common import emitted, inventory_argument, option
from sparkcluster.cli.output import message, write

LISTEN, ONCE_S = "127.0.0.1:9469", 6.0
"""Default of --listen; how long --once waits for two samples of each node and one of each engine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of both."""
    inventory_argument(parser, playbook=False, model="")
    option(parser, "--listen ADDRESS", f"address and port to listen on (default: {LISTEN})", default=LISTEN)
    page = parser.prog.endswith("web")
    parser.set_defaults(once=False, path="/" if page else "/metrics")
    if not page:
        option(parser, "--once", "print the current metrics and exit, as for a textfile collector")


def run(args: argparse.Namespace) -> int:
    """Serve the readings of all nodes and models until Ctrl-C; prints the address to stderr.

    Raises:
        UsageError: the extra is not installed, or the address cannot be listened on.
    """
    from importlib.util import find_spec

    from sparkcluster.errors import UsageError
    from sparkcluster.exit_codes import INTERRUPTED

    if not (find_spec("aiohttp") and find_spec("prometheus_client")):
        hint = "in the clone: uv tool install --reinstall '.[export]'"
        raise UsageError("export and web need aiohttp and prometheus-client", hint=hint)
    from sparkcluster.cli.drawing import styled
    from sparkcluster.telemetry import exposition, serve

    with contextlib.ExitStack() as stack:
        listener = None if args.once else stack.enter_context(serve.listening(args.listen))
        live = stack.enter_context(common.live(args, draw=styled))
        if listener is None:
            live.wait(live.number, ONCE_S)
            text = exposition.text(live).decode()
            if not emitted(args, {"metrics": text}):
                write(sys.stdout, text, end="", keep="\n")
            return 0
        token, file = (None, None) if serve.is_local(listener) else serve.token()
        url = serve.url(listener)
        if not emitted(args, {"url": f"{url}/", "metrics_url": f"{url}/metrics", "token_file": file and str(file)}):
            shown = token is not None and args.path == "/" and sys.stderr.isatty()
            message(f"{url}{args.path}", f"?token={token}" * shown, kind="listening")
            if file and not shown:
                message(f"send the token in {file} as a bearer token, or open {url}/?token=TOKEN", kind="note")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            serve.serve(live, listener, token, args.listen, message)
    return INTERRUPTED  # the normal end
