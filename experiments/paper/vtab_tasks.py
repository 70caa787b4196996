"""Scores a Vision Transformer on VTAB-1k: fine-tunes it on 1,000 examples of each of 19 tasks, by
the paper's recipe.

    python experiments/paper/vtab_tasks.py --variant=ViT_B16 --weights=imagenet21k \\
        --workdir=runs/vtab
    python experiments/paper/vtab_tasks.py --model=mine.keras --tasks=cifar100,svhn \\
        --data_path=/data/tfds

The same command resumes. The accuracy on each task, the mean of each complete group and the mean of
all chosen tasks are printed and written to `results.json` in the workdir.
"""

import gc
import sys

from absl import flags
from ml_collections import ConfigDict

from keras_vit import checkpoints, data, files, recipes, training
from keras_vit.commands import command_line, shared_flags
from keras_vit.models import VisionTransformer
from keras_vit.models.any_model import weights_digest

FLAGS = flags.FLAGS
GROUPS = {
    "natural": ("caltech101", "cifar100", "dtd", "flowers", "pets", "sun397", "svhn"),
    "specialized": ("camelyon", "eurosat", "resisc45", "retinopathy"),
    "structured": (
        "clevr_count",
        "clevr_distance",
        "dmlab",
        "dsprites_location",
        "dsprites_orientation",
        "kitti",
        "smallnorb_azimuth",
        "smallnorb_elevation",
    ),
}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)


def run_tasks(model, workdir, *, path="", tasks=TASKS, seed=0, edit=None, write=print):
    """Fine-tunes a `VisionTransformer` with a new head on each task and evaluates the result.

    Every task has its own folder in `workdir`. A workdir belongs to one model. The same call
    resumes.

    Args:
        model: the `VisionTransformer`.
        workdir: the folder of the runs.
        path: the data folder of TFDS; "" for the default one.
        tasks: some of `TASKS`.
        seed: seed of the runs; the paper averages three seeds.
        edit: `edit(config)` changes the config of a task before training.
        write: called with lines of progress.

    Returns:
        A dict of floats: the accuracy on each task, the mean of each complete group, and "mean",
            the mean of `tasks`.

    Raises:
        ValueError: `tasks` is empty or has an unknown or repeated name, a dataset is missing, the
            model is not a `VisionTransformer`, or the workdir belongs to another model or config.
        Preempted: the process received a stop signal. The run is saved.

    Reference: Zhai et al., "VTAB" (2019); Table 4 of the ViT paper for the hyperparameters, which
        all tasks share.
    """
    if not tasks or len(set(tasks)) < len(tasks) or set(tasks) - set(TASKS):
        raise ValueError(
            f"`tasks` must be one or more different names among {', '.join(TASKS)}. Received: "
            f"tasks={tuple(tasks)}"
        )
    workdir = files.as_path(workdir)
    files.make_dirs(workdir)
    weights = _keep_weights(model, workdir)
    configs = {
        task: config_of(model, task, weights=str(weights), path=path, seed=seed) for task in tasks
    }
    if edit is not None:
        for config in configs.values():
            edit(config)
    # Record the path of the weights relative to the task's folder, so that the workdir can be
    # moved.
    recorded = {
        task: {**config.to_dict(), "weights": f"../{weights.name}"}
        for task, config in configs.items()
    }
    workdirs = {task: training.Workdir(workdir / task, config) for task, config in recorded.items()}
    _check_datasets(
        {task: config for task, config in configs.items() if workdirs[task].results() is None}
    )
    metrics = {}
    for number, task in enumerate(tasks, start=1):
        results = workdirs[task].results()
        if results is None:
            write(f"task {number} of {len(tasks)}: {task}")
            results = training.run(configs[task], workdirs[task], write).metrics
            workdirs[task].write_results(results)
            gc.collect()  # frees the model, which has reference cycles
        metrics[task] = results["test/accuracy"]
        write(f"{task}: {metrics[task]:.4f}")
    return {**metrics, **_means(metrics)}


