"""Checkpoints: weights of this library and of four others, read and written.

`load(model, source)` reads, `save(model, path)` writes, `infer_architecture(source)` says which model a file needs.

Inside, every file is brought to one layout, that of the JAX reference, `vit_jax`
(https://github.com/google-research/vision_transformer), with the module names of its current code: `npz` and
`safetensors` read headers, `vit_jax_names`, `big_vision_names`, `timm_names`, `huggingface_names` and `bit_names` map
each dialect's names, and `planning` decides what happens to every array before the first one is read. `published` is
the table of published weights, `resolving` and `downloading` turn a name or a URL into a local file.
"""

from keras_vit.checkpoints.architecture_inference import find_numerics, infer_architecture
from keras_vit.checkpoints.loading import load
from keras_vit.checkpoints.report import LoadReport
from keras_vit.checkpoints.resolving import fetch, find_published
from keras_vit.checkpoints.saving import save

__all__ = ["LoadReport", "fetch", "find_numerics", "find_published", "infer_architecture", "load", "save"]
