"""The few forms of Cosmos DB's SQL that checkpoint savers use; anything else is refused.

    SELECT [TOP n] * | c.a, c["b"] FROM c [WHERE condition [AND ...]] [ORDER BY c.a [ASC | DESC]]

A condition compares a field with a parameter or a string, or is STARTSWITH or ARRAY_CONTAINS.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

Item = dict[str, Any]
Condition = Callable[[Item], bool]


class QueryError(ValueError):
    """The query is none of the known forms."""


_FIELD = r"""c(?:\.(\w+)|\["(\w+)"\])"""
_VALUE = r"""(@\w+|'[^']*'|"[^"]*")"""
_QUERY = re.compile(
    r"SELECT\s+(?:TOP\s+(?P<top>\d+)\s+)?(?P<columns>.+?)\s+FROM\s+c"
    r"(?:\s+WHERE\s+(?P<where>.+?))?"
    rf"(?:\s+ORDER\s+BY\s+(?P<order>{_FIELD})(?P<down>\s+DESC|\s+ASC)?)?\s*",
    re.IGNORECASE | re.DOTALL,
)
_COMPARED = re.compile(rf"{_FIELD}\s*(<=|>=|!=|=|<|>)\s*{_VALUE}", re.IGNORECASE)
_STARTS = re.compile(rf"STARTSWITH\(\s*{_FIELD}\s*,\s*{_VALUE}\s*\)", re.IGNORECASE)
_CONTAINS = re.compile(rf"ARRAY_CONTAINS\(\s*{_VALUE}\s*,\s*{_FIELD}\s*\)", re.IGNORECASE)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def query(text: str, parameters: dict[str, Any], items: Iterable[Item]) -> list[Any]:
    """Return what a query selects, in its order."""
    form = _QUERY.fullmatch(text.strip())
    if form is None:
        raise QueryError(text)
    conditions = [
        _condition(part, parameters) for part in re.split(r"\s+AND\s+", form["where"] or "") if part
    ]
    found = [item for item in items if all(condition(item) for condition in conditions)]
    if form["order"]:
        name = _name(re.fullmatch(_FIELD, form["order"]))
        found = [item for item in found if name in item]  # the service leaves the others out
        descends = (form["down"] or "").strip().upper() == "DESC"
        found.sort(key=lambda item: item[name], reverse=descends)
    found = found[: int(form["top"])] if form["top"] else found
    return _project(form["columns"], found)


def _project(columns: str, found: list[Item]) -> list[Any]:
    if columns == "*":
        return found
    names = [_name(re.fullmatch(_FIELD, column.strip())) for column in columns.split(",")]
    return [{name: item[name] for name in names if name in item} for item in found]


def _condition(text: str, parameters: dict[str, Any]) -> Condition:
    if form := _COMPARED.fullmatch(text.strip()):
        name, sign, wanted = _name(form), _COMPARISONS[form[3]], _value(form[4], parameters)
        return lambda item: type(item.get(name)) is type(wanted) and sign(item[name], wanted)
    if form := _STARTS.fullmatch(text.strip()):
        name, wanted = _name(form), _value(form[3], parameters)
        return lambda item: str(item.get(name, "")).startswith(wanted)
    if form := _CONTAINS.fullmatch(text.strip()):
        name, wanted = form[2] or form[3], _value(form[1], parameters)
        return lambda item: name in item and item[name] in wanted
    raise QueryError(text)


def _name(form: re.Match[str] | None) -> str:
    if form is None:
        raise QueryError("not a field of c")
    return form[1] or form[2]


def _value(text: str, parameters: dict[str, Any]) -> Any:
    if not text.startswith("@"):
        return text[1:-1]
    if text not in parameters:
        raise QueryError(f"{text} is not given")
    return parameters[text]
