"""Predicts with an exported SavedModel, in a process that imports TensorFlow only.

    python experiments/predict_saved_model.py runs/digits/export/1 images.npy probabilities.npy

`images.npy` holds float32 (B, H, W, C) in [-1, 1]; the probabilities, float32 (B, classes), go to `probabilities.npy`.
"""

import argparse

import banner_filter  # noqa: F401 before whatever imports TensorFlow
import numpy as np
import tensorflow as tf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("saved_model", help="folder of one exported version")
    parser.add_argument("images", help=".npy file of images")
    parser.add_argument("probabilities", help=".npy file for the probabilities")
    arguments = parser.parse_args()
    signature = tf.saved_model.load(arguments.saved_model).signatures["tensor"]
    images = np.load(arguments.images, allow_pickle=False)
    np.save(arguments.probabilities, signature(images=tf.constant(images))["probabilities"].numpy())


if __name__ == "__main__":
    main()
