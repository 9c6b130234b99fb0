"""Draw a report as one HTML page that needs nothing else: no network, no file beside it.

Every text is escaped; what a thread is called is its users' own.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

from .._version import __version__
from .._words import count, size
from .figures import (
    about,
    change,
    height,
    lead,
    notes,
    numbers,
    parts,
    percent,
    power,
    scale,
    skipped,
    title,
)
from .report import Report

WIDE = 1000
"""What pictures are wide in units of their own, which the page stretches."""

_SORT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), row = head.parentNode;
    const body = head.closest("table").tBodies[0], at = [...row.children].indexOf(head);
    const up = head.getAttribute("aria-sort") === "descending";
    for (const other of row.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (line) => line.children[at].dataset.value;
    const order = (a, b) => at ? value(a) - value(b) : value(b).localeCompare(value(a));
    body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * order(a, b)));
  });
}
"""


def page(
    report: Report,
    *,
    command: str = "",
    idle: timedelta | None = None,
    when: datetime | None = None,
) -> str:
    """Return the page of a report; `command` is what applies it, or goes on with it."""
    template = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    digest = b64encode(sha256(_SORT.encode()).digest()).decode()
    made = f", {when:%Y-%m-%d %H:%M %Z}".rstrip() if when else ""
    return template.substitute(
        title=_text(title(report)),
        about="".join(f'<p class="soft">{_text(line)}</p>' for line in about(report)),
        numbers="".join(
            f'<div class="card">{_text(label)}<b>{_text(value)}</b>'
            f'<span class="soft">{_text(note)}</span></div>'
            for label, value, note in numbers(report)
        ),
        bytes=_bytes(report),
        curve=_curve(report),
        largest=_largest(report),
        skipped=_skipped(report),
        errors=_errors(report.errors),
        command=_command(report, command),
        notes=" ".join(map(_text, notes(report, idle))),
        footer=f"reducing-saver {__version__}{made}",
        script=_SORT,
        script_hash=f"sha256-{digest}",
    )


def _text(value: object) -> str:
    """Return a text for anywhere in the page; half a character has no place in UTF-8."""
    return escape(str(value).encode(errors="replace").decode())


def _arrow(text: str) -> str:
    return _text(text.replace("->", "→"))


def _section(name: str, body: str, said: str = "") -> str:
    intro = f'<p class="soft">{said}</p>' if said else ""
    return f"<section><h2>{name}</h2>{intro}{body}</section>"


def _bytes(report: Report) -> str:
    drawn, rows, left = "", "", 0.0
    for part in parts(report):
        if not part.bytes:
            continue
        said = f"{part.label}: {size(part.bytes)}, {percent(part.share)}"
        drawn += (
            f'<rect data-part="{part.name}" x="{left:.3f}" width="{WIDE * part.share:.3f}" '
            f'height="40" fill="var(--{part.name})"><title>{_text(said)}</title></rect>'
        )
        left += WIDE * part.share
        key = f'<span class="key" style="background:var(--{part.name})"></span>'
        rows += (
            f"<tr><td>{key}{part.label}</td><td>{_text(percent(part.share))}</td>"
            f"<td>{size(part.bytes)}</td><td>{part.fate}</td></tr>"
        )
    if not drawn:
        return ""
    bar = (
        f'<svg class="bar" role="img" viewBox="0 0 {WIDE} 40" preserveAspectRatio="none" '
        f'aria-label="{_arrow(change(report))}">{drawn}</svg>'
    )
    body = f"{bar}<table><tbody>{rows}</tbody></table>"
    return _section("Where the bytes are", body, _arrow(change(report)))


def _curve(report: Report) -> str:
    if len(report.curve) < 2:
        return ""
    low, high = scale(report)
    levels = [(power(low + i), 100 - 100 * i / (high - low)) for i in range(high - low + 1)]
    lines = "".join(f'<line x1="0" x2="{WIDE}" y1="{y:.2f}" y2="{y:.2f}"/>' for _, y in levels)
    labels = "".join(f'<span style="top:{y:.2f}%">{label}</span>' for label, y in levels)
    sides = zip(("before", "after"), zip(*report.curve, strict=True), strict=True)
    shapes = "".join(
        f'<path class="{name}" d="{_steps([height(value, low, high) for value in values])}"/>'
        for name, values in sides
    )
    smallest, largest = size(report.curve[0][0]), size(report.curve[-1][0])
    body = (
        f'<div class="plot"><div class="axis">{labels}</div>'
        f'<svg role="img" viewBox="0 0 {WIDE} 100" preserveAspectRatio="none" '
        f'aria-label="bytes of each thread, before and after">{lines}{shapes}</svg>'
        f'<div class="ends"><span>smallest: {smallest}</span><span>largest: {largest}</span></div>'
        "</div>"
    )
    keys = (
        '<span class="key" style="background:var(--stays)"></span>stays &nbsp; '
        '<span class="key before" style="background:var(--old_versions)"></span>leaves'
    )
    said = f"{keys} &nbsp; from the smallest to the largest, on a log scale"
    return _section("Threads by size", body, said)


def _steps(heights: Sequence[float]) -> str:
    """Return a path that gives every thread a column of its own."""
    wide = WIDE / len(heights)
    columns = (f"V{100 - 100 * h:.2f}H{wide * (i + 1):.2f}" for i, h in enumerate(heights))
    return f"M0,100{''.join(columns)}V100Z"


def _largest(report: Report) -> str:
    if not report.largest:
        return ""
    most = max(one.before for one in report.largest) or 1
    rows = "".join(
        f'<tr><td data-value="{_text(one.thread)}">{_text(one.thread)}'
        f'<span class="size" style="width:{100 * one.before / most:.2f}%">'
        f'<i style="width:{100 * one.after / (one.before or 1):.2f}%"></i></span></td>'
        f'<td class="narrow" data-value="{one.checkpoints}">{one.checkpoints:,}</td>'
        f'<td data-value="{one.before}">{size(one.before)}</td>'
        f'<td data-value="{one.after}">{size(one.after)}</td></tr>'
        for one in report.largest
    )
    heads = (("thread", ""), ("checkpoints", "narrow"), ("before", ""), ("after", ""))
    titles = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{name}</button></th>'
        for name, kind in heads
    )
    body = f'<table class="threads"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
    return _section("Largest threads", body, "by what leaves; a title sorts")


def _skipped(report: Report) -> str:
    found = skipped(report)
    if not found:
        return ""
    body = "".join(f"<tr><td>{_text(why)}</td><td>{number:,}</td></tr>" for why, number in found)
    total = sum(number for _, number in found)
    said = f"{count(total, 'thread')} left as they are"
    return _section("Skipped", f"<table><tbody>{body}</tbody></table>", said)


def _errors(errors: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(error)}</li>" for error in errors)
    return _section("Errors", f'<ul class="errors">{items}</ul>') if items else ""


def _command(report: Report, command: str) -> str:
    if not command:
        return ""
    return _section(lead(report), f"<pre><code>{_text(command)}</code></pre>")
