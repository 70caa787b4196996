"""The paper's comparisons as programs: for each of its tables and figures the runs, the table and the picture.

`experiments/paper.py` makes them. To add one, write a file with a `Study` and its row in `STUDIES`.
"""

from keras_vit.studies import (
    axial,
    compute,
    data_size,
    inside,
    pooling,
    position_embeddings,
    position_similarity,
    self_supervision,
    shape,
    throughput,
    vtab,
)
from keras_vit.studies.estimates import estimate, measure_flops
from keras_vit.studies.runner import make
from keras_vit.studies.scales import Scale
from keras_vit.studies.study import Run, Study, rows_of

STUDIES = {
    "table8": position_embeddings.STUDY,
    "fig10": position_similarity.STUDY,
    "fig9": pooling.STUDY,
    "fig8": shape.STUDY,
    **dict.fromkeys(("fig5", "table2", "table5", "table6"), compute.COMPUTE),
    "table7": compute.ADAM_OR_SGD,
    **dict.fromkeys(("fig6", "fig7", "fig11", "fig14"), inside.STUDY),
    "fig3": data_size.FIGURE_3,
    "fig4": data_size.FIGURE_4,
    "fig12": throughput.STUDY,
    "fig13": axial.STUDY,
    "self_supervision": self_supervision.STUDY,
    "table9": vtab.STUDY,
}
"""The studies by the table or figure of the paper that they make."""


def get(name: str) -> Study:
    """The `Study` of a name, a key of `STUDIES`.

    Raises:
        ValueError: the name is not known.
    """
    if name not in STUDIES:
        raise ValueError(f"`study` must be one of {', '.join(STUDIES)}. Received: study={name!r}")
    return STUDIES[name]


__all__ = ["STUDIES", "Run", "Scale", "Study", "estimate", "get", "make", "measure_flops", "rows_of"]
