"""Makes the modules of experiments/paper and experiments/real importable."""

import sys
from pathlib import Path

for folder in ("paper", "real"):
    sys.path.append(str(Path(__file__).parents[2] / "experiments" / folder))
