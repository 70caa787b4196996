"""The dialects of text towers: transformers, open_clip and big_vision.

The canonical names are those of an image tower, with the token embedding, and the scale and bias of
the logits. The image half of a file is ignored.
"""

from dataclasses import replace

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects import open_clip, transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED, Dialect, Stacked, Token
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.names import BLOCK

TOKENS = "token_embedding/embeddings"
SCALE = "logit_scale"
BIAS = "logit_bias"
_SECOND_POSITIONS = "second positions"
# The values of `mlp` by name in a config.json of transformers.
ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_CLIP_TEXT = {"causal": True, "pool": "largest"}
_LOGITS = ((SCALE, SCALE), (BIAS, BIAS))


def _read_transformers(config, defaults):
    """Returns the facts in a config.json, and the fields of the text tower with `defaults`."""
    tower = {**defaults, **transformers.tower_config(config, "text")}
    activation = tower["hidden_act"]
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"`hidden_act` must be one of {known}, not {activation!r}")
    facts = Facts(
        num_heads=tower["num_attention_heads"],
        epsilon=tower["layer_norm_eps"],
        mlp=ACTIVATIONS[activation],
    )
    return facts, tower


def read_clip(config):
    """Returns the facts in the config.json of `CLIPModel`; see `Dialect.read_config`."""
    defaults = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 8}
    facts, tower = _read_transformers(config, {**defaults, "eos_token_id": 49407})
    end = tower["eos_token_id"]
    # OpenAI's files contain the wrong end token 2, for which transformers takes the largest id.
    arguments = {"pool": "largest"} if end == 2 else {"pool": "end", "end_id": end}
    return replace(facts, arguments={"causal": True, **arguments})


def read_siglip(config):
    """Returns the facts in the config.json of `SiglipModel` or `Siglip2Model`; see
    `Dialect.read_config`."""
    defaults = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
    return _read_transformers(config, {**defaults, "num_attention_heads": 12})[0]


_HUGGING_FACE = (
    ("text_model.embeddings.token_embedding.weight", TOKENS),
    ("text_model.embeddings.position_embedding.weight", Token(names.POSITIONS, 2)),
    *transformers.clip_layers("text_model.encoder.layers.{i}."),
    ("text_model.final_layer_norm", "Transformer/encoder_norm"),
    *_LOGITS,
    ("vision_model.{rest}", IGNORED),
    ("visual_projection.{rest}", IGNORED),
    ("{rest}.position_ids", IGNORED),
)
CLIP = Dialect(
    "huggingface",
    "text_projection.weight",
    (("text_projection", "head"), *_HUGGING_FACE),
    layout="pytorch",
    facts=Facts(arguments=_CLIP_TEXT),
    read_config=read_clip,
)
SIGLIP = Dialect(
    "huggingface",
    "text_model.head.weight",
    (("text_model.head", "head"), *_HUGGING_FACE),
    layout="pytorch",
    read_config=read_siglip,
)

# Fields of `text_cfg` that are supported, and their defaults in open_clip.
_OPEN_CLIP: dict = {
    "heads": 8,
    "pool_type": "argmax",
    "eos_id": 2,
    "no_causal_mask": False,
    # The arrays determine these fields, or the fields do not affect the output.
    **dict.fromkeys(("context_length", "vocab_size", "width", "layers", "mlp_ratio", "proj_bias")),
    **dict.fromkeys(("hf_tokenizer_name", "tokenizer_kwargs", "final_ln_after_pool")),
}
_POOLS = {"argmax": "largest", "eos": "end", "last": "last"}


def read_open_clip(config):
    """Returns the facts in an open_clip_config.json; see `Dialect.read_config`."""
    choices = {"pool_type": tuple(_POOLS)}
    tower, facts = open_clip.read_tower(config, "text_cfg", _OPEN_CLIP, choices)
    arguments = {"causal": not tower["no_causal_mask"], "pool": _POOLS[tower["pool_type"]]}
    if arguments["pool"] == "end":
        arguments["end_id"] = tower["eos_id"]
    return replace(facts, num_heads=tower["heads"], arguments=arguments)


# The original files of CLIP have the same names; open_clip's "custom text" has the prefix "text.".
OPEN_CLIP = Dialect(
    "original",
    "{tower}token_embedding.weight",
    (
        ("{tower}token_embedding.weight", TOKENS),
        ("{tower}positional_embedding", Token(names.POSITIONS, 2)),
        *open_clip.layers("{tower}transformer.resblocks.{i}."),
        ("{tower}ln_final", "Transformer/encoder_norm"),
        # With a bias, the projection is a module with a transposed kernel.
        ("{tower}text_projection.{kind}", "head"),
        ("{tower}text_projection", "head/kernel"),
        *_LOGITS,
        ("visual.{rest}", IGNORED),
    ),
    layout="pytorch",
    choices={"tower": ("", "text.")},
    facts=Facts(epsilon=1e-5, arguments=_CLIP_TEXT),
    config="open_clip_config.json",
    read_config=read_open_clip,
)


def _add_second_positions(weights, facts, config):
    """Adds the second position embeddings of old files of big_vision to the first."""
    first = weights.get(names.POSITIONS)
    second = weights.get(_SECOND_POSITIONS)
    if first and second and first.shape == second.shape:
        del weights[_SECOND_POSITIONS]
        weights[names.POSITIONS] = first.map(first.shape, lambda array: array + second.read())
    return facts


BIG_VISION = Dialect(
    "big_vision",
    "txt/Embed_0/embedding",
    (
        ("txt/Embed_0/embedding", TOKENS),
        ("txt/pos_embedding", names.POSITIONS),
        ("txt/Encoder_0/pos_embedding", _SECOND_POSITIONS),
        ("txt/Encoder_0/encoderblock/{rest}", Stacked(f"{BLOCK}{{rest}}")),
        ("txt/Encoder_0/{rest}", "Transformer/{rest}"),
        ("txt/{rest}", "{rest}"),
        ("t", SCALE),
        ("b", BIAS),
        ("img/{rest}", IGNORED),
    ),
    prefixes=("params/", "", "opt/target/"),
    facts=Facts(epsilon=1e-6, mlp="gelu_tanh"),
    adapt=_add_second_positions,
)
DIALECTS = (CLIP, SIGLIP, OPEN_CLIP, BIG_VISION)
