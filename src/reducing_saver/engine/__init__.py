"""Reduce message lists: pure functions on data, useful without a saver.

messages -> `split` -> units -> (`Window`) -> `plan` -> `apply` -> messages
"""

from __future__ import annotations

from .apply import Reduced, apply, reduce_messages
from .messages import Message, Role
from .plan import Action, Plan, Reason, Verdict, When, plan
from .units import Kind, Unit, join, split
from .validity import Problem, problems
from .window import Mark, Measure, Window

__all__ = [
    "Action",
    "Kind",
    "Mark",
    "Measure",
    "Message",
    "Plan",
    "Problem",
    "Reason",
    "Reduced",
    "Role",
    "Unit",
    "Verdict",
    "When",
    "Window",
    "apply",
    "join",
    "plan",
    "problems",
    "reduce_messages",
    "split",
]
