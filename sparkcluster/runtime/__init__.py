"""One rank: how it is started, stopped and recorded, as a container or as a process."""

from sparkcluster.runtime.change import Changer
from sparkcluster.runtime.ranks import start_steps, stop_steps

__all__ = ["Changer", "start_steps", "stop_steps"]
