"""Small models: a Vision Transformer, a hybrid and a ResNet. At small scale, they need about equal
compute."""

SIDE = 16  # image size in pixels


def small_models(scale):
    """Returns `{family: (architecture, config.model)}` for tiny or small scale.

    At small scale, each model reduces a 16-pixel image to a 4x4 grid and needs about a million
    multiply-accumulates. The ResNet's second stage further reduces the grid to 2x2.
    """
    vit = {"patch_size": 4, "num_layers": 2, "hidden_size": 48, "mlp_dim": 192, "num_heads": 3}
    vit = scale.vit if scale.is_tiny else vit
    hybrid = {
        **vit,
        "patch_size": 1,
        "num_layers": vit["num_layers"] // 2,
        "stem": "resnet",
        "resnet_blocks": (),
    }
    return {
        "ViT": ("VisionTransformer", vit),
        "hybrid": ("VisionTransformer", hybrid),
        "ResNet": ("BiTResNet", {"depth": 8, "width": 32, "version": 1}),
    }