def _check_datasets(configs):
    """Raises a `ValueError` before any training if the dataset of a task is missing."""
    for task, config in configs.items():
        try:
            data.load_splits(config.data)
        except ValueError as error:
            raise ValueError(
                f"The task {task} cannot load its dataset; if TFDS has it in another folder, set "
                f"`path` (--data_path). {error}"
            ) from error


def config_of(model, task, *, weights, path="", seed=0):
    """Returns the `ConfigDict` of a task: the paper's recipe for VTAB with the sizes of a model."""
    name = f"vtab/{task}"
    sizes = _sizes(model)
    # The model name decides only the image size: 384 pixels, or 378 for patches of 14 pixels.
    recipe = recipes.finetuning("ViT-H/14" if sizes["patch_size"] == 14 else "ViT-B/16", name)
    # The task's options override the recipe. For example, images are not cropped if the label
    # depends on the whole image.
    fixed = {field: "auto" for field in data.DATASETS[name].options}
    return ConfigDict(
        recipes.defaults(
            **{
                **recipe,
                "recipe": f"VTAB-1k, {task}, Table 4",
                "seed": seed,
                "weights": weights,
                "model": sizes,
                "data": data.defaults(name=name, path=path, **{**recipe["data"], **fixed}),
            }
        )
    )


def _sizes(model):
    """Returns the fields of `config.model` that describe a Vision Transformer."""
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"The model must be a `VisionTransformer`. Received: model={model.name!r}")
    fields = (
        *("patch_size", "num_layers", "hidden_size", "mlp_dim", "num_heads", "position_embedding"),
        *("position_embedding_at", "class_token_position", "exact_gelu", "epsilon"),
    )
    sizes = {field: model.arguments[field] for field in fields}
    pooled = "token" if model.class_token is not None else "gap"
    sizes["classifier"] = pooled if model.pool_layer is None else model.classifier
    blocks = model.arguments["resnet_blocks"]
    if blocks is not None:
        sizes |= {"stem": "resnet", "resnet_blocks": tuple(blocks)}
    return sizes


def _keep_weights(model, workdir):
    """Saves the weights that all tasks start from. If the workdir has weights, checks that they are
    the same.

    Returns the path of the weights.
    """
    digest = weights_digest(model)
    saved = files.read_json(workdir / "weights.json")
    if saved is None:
        checkpoints.save(model, str(workdir / "weights.npz"))
        files.write_json(workdir / "weights.json", {"sha256": digest})
    elif saved != {"sha256": digest}:
        raise ValueError(
            f"The workdir belongs to a model with other weights. Received: workdir={workdir}"
        )
    return workdir / "weights.npz"


def _means(metrics):
    groups = {
        group: sum(metrics[task] for task in tasks) / len(tasks)
        for group, tasks in GROUPS.items()
        if all(task in metrics for task in tasks)
    }
    return {**groups, "mean": sum(metrics.values()) / len(metrics)}


def define_flags():
    shared_flags.define_model()
    flags.DEFINE_list("tasks", list(TASKS), "Tasks to run.")
    flags.DEFINE_string("data_path", "", "TFDS data folder, unless it is the default one.")
    flags.DEFINE_integer("seed", 0, "The seed of the runs.", lower_bound=0)
    flags.DEFINE_string("workdir", "runs/vtab", "The folder of the runs.")


def main():
    model, *_ = shared_flags.chosen_model()
    try:
        metrics = run_tasks(
            model, FLAGS.workdir, path=FLAGS.data_path, tasks=FLAGS.tasks, seed=FLAGS.seed
        )
    except training.Preempted as preempted:
        print(f"{preempted}:\n  {command_line.this_command()}")
        sys.exit(training.EXIT_CODE)
    for name in (*GROUPS, "mean"):
        if name in metrics:
            print(f"{name:12} {metrics[name]:.4f}")
    files.write_json(files.as_path(FLAGS.workdir) / "results.json", metrics)
    print(f"Everything is in {FLAGS.workdir}.")


if __name__ == "__main__":
    command_line.run(lambda: sys.modules["__main__"], "vtab_tasks", sys.argv[1:])
