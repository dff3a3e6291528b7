"""`import ray` as the stub engine plays it: enough to join a cluster and to list its nodes."""

from stubengine import RAY_VERSION as __version__
from stubengine import rayclient as _client

_channel = None


def init(address=None, **_options):
    """Connects to the cluster at HOST:PORT, or ("auto", None) to the one this host belongs to."""
    global _channel
    if _channel is not None:
        raise RuntimeError("Maybe you called ray.init twice by accident?")
    target = address if address not in (None, "auto") else _client.current_cluster()
    if not target:
        raise ConnectionError(
            "Could not find any running Ray instance. Please specify the one to connect to by "
            "setting `--address` flag or `RAY_ADDRESS` environment variable."
        )
    try:
        _channel = _client.connect(target)
    except OSError as error:
        raise ConnectionError("Failed to connect to GCS at %s: %s" % (target, error)) from error


def nodes():
    """One dictionary per node that ever joined."""
    if _channel is None:
        raise RuntimeError("Ray has not been started yet. You can start Ray with 'ray.init()'.")
    return _client.ask(_channel, "nodes")


def cluster_resources():
    """Sum of the resources of the nodes alive."""
    total = {}
    for node in nodes():
        for name, amount in node["Resources"].items():
            total[name] = total.get(name, 0.0) + amount
    return total


def shutdown():
    """Disconnects; the cluster goes on."""
    global _channel
    if _channel is not None:
        _channel.close()
        _channel = None
