"""Makes the modules of experiments/paper and experiments/real importable."""

import sys

from ..shared import ROOT

for folder in ("paper", "real"):
    sys.path.append(str(ROOT / "experiments" / folder))
