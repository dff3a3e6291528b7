"""Who sits where: spec and facts in, head, ranks, rails, addresses, interfaces and HCAs out. Pure."""

from sparkcluster.topology.build import build
from sparkcluster.topology.model import Group, Link, Member, Rail, Topology

__all__ = ["Group", "Link", "Member", "Rail", "Topology", "build"]
