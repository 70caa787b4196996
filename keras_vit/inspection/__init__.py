"""Looking at models and what they answer, from outside: arrays in, arrays or pictures out.

Every function takes any `keras.Model` with a Vision Transformer in it, on any backend. Layers are counted from 1 for
the first block. `plots` draws what the others compute, and alone needs matplotlib; `report.write_report` does it all.
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
    "attention_distance", "attention_maps", "attention_relevance", "attention_rollout", "attention_scores",
    "filter_components", "mean_distance", "overlay", "patch_components", "position_similarity", "token_attention",
    "upsample_maps",
]  # fmt: skip
