"""Reaching machines."""

from sparkcluster.hosts.base import Host, Result, Stream

__all__ = ["Host", "Result", "Stream"]
