"""Makes `python -m keras_vit` run the command `keras-vit`.

Without arguments, it runs `keras-vit info`.
"""

import sys

from keras_vit_cli import main

if __name__ == "__main__":
    main(sys.argv[1:] or ["info"])
