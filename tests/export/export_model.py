"""Exports a model, by default without a distribution strategy.

    python export_model.py MODEL.keras OUTPUT [mirrored]

With `mirrored`, the variables of the model are mirrored on two logical CPU devices.
"""

import contextlib
import sys

import keras
import tensorflow as tf

from keras_vit import export

model_path, output, *options = sys.argv[1:]
scope = contextlib.nullcontext()
if options == ["mirrored"]:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    scope = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()
with scope:
    model = keras.saving.load_model(model_path, compile=False)
export.saved_model(model, output, class_names="abcde")
