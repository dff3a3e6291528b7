"""What will be done: pure data, printed before it is run."""

from sparkcluster.plan.build import build as build
