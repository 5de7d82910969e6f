"""The static picture of the page: free blocks over the whole run, with the places where the traces differ."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ..align import Frame
from .page_data import Column

WIDTH, HEIGHT, MARKS = 960, 96, 8
MOST_POINTS = 480


def overview(columns: Sequence[Column]) -> Markup:
    """An SVG of bounded size: one step line of free blocks per side, a mark under every column that differs."""
    step = max(1, -(-len(columns) // MOST_POINTS))
    buckets = [columns[start : start + step] for start in range(0, len(columns), step)]
    values = [f.free for column in columns for f in (column.a, column.b) if f is not None and f.free is not None]
    least, most = min(values, default=0), max(values, default=0)
    span = max(1, most - least)
    wide = WIDTH / max(1, len(buckets))
    parts = [_line(buckets, which, wide, least, span) for which in ("a", "b")]
    for number, bucket in enumerate(buckets):
        mark = min((column.mark for column in bucket if column.mark), default=0)
        if mark:
            x, width = number * wide, max(wide, 1.5)
            parts.append(f'<rect class="m{mark}" x="{x:.1f}" y="{HEIGHT}" width="{width:.1f}" height="{MARKS}"/>')
    label = f"Free KV blocks over {len(columns)} ticks, between {least} and {most}"
    return Markup(
        f'<svg id="overview" viewBox="0 0 {WIDTH} {HEIGHT + MARKS + 2}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def _line(buckets: Sequence[Sequence[Column]], which: str, wide: float, least: int, span: int) -> str:
    points: list[str] = []
    for number, bucket in enumerate(buckets):
        frames: list[Frame] = [frame for column in bucket if (frame := getattr(column, which)) is not None]
        values = [frame.free for frame in frames if frame.free is not None]
        if values:
            y = HEIGHT - 4 - (min(values) - least) / span * (HEIGHT - 10)
            command = "L" if points else "M"
            points.append(f"{command}{number * wide:.1f} {y:.1f}H{(number + 1) * wide:.1f}")
    return f'<path class="l{which}" d="{"".join(points)}"/>' if points else ""
