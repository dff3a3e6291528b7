"""What will be done: pure data, printed before it is run."""

from sparkcluster.plan.build import build
from sparkcluster.plan.diff import difference
from sparkcluster.plan.model import ContainerPlan, GroupPlan, NodePlan, Plan

__all__ = ["ContainerPlan", "GroupPlan", "NodePlan", "Plan", "build", "difference"]
