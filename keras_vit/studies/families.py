"""The models that are compared with each other: a Vision Transformer, a hybrid and a ResNet of about equal compute."""


def families(scale):
    """`{family: (task, config.model)}` at small scale, of 40 to 56 million multiply-accumulates for 32 pixels."""
    if scale.is_tiny:
        hybrid = {**scale.vit, "patch_size": 1, "stem": "resnet", "resnet_blocks": ()}
        return {"ViT": ("classification", scale.vit), "hybrid": ("classification", hybrid)}
    vit = {"patch_size": 4, "num_layers": 4, "hidden_size": 128, "mlp_dim": 512, "num_heads": 4}
    hybrid = {**vit, "patch_size": 1, "num_layers": 3, "stem": "resnet", "resnet_blocks": (1,)}
    return {
        "ViT": ("classification", vit),
        "hybrid": ("classification", hybrid),
        "ResNet": ("resnet_classification", {"depth": 26, "version": 1}),
    }
