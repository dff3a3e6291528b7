"""The command line of `vllm serve`, from the table of vLLM's own flags."""

import argparse
import json
import os
import re

TABLE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "vllm-0.32-flags.tsv")
SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def table():
    """Rows (names, kind, type, choices) of the flag table."""
    rows = []
    with open(TABLE, encoding="utf-8") as f:
        for line in f:
            if line.startswith("#") or not line.strip():
                continue
            names, kind, typ, choices = line.rstrip("\n").split("\t")
            rows.append((names.split(","), kind, typ, None if choices == "-" else choices.split(",")))
    return rows


def size(text):
    """A length such as 1024, 32k (decimal) or 32K (binary), or auto as -1, as vLLM reads --max-model-len."""
    if text == "auto":
        return -1
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgGtT]?)", text)
    if not match:
        raise argparse.ArgumentTypeError("invalid value: %r" % text)
    return int(float(match.group(1)) * SUFFIX[match.group(2)])


def structure(text):
    """A value that has to be JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError("Value %s cannot be converted to json" % text)


TYPES = {"int": int, "float": float, "size": size, "json": structure, "str": str, "any": str}


class _Switch(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, not (option_string or "").startswith("--no-"))


def parser():
    """argparse over the whole table."""
    made = argparse.ArgumentParser(
        prog="vllm serve", add_help=False, usage="vllm serve [model_tag] [options]", allow_abbrev=False
    )
    made.add_argument("model_tag", nargs="?")
    for names, kind, typ, choices in table():
        first = next(n for n in names if n.startswith("--"))
        dest = first[2:].replace("-", "_")
        if kind == "flag":
            made.add_argument(*names, dest=dest, action="store_true", default=None)
        elif kind == "bool":
            off = ["--no-" + n[2:] for n in names if n.startswith("--")]
            made.add_argument(*(names + off), dest=dest, action=_Switch, nargs=0, default=None)
        else:
            nargs = {"value": None, "optional": "?", "list": "+"}[kind]
            made.add_argument(*names, dest=dest, type=TYPES[typ], nargs=nargs, choices=choices, default=None)
    return made


def normalise(argv, json_flags):
    """vLLM's liberties: underscores for dashes, -O3, and --flag.key value for a key of a JSON flag."""
    out, skip = [], False
    for i, arg in enumerate(argv):
        if skip:
            skip = False
            continue
        if arg.startswith("-O") and len(arg) > 2:
            out += ["--optimization-level", arg[2:].lstrip("=")]
            continue
        if arg == "-O":
            out.append("--optimization-level")
            continue
        if arg.startswith("--"):
            key, equals, value = arg.partition("=")
            base, dot, _ = key.partition(".")
            base = "--" + base[2:].replace("_", "-")
            if dot and base in json_flags:
                skip = not equals and i + 1 < len(argv)
                continue
            arg = base + (dot + key.partition(".")[2] if dot else "") + equals + value
        out.append(arg)
    return out


def parse(argv):
    """Namespace of the arguments; exits with code 2 and argparse's words, as vLLM does."""
    nested = {n for names, kind, typ, _ in table() for n in names if typ in ("json", "any") and kind == "value"}
    made = parser()
    args, unknown = made.parse_known_args(normalise(argv, nested))
    if unknown:
        made.prog = "vllm"  # the top-level parser is the one that complains
        made.usage = "vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ..."
        made.error("unrecognized arguments: %s" % " ".join(unknown))
    args.model = args.model_tag or args.model or "Qwen/Qwen3-0.6B"
    return args


def non_default(args):
    """What was given, secrets left out, as the log shows it."""
    shown = {k: v for k, v in sorted(vars(args).items()) if v is not None}
    for secret in ("api_key", "hf_token"):
        if secret in shown:
            shown[secret] = "***"
    return shown
