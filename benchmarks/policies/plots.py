"""The plots of ``docs/policies.md`` as SVG; the same figures make the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.policies.report import path_over_bound
from benchmarks.report.numbers import group_by
from benchmarks.report.plots import pyplot, save

_WORST = 4.0  # paths so many times the bound and longer have the last color
_STYLES = ("o-", "s-", "^-", "D-", "v-", "P-", "X-", "*-", "<-", ">-", "h-", "p-", "d--", "8--", "H--")


def draw(figures: dict[str, Any], directory: Path) -> None:
    """Draw what there are figures for."""
    if "compare" in figures:
        _paths(figures["compare"], directory / "policies-path.svg")
    if "growth" in figures:
        _growth(figures["growth"], directory / "policies-growth.svg")


def _paths(compared: dict[str, Any], path: Path) -> None:
    """Policies by generators, colored by path over bound."""
    from matplotlib.colors import LogNorm

    rows, names = compared["rows"], list(compared["generators"])
    policies = list(group_by(rows, "policy"))
    table = [[path_over_bound(rows, policy, name) for name in names] for policy in policies]
    figure, axes = pyplot(svg_text=True).subplots(figsize=(10, 5))
    shown = [[float("nan") if value is None else min(value, _WORST) for value in row] for row in table]
    mesh = axes.pcolormesh(shown, cmap="viridis_r", norm=LogNorm(1, _WORST), rasterized=True)
    for y, row in enumerate(table):
        for x, value in enumerate(row):
            color = "white" if value and value > 2 else "black"
            text = "-" if value is None else f"{value:.2f}"
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, color=color)
    axes.set_xticks([x + 0.5 for x in range(len(names))], names, rotation=40, ha="right")
    axes.set_yticks([y + 0.5 for y in range(len(policies))], policies)
    axes.invert_yaxis()
    axes.set_xlabel("generator")
    bar = figure.colorbar(mesh, ax=axes, label="path over bound (s/s over s/s, 1 = none is shorter)", pad=0.01)
    bar.set_ticks([1, 1.5, 2, 3, 4], labels=["1", "1.5", "2", "3", "4 and more"])
    bar.minorticks_off()
    save(figure, path)


def _growth(grown: dict[str, Any], path: Path) -> None:
    """Seconds by tasks, one line for each policy, both axes logarithmic."""
    names = list(dict.fromkeys(row["what"] for row in grown["rows"]))
    figure, both = pyplot(svg_text=True).subplots(1, 2, figsize=(10, 4.5), sharey=True)
    palette = pyplot(svg_text=True).get_cmap("tab20")
    for axes, kind in zip(both, ("dense", "sparse"), strict=True):
        for index, name in enumerate(names):
            rows = [row for row in grown["rows"] if (row["what"], row["kind"]) == (name, kind) and "seconds" in row]
            if rows:
                seconds = [max(row["seconds"], 1e-4) for row in rows]
                style = {"color": palette(index % 20), "markersize": 4, "linewidth": 1.2, "label": name}
                axes.plot([row["tasks"] for row in rows], seconds, _STYLES[index % len(_STYLES)], **style)
        axes.axhline(grown["limit"], color="grey", linestyle=":", linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=True, which="major", linewidth=0.3)
        axes.set_xlabel("placeable tasks (count)")
        axes.set_title(f"{kind} shuffles")
    both[0].set_ylabel("processor time of one decision (s)")
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center left", bbox_to_anchor=(0.91, 0.5), fontsize=8, frameon=False)
    save(figure, path)
