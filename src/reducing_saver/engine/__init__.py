"""Reduce message lists: pure functions on data, useful without a saver.

messages -> `split` -> units -> (`Window`) -> `plan` -> `apply` -> messages
"""

from __future__ import annotations

from .apply import Reduced, apply, reduce_messages
from .excerpt import Excerpt, Short, Task, is_excerpt
from .messages import Message, Role
from .plan import Action, Plan, Reason, Verdict, When, plan
from .units import Kind, Unit, join, split
from .validity import Problem, problems
from .window import Mark, Measure, Window

__all__ = [
    "Action",
    "Excerpt",
    "Kind",
    "Mark",
    "Measure",
    "Message",
    "Plan",
    "Problem",
    "Reason",
    "Reduced",
    "Role",
    "Short",
    "Task",
    "Unit",
    "Verdict",
    "When",
    "Window",
    "apply",
    "is_excerpt",
    "join",
    "plan",
    "problems",
    "reduce_messages",
    "split",
]
