"""`import ray` as the stub engine plays it: enough to join a cluster and to list its nodes."""

import types

from stubengine import RAY_VERSION as __version__
from stubengine import gcs as _gcs
from stubengine import rayclient as _client
from stubengine.wire import host_ip as _host_ip

__all__ = [
    "__version__",
    "available_resources",
    "cluster_resources",
    "init",
    "is_initialized",
    "nodes",
    "shutdown",
    "util",
]

_channel = None


def init(address=None, **kwargs):
    """Connects to the cluster at HOST:PORT, or ("auto", None) to the one this host belongs to."""
    global _channel
    if _channel is not None:
        if kwargs.get("ignore_reinit_error"):
            return types.SimpleNamespace(address_info={"address": address})
        raise RuntimeError("Maybe you called ray.init twice by accident?")
    target = address if address not in (None, "auto") else _client.current_cluster()
    if not target:
        raise ConnectionError(
            "Could not find any running Ray instance. Please specify the one to connect to by "
            "setting `--address` flag or `RAY_ADDRESS` environment variable."
        )
    try:
        _channel = _client.connect(target, "client")
    except _gcs.TokenError as error:
        raise RuntimeError(str(error)) from error
    except _client.Refused as error:
        raise RuntimeError(str(error)) from error
    except OSError as error:
        raise ConnectionError("Failed to connect to GCS at %s: %s" % (target, error)) from error
    return types.SimpleNamespace(address_info={"address": target, "gcs_address": target})


def _ask(op):
    if _channel is None:
        raise RuntimeError("Ray has not been started yet. You can start Ray with 'ray.init()'.")
    return _client.ask(_channel, op)


def is_initialized():
    """Whether init() has connected."""
    return _channel is not None


def nodes():
    """One dictionary per node that ever joined."""
    return _ask("nodes")["nodes"]


def cluster_resources():
    """Sum of the resources of the nodes alive."""
    total = {}
    for node in nodes():
        for name, amount in node["Resources"].items():
            total[name] = total.get(name, 0.0) + amount
    return total


def available_resources():
    """GPUs that no driver holds."""
    free = _ask("free")["gpus"]
    return {"GPU": free} if free else {}


def shutdown(*_args, **_kwargs):
    """Disconnects; the cluster goes on."""
    global _channel
    if _channel is not None:
        _channel.close()
        _channel = None


util = types.SimpleNamespace(get_node_ip_address=_host_ip)
