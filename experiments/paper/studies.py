"""The studies, each of which repeats experiments of the paper.

To add a study, write a file with a `Study` and add the `Study` to `STUDIES`.
"""

import axial
import compute
import data_size
import inside
import pooling
import position_embeddings
import position_similarity
import self_supervision
import shape
import throughput
import vtab

STUDIES = {
    "table8": position_embeddings.STUDY,
    "fig10": position_similarity.STUDY,
    "fig9": pooling.STUDY,
    "fig8": shape.STUDY,
    **dict.fromkeys(("fig5", "table6"), compute.COMPUTE),
    "table7": compute.ADAM_OR_SGD,
    **dict.fromkeys(("fig6", "fig7", "fig11", "fig14"), inside.STUDY),
    "fig3": data_size.FIGURE_3,
    "fig4": data_size.FIGURE_4,
    "fig12": throughput.STUDY,
    "fig13": axial.STUDY,
    "self_supervision": self_supervision.STUDY,
    "table9": vtab.STUDY,
}
"""The studies by table, figure or topic of the paper."""


def get(name):
    """Returns the `Study` with this name in `STUDIES`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in STUDIES:
        raise ValueError(f"`study` must be one of {', '.join(STUDIES)}. Received: study={name!r}")
    return STUDIES[name]
