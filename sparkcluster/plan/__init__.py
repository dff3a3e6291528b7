"""What will be done: pure data, printed before it is run."""

from sparkcluster.plan.model import ContainerPlan, GroupPlan, NodePlan, Plan

__all__ = ["ContainerPlan", "GroupPlan", "NodePlan", "Plan"]
