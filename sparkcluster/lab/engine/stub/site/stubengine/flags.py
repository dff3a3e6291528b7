"""Command-line parsers from the engines' flag tables; the parser of `vllm serve`."""

import argparse
import json
import os
import re

HERE = os.path.dirname(os.path.realpath(__file__))
TABLE = "vllm-0.32-flags.tsv"
SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SHORT_NAMES = {"--optimization-level": ["-O"]}  # in vLLM's parser, not in the table


def rows(name):
    """The rows of a table without comments."""
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return [line.rstrip("\n").split("\t") for line in f if line.strip() and not line.startswith("#")]


def table(name=TABLE):
    """Rows (names, kind, type, choices) of a flag table."""
    return [
        (names.split(","), kind, value_type, None if choices == "-" else choices.split(","))
        for names, kind, value_type, choices in rows(name)
    ]


def size(text):
    """A length such as 1024, 32k (decimal) or 32K (binary), or auto as -1, as vLLM reads --max-model-len."""
    if text == "auto":
        return -1
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgGtT]?)", text)
    if not match:
        raise argparse.ArgumentTypeError("invalid value: %r" % text)
    return int(float(match.group(1)) * SUFFIX[match.group(2)])


def structure(text):
    """A JSON value."""
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError("Value %s cannot be converted to json" % text)


TYPES = {"int": int, "float": float, "size": size, "json": structure, "str": str, "any": str}


def build_parser(rows):
    """An argparse parser with the rows of vLLM's table."""
    parser = argparse.ArgumentParser(
        prog="vllm serve", add_help=False, usage="vllm serve [model_tag] [options]", allow_abbrev=False
    )
    parser.add_argument("model_tag", nargs="?")
    return add_flags(parser, rows)


def add_flags(parser, rows):
    """``parser`` with the rows of a flag table."""
    for names, kind, value_type, choices in rows:
        long_names = [n for n in names if n.startswith("--")]
        names += SHORT_NAMES.get(names[0], [])
        dest = long_names[0][2:].replace("-", "_")
        if kind in ("flag", "bool"):
            parser.add_argument(*names, dest=dest, action="store_true", default=None)
            if kind == "bool":
                off = ["--no-" + n[2:] for n in long_names]
                parser.add_argument(*off, dest=dest, action="store_false", default=None)
        else:
            nargs = {"value": None, "optional": "?", "list": "+"}[kind]
            read = TYPES[value_type]
            choices = choices and [read(choice) for choice in choices]
            parser.add_argument(*names, dest=dest, type=read, nargs=nargs, choices=choices)
    return parser


def normalise(argv, json_flags):
    """Normalizes vLLM's spellings: underscores for dashes, and --flag.key value for a key of a JSON flag."""
    out, arguments = [], iter(argv)
    for argument in arguments:
        if argument.startswith("--"):
            key, equals, value = argument.partition("=")
            flag, dot, path = key.partition(".")
            flag = "--" + flag[2:].replace("_", "-")
            if dot and flag in json_flags:
                if not equals:
                    next(arguments, None)
                continue
            argument = flag + dot + path + equals + value
        out.append(argument)
    return out


def parse(argv):
    """Namespace of the arguments; exits with code 2 and argparse's message, as vLLM does."""
    rows = table()
    nested = {
        n for names, kind, value_type, _ in rows for n in names if value_type in ("json", "any") and kind == "value"
    }
    vllm = build_parser(rows)
    args, unknown = vllm.parse_known_args(normalise(argv, nested))
    if unknown:
        vllm.prog = "vllm"  # the top-level parser reports the error
        vllm.usage = "vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ..."
        vllm.error("unrecognized arguments: %s" % " ".join(unknown))
    args.model = args.model_tag or args.model or "Qwen/Qwen3-0.6B"
    return args


def non_default(args):
    """The non-default arguments without secrets, as the log shows them."""
    shown = {k: v for k, v in sorted(vars(args).items()) if v is not None}
    for secret in ("api_key", "hf_token"):
        if secret in shown:
            shown[secret] = "***"
    return shown
