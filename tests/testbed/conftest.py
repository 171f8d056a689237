from __future__ import annotations

import sys
from pathlib import Path

# benchmarks and examples are no part of the distribution; they are imported from the repository's root.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
