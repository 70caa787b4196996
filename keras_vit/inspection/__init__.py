"""Inspects trained models: attention, position embeddings, filters and patch components, as arrays
and plots.

A model can be any `keras.Model` that is or contains one `VisionTransformer`. Layer 1 is the first
block. Only `plots` and `report` require matplotlib. `report.write_report` draws all plots that a
model supports. Figure numbers in docstrings refer to the ViT paper.
"""

from keras_vit.inspection.attention_maps import (
    attention_maps,
    attention_rollout,
    overlay,
    token_attention,
    upsample_maps,
)
from keras_vit.inspection.distance import attention_distance, mean_distance
from keras_vit.inspection.embeddings import filter_components, patch_components, position_similarity
from keras_vit.inspection.relevance import attention_relevance
from keras_vit.inspection.scores import attention_scores

__all__ = [
    "attention_distance",
    "attention_maps",
    "attention_relevance",
    "attention_rollout",
    "attention_scores",
    "filter_components",
    "mean_distance",
    "overlay",
    "patch_components",
    "position_similarity",
    "token_attention",
    "upsample_maps",
]
