"""The model directory: vLLM's checks during loading, and answers that depend only on the weights."""

import hashlib
import json
import os
import struct

SAMPLE = 1 << 20  # bytes hashed at each end of a weight file: enough to distinguish two checkpoints
WORDS = (
    "the a cluster of two small machines answers with one voice and every node holds its share while light "
    "runs along copper between them so that words come out in order as they should when nothing is broken "
    "red blue green river stone cloud north south seven eleven paper window engine garden morning silver "
    "quiet bright early under over beside near far long short open still often never always because then "
    "there here some many few each both most other such only own same than too very can will just should now"
).split()


class LoadError(Exception):
    """The model cannot be loaded; the message is vLLM's, and has the path."""


def find(model, revision=None):
    """The directory of ``model``: a path, or a snapshot in the local Hugging Face cache."""
    if os.path.isdir(model):
        return model
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    repo = os.path.join(cache, "models--" + model.strip("/").replace("/", "--"))
    snapshot = revision or "main"
    try:
        with open(os.path.join(repo, "refs", snapshot)) as f:
            snapshot = f.read().strip()
    except OSError:
        pass  # a revision that is a commit has no ref
    directory = os.path.join(repo, "snapshots", snapshot)
    if os.path.isdir(directory):
        return directory
    raise LoadError(
        "Invalid repository ID or local directory specified: '%s'.\nPlease verify the following requirements:\n"
        "1. Provide a valid Hugging Face repository ID.\n"
        "2. Specify a local directory that contains a recognized configuration file." % model
    )


def config(directory):
    """config.json as a dictionary."""
    path = os.path.join(directory, "config.json")
    try:
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
    except FileNotFoundError:
        raise LoadError(
            "Invalid repository ID or local directory specified: '%s'.\n"
            "Please verify the following requirements:\n"
            "- For Hugging Face models: ensure the presence of a 'config.json'. Missing: %s" % (directory, path)
        )
    except (OSError, ValueError) as error:
        raise LoadError("It looks like the config file at '%s' is not a valid JSON file: %s" % (path, error))
    if not isinstance(found, dict):
        raise LoadError("It looks like the config file at '%s' is not a valid JSON file" % path)
    return found


def weight_files(directory):
    """Paths of all weight files in order, including missing files that the index names."""
    names = {n for n in os.listdir(directory) if n.endswith(".safetensors")}
    index = os.path.join(directory, "model.safetensors.index.json")
    if os.path.exists(index):
        try:
            with open(index, encoding="utf-8") as f:
                names = set(json.load(f)["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise LoadError("Cannot read %s: %s" % (index, error))
    if not names:
        raise LoadError("Cannot find any model weights with `%s`" % directory)
    return [os.path.join(directory, n) for n in sorted(names)]


def header_problem(f, size):
    """The safetensors library's error about the header of a file of ``size`` bytes, or None."""
    head = f.read(8)
    if len(head) < 8:
        return "header too small"
    (length,) = struct.unpack("<Q", head)
    if length > size - 8:
        return "invalid header length"
    try:
        tensors = json.loads(f.read(length).decode("utf-8"))
        ends = [t["data_offsets"][1] for n, t in tensors.items() if n != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "invalid JSON in header"
    if 8 + length + max(ends or [0]) != size:
        return "incomplete metadata, file not fully covered"
    return None


def read_weights(path):
    """Checks header and length of a safetensors file; returns (size in bytes, digest of a sample)."""
    try:
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            problem = header_problem(f, size)
            if problem:
                raise LoadError(
                    "safetensors_rust.SafetensorError: Error while deserializing header: %s (%s)" % (problem, path)
                )
            digest = hashlib.sha256(str(size).encode())
            f.seek(0)
            digest.update(f.read(SAMPLE))
            f.seek(max(0, size - SAMPLE))
            digest.update(f.read(SAMPLE))
    except OSError as error:
        raise LoadError("No such file or directory: '%s' (%s)" % (path, error.strerror))
    return size, digest.hexdigest()


def tokens(text):
    """The stub's tokens: words, each with the preceding blank."""
    return text.split()


class Answer:
    """The answer to a prompt. It depends only on prompt and weights, not on the parallelism."""

    def __init__(self, prompt, weights):
        self._seed = hashlib.sha256(("%s\0%s" % (weights, prompt)).encode()).digest()
        self.length = 12 + self._seed[0] % 24

    def word(self, position):
        """The word at ``position``; there are words beyond ``length`` for requests with ``ignore_eos``."""
        digest = hashlib.sha256(self._seed + str(position).encode()).digest()
        return WORDS[int.from_bytes(digest[:4], "big") % len(WORDS)]
