"""Trains a Vision Transformer on the available devices (TPU, GPUs or CPU); the same as `keras-vit
train`.

    python experiments/run_tpu.py
    python experiments/run_tpu.py --config=experiments/configs/digits.py --workdir=runs/mine \\
        --config.seed=1
"""

import sys

from keras_vit_cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
