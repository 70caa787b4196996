"""Compares the speed of ViT on a GPU between keras_vit on JAX and timm on PyTorch.

    pip install -e ".[cpu,jax-gpu]" torch timm && python experiments/benchmarks/gpu.py
    python experiments/benchmarks/gpu.py --model=L/16 --measure=train --batch_sizes=64,128,256 \\
        --peak_tflops=989

Both libraries compute in bfloat16 on images of 224 pixels, and train with AdamW and gradients
clipped to a norm of 1. timm's model uses `torch.compile` and fused attention. The script first
finds the fastest batch size of each library. At these batch sizes, the libraries then run in turns.
Each library, measure and batch size has its own process, and only one process computes at a time.

Prints the median images per second, the peak device memory and the largest tried batch size that
fits. A ratio above 1 means that keras_vit is faster. With `--peak_tflops`, also prints the fraction
of the card's peak rate. For this fraction, each multiply-accumulate of the forward pass, except for
the head, counts as 6 operations in training and as 2 in inference.
"""

import statistics
import time

from absl import app, flags
from vit_models import CLASSES, SIZES, build_engine, random_batch, train_config
from workers import Worker, in_turns, is_out_of_memory, serve

_LIBRARIES = ("keras_vit", "timm")
_MODEL = flags.DEFINE_enum(
    "model", "B/16", list(SIZES), "The model; tiny is for trying the script."
)
_MEASURE = flags.DEFINE_multi_enum(
    "measure", ["train", "inference"], ["train", "inference"], "What to measure."
)
_BATCHES = flags.DEFINE_list(
    "batch_sizes", ["32", "64", "128", "256", "512"], "Batch sizes to try."
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 7, "Measured rounds, after one warm-up round.", lower_bound=1
)
_STEPS = flags.DEFINE_integer("steps", 20, "Steps per turn of a library.", lower_bound=1)
_PEAK_TFLOPS = flags.DEFINE_float(
    "peak_tflops", 0.0, "The card's dense bfloat16 rate, TFLOP/s; 0 omits the fraction."
)
_WORKER = flags.DEFINE_list(
    "worker", None, "Internal: the library, measure and batch size of this process."
)
IMAGE_SIZE = 224  # pixels


def build_keras_vit(measure, batch_size):
    """Returns a function `run(steps)` that computes with JAX and returns the peak memory of the
    device in bytes."""
    images, labels = random_batch(batch_size, IMAGE_SIZE)
    config = train_config(
        batch_size,
        IMAGE_SIZE,
        SIZES[_MODEL.value],
        strategy="default",
        precision="mixed_bfloat16",
        steps_per_call=_STEPS.value,
    )
    engine = build_engine(config, images, labels)
    if measure == "inference":
        return jax_inference(engine, images)

    def run(steps):
        engine.train(0, steps)
        return jax_peak()

    return run


def jax_inference(engine, images):
    """Returns a function `run(steps)` that computes logits and returns the peak memory."""
    import jax

    model = engine.model
    images = jax.device_put(images)
    others = [variable.value for variable in model.non_trainable_variables]

    @jax.jit
    def predict(weights, images):
        return model.stateless_call(weights, others, images, training=False)[0]

    def run(steps):
        for _ in range(steps):
            logits = predict(engine.state.weights, images)
        logits.block_until_ready()
        return jax_peak()

    return run


