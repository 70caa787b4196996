"""What lies beside the graph in the folder of a version."""

import os

from keras_vit.export.readme import write_readme
from keras_vit.export.server_files import write_server_files
from keras_vit.export.warmup import write_warmup

LABELS = "assets/labels.txt"
EXAMPLE = "assets.extra/example.jpg"
MODEL = "assets.extra/model.keras"


def write_beside(folder, *, name, model, card, signatures, files):
    """Writes labels, an example, the model, the warm-up, files for the server and a README.

    Args:
        folder: of the version, where the graph is.
        name: of the model on the server.
        model: the model itself, as it was trained.
        card: its `model_card`.
        signatures: `{name: Signature}`.
        files: encoded images, a list of bytes.
    """
    for part in ("assets", "assets.extra"):
        os.makedirs(os.path.join(folder, part), exist_ok=True)
    with open(os.path.join(folder, LABELS), "w", encoding="utf-8") as file:
        file.write("\n".join(card["class_names"]) + "\n")
    with open(os.path.join(folder, EXAMPLE), "wb") as file:
        file.write(files[0])
    model.save(os.path.join(folder, MODEL))
    requests = {key: (signature.spec.name, signature.example(files[:1])) for key, signature in signatures.items()}
    write_warmup(folder, name, requests)
    write_server_files(os.path.join(folder, "assets.extra"), name, card["max_batch_size"])
    write_readme(folder, name, card, signatures)
