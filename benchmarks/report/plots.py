"""Style and file format of all plots: the same figures give the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def pyplot(*, svg_text: bool = False) -> Any:
    """Return matplotlib's pyplot with the common style; ``svg_text`` keeps text as text, which makes small files."""
    import matplotlib as mpl  # the benchmarks' own dependency

    mpl.use("Agg")
    style = {"font.size": 9, "font.family": "sans-serif", "svg.hashsalt": "rechannel"}
    mpl.rcParams.update(style | {"svg.fonttype": "none" if svg_text else "path"})
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, path: Path) -> None:
    """Write a figure without a date or a version in it, and close it."""
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        figure.savefig(path, bbox_inches="tight", dpi=110, metadata={"Software": None})
    else:
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
        # matplotlib leaves blanks at the ends of lines.
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    plt.close(figure)