def jax_peak():
    """Returns the peak memory of the first device in bytes; 0 if JAX does not report it."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def build_timm(measure, batch_size):
    """Returns a function `run(steps)` that computes with PyTorch and returns the peak memory of the
    device in bytes."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    model = timm_model().to(device)
    compiled = torch.compile(model)
    images = torch.rand(batch_size, 3, IMAGE_SIZE, IMAGE_SIZE, device=device) * 2 - 1
    labels = torch.arange(batch_size, device=device) % CLASSES

    def autocast():
        return torch.autocast(device, torch.bfloat16)

    def wait_for_peak():
        """Waits for the device and returns its peak memory in bytes; 0 on a CPU."""
        if device == "cpu":
            return 0
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    if measure == "inference":
        model.eval()

        def run(steps):
            with torch.inference_mode(), autocast():
                for _ in range(steps):
                    compiled(images)
            return wait_for_peak()

        return run
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")

    def run(steps):
        for _ in range(steps):
            with autocast():
                loss = torch.nn.functional.cross_entropy(compiled(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return wait_for_peak()

    return run


def timm_model():
    import timm

    sizes = SIZES[_MODEL.value]
    return timm.models.vision_transformer.VisionTransformer(
        img_size=IMAGE_SIZE,
        patch_size=sizes["patch_size"],
        num_classes=CLASSES,
        embed_dim=sizes["hidden_size"],
        depth=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["mlp_dim"] / sizes["hidden_size"],
    )


def load(library, measure, batch_size):
    """Builds and compiles a model of a library.

    Returns whether it fits into the memory, and a function that returns the seconds of `--steps`
    steps and the peak memory in bytes.
    """
    build = {"keras_vit": build_keras_vit, "timm": build_timm}[library]
    try:
        run = build(measure, int(batch_size))
        run(_STEPS.value)  # compiles
    except (RuntimeError, ValueError) as error:
        # Training in keras_vit raises a `ValueError` if the memory is too small.
        if not is_out_of_memory(error):
            raise
        return False, None

    def measured():
        start = time.perf_counter()
        peak = run(_STEPS.value)
        return time.perf_counter() - start, peak

    return True, measured


def start_worker(library, measure, batch_size):
    # By default, JAX preallocates most of the memory and leaves too little for the other library.
    environment = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return Worker(f"{library},{measure},{batch_size}", **environment)


def try_batch_sizes(library, measure):
    """Returns `(fastest batch size, largest batch size that fits)`."""
    rates = {}
    for size in map(int, _BATCHES.value):
        worker = start_worker(library, measure, size)
        fits = worker.facts
        if fits:
            rates[size] = size * _STEPS.value / worker.query()[0]
            print(f"  {library}, batch {size}: {rates[size]:,.1f} images/s", flush=True)
        worker.close()
        if not fits:
            break
    if not rates:
        raise app.UsageError(
            f"The first batch size does not fit {library}. Received: "
            f"--batch_sizes={','.join(_BATCHES.value)}"
        )
    return max(rates, key=rates.get), max(rates)


def compare(measure):
    """Compares the libraries in training ("train") or "inference", and prints the results."""
    batch_sizes = {library: try_batch_sizes(library, measure) for library in _LIBRARIES}
    workers = {
        library: start_worker(library, measure, fastest)
        for library, (fastest, _) in batch_sizes.items()
    }
    if not all(worker.facts for worker in workers.values()):
        raise app.UsageError("Both libraries together do not fit: choose smaller --batch_sizes")
    runs = {library: worker.query for library, worker in workers.items()}
    in_turns(runs, 1)  # warms up
    rates = {}
    for library, answers in in_turns(runs, _ROUNDS.value).items():
        seconds, peaks = zip(*answers)
        fastest, largest = batch_sizes[library]
        rates[library] = rate = fastest * _STEPS.value / statistics.median(seconds)
        share = ""
        if _PEAK_TFLOPS.value:
            used = rate * flops_per_image(measure) / 1e12 / _PEAK_TFLOPS.value
            share = f", {100 * used:.0f} % of {_PEAK_TFLOPS.value:g} TFLOP/s"
        print(
            f"{measure}, {library}: {rate:,.1f} images/s at batch {fastest} (largest that fits: "
            f"{largest}), peak {max(peaks) / 1e9:.2f} GB{share}"
        )
    for worker in workers.values():
        worker.close()
    print(f"{measure}: ratio {rates['keras_vit'] / rates['timm']:.3f}", flush=True)


def flops_per_image(measure):
    """Returns the floating-point operations for one image, counted without the head as in the
    paper's Table 6."""
    from keras_vit import VisionTransformer, cost

    sizes = {**SIZES[_MODEL.value], "input_shape": (IMAGE_SIZE, IMAGE_SIZE, 3)}
    forward = cost.flops(cost.build_abstract(VisionTransformer, **sizes), table_6=True)
    return forward * (3 if measure == "train" else 1)


def main(_):
    if _WORKER.value:
        serve(lambda: load(*_WORKER.value))
        return
    for measure in _MEASURE.value:
        compare(measure)


if __name__ == "__main__":
    app.run(main)
