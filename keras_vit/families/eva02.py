"""EVA-02, with SwiGLU MLPs and both rotary and learned position embeddings.

The head reads the mean of the patches.
"""

from dataclasses import replace

from keras_vit.checkpoints.dialects import timm, transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED, Alias, Dialect, Packed
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.names import ATTENTION, MLP
from keras_vit.families.clip import PREPROCESSING
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, WORDS, timm_row

ROTARY = {"style": "pairs", "coordinates": "index", "theta": 10000.0, "reference": 16}
TI = {"hidden_size": 192, "num_layers": 12, "mlp_dim": 512, "num_heads": 3}
S = {"hidden_size": 384, "num_layers": 12, "mlp_dim": 1024, "num_heads": 6}
# The larger sizes have a LayerNorm inside the MLP.
B = {"hidden_size": 768, "num_layers": 12, "mlp_dim": 2048, "num_heads": 12, "mlp_norm": True}
L = {"hidden_size": 1024, "num_layers": 24, "mlp_dim": 2730, "num_heads": 16, "mlp_norm": True}

_size = Sizes(
    patch_size=14,
    position_resampling="bicubic_antialias",
    mlp="swiglu",
    attention_bias="qvo",
    rotary=ROTARY,
    classifier="token_gap",
    pool_norm=True,
)
EVA02_Ti14 = _size("EVA02-Ti/14", "5.5M parameters without a head", **TI)
EVA02_S14 = _size("EVA02-S/14", "21.6M parameters without a head", **S)
EVA02_B14 = _size("EVA02-B/14", "85.8M parameters without a head", **B)
EVA02_L14 = _size("EVA02-L/14", "303.3M parameters without a head", **L)


def read_config(config):
    """Returns the facts in timm's config.json, including the rotary arguments; see
    `Dialect.read_config`."""
    facts = timm.read_config(config)
    arguments = config.get("model_args") or {}
    grid = arguments.get("ref_feat_shape") or 16
    theta = arguments.get("rope_temperature") or ROTARY["theta"]
    reference, *others = grid if isinstance(grid, list) else [grid]
    if others not in ([], [reference]):
        raise ValueError(f"`ref_feat_shape` must be a square, not {grid}")
    return replace(facts, rotary={**ROTARY, "reference": reference, "theta": float(theta)})


def write_config(arguments):
    """Returns the `Folder` for timm's `Eva` with separate projections; see
    `Dialect.write_config`."""
    rotary = arguments["rotary"] or {}
    if {**rotary, "reference": 16} != ROTARY:
        return None
    config = timm.shared_config(arguments, "eva02_base_patch14_224")
    config["model_args"] |= {
        "qkv_fused": False,
        "swiglu_mlp": True,
        "scale_mlp": arguments["mlp_norm"],
        "scale_attn_inner": arguments["attention_norm"],
        "use_fc_norm": arguments["pool_norm"],
        "num_reg_tokens": arguments["num_registers"],
        "ref_feat_shape": [rotary["reference"]] * 2,
    }
    separate = ("blocks.{i}.mlp.fc1_g", "blocks.{i}.mlp.fc1_x")
    return timm.with_class_row(config, arguments, omit=() if arguments["mlp_norm"] else separate)


_FACTS = Facts(
    epsilon=1e-6,
    rotary=ROTARY,
    position_resampling="bicubic_antialias",
    preprocessing=PREPROCESSING,
)
# The smaller sizes store query, key and value in one matrix, and the SwiGLU gate and values in
# another. The larger sizes have separate matrices and a LayerNorm inside the MLP. The authors'
# names are aliases.
TIMM = Dialect(
    "timm",
    ("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight"),
    (
        ("blocks.{i}.attn.q_bias", Alias(f"{ATTENTION}query/bias")),
        ("blocks.{i}.attn.v_bias", Alias(f"{ATTENTION}value/bias")),
        *transformers.projections("blocks.{i}.attn."),
        ("blocks.{i}.attn.norm", f"{ATTENTION}out_norm"),
        ("blocks.{i}.attn.inner_attn_ln", Alias(f"{ATTENTION}out_norm")),
        ("blocks.{i}.mlp.fc1_g", f"{MLP}Dense_gate"),
        ("blocks.{i}.mlp.w1", Alias(f"{MLP}Dense_gate")),
        ("blocks.{i}.mlp.fc1_x", f"{MLP}Dense_0"),
        ("blocks.{i}.mlp.w2", Alias(f"{MLP}Dense_0")),
        ("blocks.{i}.mlp.fc1", Packed(f"{MLP}Dense_gate", f"{MLP}Dense_0")),
        ("blocks.{i}.mlp.norm", f"{MLP}LayerNorm_0"),
        ("blocks.{i}.mlp.ffn_ln", Alias(f"{MLP}LayerNorm_0")),
        ("blocks.{i}.mlp.w3", Alias(f"{MLP}Dense_1")),
        ("mask_token", IGNORED),
        ("rope.{rest}", IGNORED),
        ("{start}.rope.{rest}", IGNORED),
        *timm.TIMM.table,
    ),
    layout="pytorch",
    facts=_FACTS,
    read_config=read_config,
    write_config=write_config,
    fits=lambda shapes, config: "pos_embed" in shapes,
)

_FILES = {
    "mim_in22k_ft_in22k_in1k": ("B/448", "L/448"),
    "mim_in22k_ft_in1k": ("Ti/336", "S/336", "B/448", "L/448"),
    "mim_in22k_ft_in22k": ("B/448", "L/448"),
    "mim_m38m_ft_in22k_in1k": ("L/448",),
    "mim_m38m_ft_in1k": ("L/448",),
    "mim_m38m_ft_in22k": ("L/448",),
}


def _rows():
    for collection, models in _FILES.items():
        for model in models:
            size, side = model.split("/")
            name = f"eva02_{WORDS[size]}_patch14_{side}.{collection}"
            classes = 21841 if collection.endswith("in22k") else 1000
            resize = "stretch" if "ft_in22k" in collection else "shorter_side"
            fields = {**PREPROCESSING, "resize": resize}
            yield timm_row(collection, name, f"EVA02-{size}/14", classes, int(side), fields)


FAMILY = _size.register(
    identity=(*IDENTITY, "mlp", "mlp_norm", "attention_bias"),
    dialects=(TIMM,),
    published=tuple(_rows()),
    reference="https://github.com/baaivision/EVA",
)
