"""Makes the modules of experiments importable."""

import sys

from ..shared import ROOT

for folder in ("paper", "real", "benchmarks"):
    sys.path.append(str(ROOT / "experiments" / folder))
