"""Predicts with an exported SavedModel, in a process that imports TensorFlow only.

    python predict_saved_model.py runs/digits/export/1 images.npy probabilities.npy

`images.npy` holds float32 (B, H, W, C) as the model takes them; the probabilities, float32 (B, classes), go to
`probabilities.npy`.
"""

import sys

import numpy as np
import tensorflow as tf

if __name__ == "__main__":
    folder, images, probabilities = sys.argv[1:]
    signature = tf.saved_model.load(folder).signatures["tensor"]
    outputs = signature(images=tf.constant(np.load(images, allow_pickle=False)))
    np.save(probabilities, outputs["probabilities"].numpy())
