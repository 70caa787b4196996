"""The modules of experiments/paper and experiments/real can be imported."""

import sys
from pathlib import Path

for folder in ("paper", "real"):
    sys.path.append(str(Path(__file__).parents[2] / "experiments" / folder))
