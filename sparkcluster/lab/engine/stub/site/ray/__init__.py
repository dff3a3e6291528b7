"""The stub's `ray` package: enough to join a cluster and to list its nodes."""

from stubengine import RAY_VERSION as __version__
from stubengine import rayclient as _client

_channel = None


def init(address, **_options):
    """Connects to the cluster at HOST:PORT."""
    global _channel
    if _channel is not None:
        raise RuntimeError("Maybe you called ray.init twice by accident?")
    try:
        _channel = _client.connect(address)
    except OSError as error:
        raise ConnectionError("Failed to connect to GCS at %s: %s" % (address, error)) from error


def nodes():
    """One dictionary per node that has ever joined."""
    if _channel is None:
        raise RuntimeError("Ray has not been started yet. You can start Ray with 'ray.init()'.")
    return _client.ask(_channel, "nodes")


def shutdown():
    """Disconnects; the cluster continues."""
    global _channel
    if _channel is not None:
        _channel.close()
        _channel = None
