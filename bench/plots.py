"""`make bench-plots`: draws what a results file holds of the curves, as SVG beside it. Measures nothing.

Run by the environment of the other libraries, which has matplotlib; agentrun's own has not.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
_LABELS = {"enqueue": "enqueue", "segment": "claim to settle of a no-op run", "sweep": "sweep"}


def main() -> int:
    """From the file that is named, or from the newest that holds a whole run."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else _newest()
    if source is None:
        print("no results yet: `make bench` makes them", file=sys.stderr)
        return 1
    found = json.loads(source.read_text())
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "agentrun", "font.size": 10})
    for name, draw in (("in-flight", _in_flight), ("history", _history)):
        if any(metric.startswith(name.replace("-", "_") + " ") for metric in found["samples"]):
            print(f"written to {_drawn(RESULTS / f'{name}.svg', draw, found)}")
    return 0


def _newest() -> Path | None:
    whole = [path for path in RESULTS.glob("*.json") if not any(word in path.name for word in ("-quick", "-only-"))]
    with_curves = [path for path in whole if '"in_flight ' in path.read_text()]
    return max(with_curves, key=lambda path: path.stat().st_mtime, default=None)


def _drawn(path: Path, draw: Callable[[Axes, dict[str, Any]], None], found: dict[str, Any]) -> Path:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, found)
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    machine, versions = found["machine"], found["versions"]
    said = [
        f"{machine['cores']} cores, {machine['processor']}, load {machine['load_before']} before",
        f"Python {versions['python']}, commit {versions['commit']}, rounds: {found['notes']['rounds']}",
    ]
    axes.set_title(", ".join(said), loc="right", fontsize=7, color="grey")
    figure.savefig(path, metadata={"Date": None})
    return path


def _in_flight(axes: Axes, found: dict[str, Any]) -> None:
    points = _points(found, "in_flight")
    _line(axes, points, "agentrun, one worker process")
    floors = found["samples"].get("steps", {}).get("floor")
    if floors:
        floor = statistics.median(floors)
        axes.axhline(floor, linestyle="--", color="grey", label="rows that one connection can insert, 200 a commit")
    axes.set(xscale="log", xlabel="runs in flight", ylabel="steps a second", ylim=(0, None))
    axes.set_xticks(list(points), [f"{number:,}" for number in points])
    axes.minorticks_off()
    axes.legend(frameon=False)


def _history(axes: Axes, found: dict[str, Any]) -> None:
    sizes: list[int] = []
    for name, label in _LABELS.items():
        points = _points(found, f"history {name}")
        sizes = list(points)
        # Even steps from nothing on, which has no place on a logarithmic axis.
        _line(axes, {place: points[size] for place, size in enumerate(points)}, label)
    axes.set(xlabel="finished runs in the table", ylabel="ms", ylim=(0, None))
    axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
    axes.legend(frameon=False)


def _points(found: dict[str, Any], metric: str) -> dict[int, list[float]]:
    """By size, in order: one figure per round."""
    named = {
        int(name.rpartition(" ")[2]): sides["agentrun"]
        for name, sides in found["samples"].items()
        if name.rpartition(" ")[0] == metric
    }
    return dict(sorted(named.items()))


def _line(axes: Axes, points: dict[int, list[float]], label: str) -> None:
    """Through the medians; a bar from the least to the largest."""
    middles = [statistics.median(values) for values in points.values()]
    below = [middle - min(values) for middle, values in zip(middles, points.values(), strict=True)]
    above = [max(values) - middle for middle, values in zip(middles, points.values(), strict=True)]
    axes.errorbar(list(points), middles, yerr=[below, above], marker="o", markersize=4, capsize=2, label=label)


if __name__ == "__main__":
    sys.exit(main())
