"""Fine-tunes a published pair of an image and a text tower on images with captions.

    keras-vit train --config=finetune_pair:google/siglip2-base-patch16-224 \\
        --config.data.train_split=train.csv --config.data.test_split=test.csv
    keras-vit train --config=finetune_pair:openai/clip-vit-base-patch16,loss=softmax,length=77

The weights determine both towers. The tokenizer is that of the repository or folder of the weights;
for a file, set --config.data.tokenizer. The choices are `loss` (sigmoid by default), `length` (the
number of tokens of a text, by default 64) and `size` (of the images in pixels, by default 224).
"""

import re

from ml_collections import ConfigDict

from keras_vit import data, recipes
from keras_vit.recipes.image_text import image_text


def get_config(request="google/siglip2-base-patch16-224"):
    weights, *words = request.split(",")
    choices = dict(word.partition("=")[::2] for word in words)
    has_form = re.fullmatch(r"[^,]+(,loss=\w+|,length=\d+|,size=\d+)*", request)
    if not has_form or len(choices) < len(words):
        raise ValueError(
            "The config takes the source of a pair and at most one each of loss=NAME, "
            f"length=NUMBER and size=NUMBER. Received: {request!r}"
        )
    recipe = image_text(
        f"fine-tuning of {weights}, ours",
        weights=weights,
        loss=choices.get("loss", "sigmoid"),
        batch_size=256,
        total_epochs=2.0,
        model={"input_shape": ()},
        schedule={"decay": "cosine", "base": 1e-5, "warmup_steps": 100},
        data=data.defaults(
            name="captions",
            image_size=int(choices.get("size", 224)),
            tokenizer=weights,
            text_length=int(choices.get("length", 64)),
            train_crop="resize",
            eval_crop="resize",
        ),
    )
    return ConfigDict(recipes.defaults(**recipe))
