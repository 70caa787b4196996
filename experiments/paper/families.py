"""Small models of about equal compute: a Vision Transformer, a hybrid and a ResNet."""

SIDE = 16  # image size in pixels at small scale


def families(scale):
    """Returns `{family: (architecture, config.model)}` at small scale, about a million multiply-accumulates each.

    All reduce a 16-pixel image to a 4x4 grid; the ResNet's second stage reduces it to 2x2.
    """
    vit = {"patch_size": 4, "num_layers": 2, "hidden_size": 48, "mlp_dim": 192, "num_heads": 3}
    vit = scale.vit if scale.is_tiny else vit
    hybrid = {**vit, "patch_size": 1, "num_layers": vit["num_layers"] // 2, "stem": "resnet", "resnet_blocks": ()}
    return {
        "ViT": ("VisionTransformer", vit),
        "hybrid": ("VisionTransformer", hybrid),
        "ResNet": ("BiTResNet", {"depth": 8, "width": 32, "version": 1}),
    }
