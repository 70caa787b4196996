"""Tests of masks and depths: their files, their geometry, and what is refused."""

import io
import shutil
import struct
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import data, evaluation
from keras_vit.data.targets.masks import class_colors, overlay

from .helpers import png_chunk, read_all

GRAY, RGB, INDEXED = 0, 2, 3
NAMES = ("sky", "tree", "road")


def png(values, bits=8, color=GRAY, palette=b""):
    """Returns a PNG file; `values` are integers `(H, W)`, or `(H, W, 3)` for RGB."""
    height, width = values.shape[:2]
    rows = values.astype(">u2" if bits == 16 else "u1").reshape(height, -1)
    if bits < 8:
        digits = np.unpackbits(rows[..., None], -1)[..., 8 - bits :].reshape(height, -1)
        rows = np.packbits(digits, axis=1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    colors = png_chunk(b"PLTE", palette) if palette else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"gAMA", b"\0\0\xb1\x8f")
        + colors
        + png_chunk(b"IDAT", zlib.compress(raw))
        + png_chunk(b"IEND", b"")
    )


def blocks(seed, classes=3, size=(4, 5)):
    """Returns a mask of squares of 16x16 pixels, which has 255 in one of them."""
    mask = np.random.default_rng(seed).integers(0, classes, size)
    mask[1, 1] = 255
    return np.kron(mask, np.ones((16, 16), int))


def write_scenes(folder, size=(4, 5)):
    """Writes 6 images whose gray is 50 times the class, or 250 where the mask is ignored."""
    for number in range(6):
        mask = blocks(number, size=size)
        gray = np.where(mask == 255, 250, 50 * mask)
        (folder / "images" / f"{number}.png").write_bytes(png(gray))
        (folder / "masks" / f"{number}.png").write_bytes(png(mask))


@pytest.fixture
def scenes(tmp_path):
    """Returns a folder of 6 images of 64x80 pixels and their masks."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    write_scenes(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    return tmp_path


def load(path, batch_size=6, target="masks", **fields):
    fields = {"name": "masks", "path": str(path), "image_size": 32, "split_seed": 1, **fields}
    return data.from_config(fields, batch_size=batch_size, seed=0, target=target)


@pytest.mark.parametrize(
    "fields",
    [
        {"train_crop": "none", "eval_crop": "none", "shift": 3},
        {"train_crop": "inception", "image_size": 64},
        {"train_crop": "resize", "shift": 5, "rounding": "uint8", "interpolation": "bicubic"},
        {"train_crop": "resize_crop", "resize_size": 48, "eval_crop": "resize_crop"},
        {"train_crop": "resize_small_crop", "resize_size": 40, "eval_crop": "resize_small_crop"},
    ],
    ids=lambda fields: fields["train_crop"],
)
def test_masks_stay_aligned_with_their_images(scenes, fields):
    if fields["train_crop"] == "none":
        write_scenes(scenes, size=(2, 2))  # images of 32x32 pixels
    inputs = load(scenes, test_share=0.5, flip="on", **fields)
    train = iter(inputs.train_batches())
    seen = set()
    for images, masks, weights in (next(train), next(train), next(iter(inputs.eval_batches()))):
        gray = (127.5 * images.numpy()[..., 0] + 127.5) / 50
        number = np.rint(gray).astype(int)
        is_pure = np.abs(gray - number) < 0.02  # not interpolated between two squares
        masks = masks.numpy().astype(int)
        # The shift fills images with black and masks with 255.
        is_pure &= ~((masks == 255) & (number == 0))
        assert is_pure[weights > 0].mean() > 0.5
        right = np.where(number == 5, 255, number) == masks
        assert right[is_pure].mean() > 0.99
        seen |= {*np.unique(masks)}
    assert seen == {0, 1, 2, 255}


def test_masks_stay_aligned_with_photos_that_exif_rotates(scenes):
    # The EXIF orientations, and the members of `Image.Transpose` that store a photo so.
    for number, (orientation, transpose) in enumerate(
        [(2, 0), (3, 3), (5, 5), (6, 2), (7, 6), (8, 4)]
    ):
        path = scenes / "images" / f"{number}.png"
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo = Image.open(path).transpose(transpose)
        photo.save(path.with_suffix(".jpg"), quality=100, subsampling=0, exif=exif)
        path.unlink()
    inputs = load(scenes, train_split="", test_split="", exif="on", train_crop="inception")
    for images, masks, _ in inputs.train_batches().take(2):
        gray = (127.5 * images.numpy()[..., 0] + 127.5) / 50
        number = np.rint(gray)
        is_pure = np.abs(gray - number) < 0.05
        right = np.where(number == 5, 255, number) == masks.numpy()
        assert right[is_pure].mean() > 0.98


def target_of(stored, shape, kind="masks", classes=3, **options):
    """Returns a target kind whose source has one example: a black image and a stored target."""
    key = data.TARGETS[kind].key
    example = {"image": tf.zeros((*shape, 3), tf.uint8), key: tf.constant(stored)}
    names = tuple(f"class {number}" for number in range(classes))
    source = data.Source(lambda index: example, 1, names, target=kind)
    return data.TARGETS[kind](source, data.Options(**options))


def decoded(target):
    """Returns the decoded target of the example, or None if it is not valid."""
    values, weight, is_valid = target.decode(target.source.read(0))
    assert weight == float(is_valid)
    return values.numpy() if is_valid else None


@pytest.mark.parametrize(
    ("bits", "color", "classes"),
    [(8, GRAY, 3), (1, GRAY, 2), (2, GRAY, 3), (4, GRAY, 3), (16, GRAY, 3), (8, RGB, 3)]
    + [(bits, INDEXED, min(2**bits, 200)) for bits in (1, 2, 4, 8)],
)
def test_png_files_keep_their_class_numbers(bits, color, classes):
    mask = np.random.default_rng(bits).integers(0, classes, (13, 21))
    stored = np.repeat(mask[..., None], 3, -1) if color == RGB else mask
    palette = np.random.default_rng(0).bytes(3 * classes) if color == INDEXED else b""
    target = target_of(png(stored, bits, color, palette), mask.shape, classes=classes)
    np.testing.assert_array_equal(decoded(target), mask)


def test_offset_is_subtracted_from_the_classes():
    mask = blocks(0)
    # ADE20K: class 0 is ignored.
    expected = np.select([mask == 1, mask == 2], [0, 1], 255)
    target = target_of(mask, mask.shape, mask_offset=1)
    np.testing.assert_array_equal(decoded(target), expected)


def test_offset_does_not_turn_classes_into_ignored_pixels():
    mask = blocks(0)
    stored = np.where(mask == 2, 256, mask)
    for mask in (stored, png(stored, 16)):
        target = target_of(mask, stored.shape, mask_offset=1)
        assert decoded(target) is None
        assert "classes 256" in target.problem_of(target.source.read(0))


def test_colors_are_classes(tmp_path):
    table = tmp_path / "colors.txt"
    table.write_text("9 0 0 class 0\n0 0 0 ignored\n0 200 0 class 1\n")
    mask = blocks(0, classes=2)

    def colored(stored, classes=2):
        return target_of(stored, mask.shape, classes=classes, mask_colors=str(table))

    colors = np.array([[9, 0, 0], [0, 200, 0]])[np.minimum(mask, 1)]
    colors[mask == 255] = 0
    np.testing.assert_array_equal(decoded(colored(png(colors, color=RGB))), mask)
    # The colors of a palette count, not its indices.
    palette = bytes([0, 200, 0, 0, 0, 0, 9, 0, 0])
    indices = np.select([mask == 0, mask == 1], [2, 0], 1)
    indexed = png(indices, color=INDEXED, palette=palette)
    np.testing.assert_array_equal(decoded(colored(indexed)), mask)
    colors[0, 0, 2] = 1
    target = colored(png(colors, color=RGB))
    assert decoded(target) is None
    assert "colors that are not in" in target.problem_of(target.source.read(0))
    # (0, 199, 256) is not (0, 200, 0).
    deep = np.full((*mask.shape, 3), (0, 199, 256))
    assert decoded(colored(png(deep, 16, RGB))) is None
    with pytest.raises(ValueError, match="3 different lines"):
        colored(mask, classes=3)
    table.write_text("9 0 0 class 1\n0 200 0 class 0\n")
    with pytest.raises(ValueError, match="'class 1' in .* instead of 'class 0'"):
        colored(mask)
    with pytest.raises(ValueError, match="must be from 0 to 254, and 0 with `mask_colors`"):
        data.Options(mask_colors=str(table), mask_offset=1)
    table.write_text("9 0 0 class 0\n0 200 0 class 1\n")
    with pytest.raises(ValueError, match="`mask_colors` must be '' for masks"):
        decoded(colored(mask))


def test_verify_names_each_wrong_file(scenes):
    (scenes / "images" / "0.png").unlink()
    (scenes / "masks" / "1.png").unlink()
    (scenes / "masks" / "2.png").write_bytes(png(blocks(2)[1:]))
    (scenes / "masks" / "3.png").write_bytes(png(np.where(blocks(3) == 0, 7, blocks(3))))
    (scenes / "masks" / "4.png").write_bytes(
        png(np.stack([blocks(4), blocks(5), blocks(5)], -1), color=RGB)
    )
    source = data.load_split("masks", "", path=str(scenes))
    reasons = data.verify(source)["reasons"]
    folder = scenes.as_posix()
    expected = {
        f"{folder}/masks/0.png": "No such file",
        f"{folder}/images/1.png": "No such file",
        f"{folder}/images/2.png": "63x80",
        f"{folder}/images/3.png": "but is: classes 7",
        f"{folder}/images/4.png": "needs --config.data.mask_colors",
    }
    assert reasons.keys() == expected.keys()
    for name, words in expected.items():
        assert words in reasons[name]
    with pytest.raises(ValueError, match="2 files without a partner"):
        load(scenes, train_split="", test_split="")


def test_wrong_class_is_an_error_that_names_the_file(scenes):
    (scenes / "masks" / "3.png").write_bytes(png(np.where(blocks(3) == 0, 7, blocks(3))))
    inputs = load(scenes, train_split="", test_split="")
    next(iter(inputs.eval_batches()))
    with pytest.raises(ValueError, match="mask=classes 7 in .*3.png"):
        inputs.bad_examples("test").update(0)


def test_every_layout_of_folders_gives_the_same_pairs(scenes):
    def pairs_of(source):
        return [(example["image"].numpy(), example["mask"].numpy()) for example in read_all(source)]

    whole = load(scenes, train_split="", test_split="")
    for name, layout in (("a", "{split}/{folder}"), ("b", "{folder}/{split}")):
        for path in scenes.glob("*/?.png"):
            split = ("train", "test")[int(path.stem) % 2]
            folder = scenes / name / layout.format(folder=path.parent.name, split=split)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)
        inputs = load(scenes / name, class_names=str(scenes / "classes.txt"))
        assert pairs_of(inputs.train) == pairs_of(whole.test)[::2]
        assert pairs_of(inputs.test) == pairs_of(whole.test)[1::2]
    rows = [f"images/{number}.png,masks/{number}.png" for number in range(6)]
    (scenes / "all.csv").write_text("\n".join(["image,mask", *rows]))
    listed = load(scenes, train_split="all.csv", test_split="all.csv")
    assert pairs_of(listed.test) == pairs_of(whole.test)
    before = listed.fingerprint()
    assert before == whole.fingerprint()
    (scenes / "masks" / "0.png").write_bytes(png(blocks(0) // 2 * 2))
    assert before != listed.fingerprint()


def test_tuning_splits_divide_the_training_images(scenes):
    def names_of(kind, split):
        path = scenes / "images" if kind == "images" else scenes
        source = data.load_split(kind, split, path=str(path), test_share=0.4)
        return {source.name_of(i) for i in range(source.num_examples)}

    for kind in ("masks", "images"):
        parts = names_of(kind, "tune_train"), names_of(kind, "tune_val")
        assert all(parts) and not set.intersection(*parts)
        assert set.union(*parts) == names_of(kind, "train")


def test_folders_with_other_splits_are_not_divided_by_a_hash(scenes):
    for name in ("images", "masks"):
        for split in ("train", "val"):
            shutil.copytree(scenes / name, scenes / "a" / name / split)
    fields = {"path": str(scenes / "a"), "class_names": str(scenes / "classes.txt")}
    with pytest.raises(ValueError, match="for both splits or for none.*split='test'"):
        data.load_split("masks", "test", **fields)
    assert data.load_split("masks", "", **fields).num_examples == 12


@pytest.mark.parametrize("column", ["depth", "class"])
def test_lists_of_masks_may_have_further_columns(column, scenes, caplog):
    rows = [f"images/{number}.png,masks/{number}.png,7" for number in range(6)]
    (scenes / "all.csv").write_text("\n".join([f"image,mask,{column}", *rows]))
    source = data.load_split("masks", "all.csv", path=str(scenes))
    assert source.num_examples == 6 and not source.missing
    assert "label_column" not in caplog.text


def test_evaluation_reads_a_dataset_as_the_run_does(scenes):
    fields = {"split_seed": 3, "test_share": 0.5, "mask_offset": 1}
    run = {"name": "masks", **fields}
    images = keras.Input((32, 32, 3))
    model = keras.Model(images, keras.layers.Activation("linear")(images))
    inputs = evaluation.load_inputs(model, "masks", str(scenes), batch_size=6, run=run)
    expected = load(scenes, eval_crop="resize", **fields)
    assert inputs.test.checksum() == expected.test.checksum()
    masks, same = (next(iter(part.eval_batches()))[1] for part in (inputs, expected))
    np.testing.assert_array_equal(masks, same)


def test_depths_of_both_formats():
    depth = np.arange(12).reshape(3, 4) * 1000
    written = io.BytesIO()
    np.save(written, np.where(depth == 5000, np.nan, depth))
    known = np.where(depth == 5000, 0, depth)
    for stored, expected in ((png(depth, 16), depth), (written.getvalue(), known)):
        values = decoded(target_of(stored, depth.shape, "depth", depth_scale=500))
        assert values.dtype == "float32"
        np.testing.assert_array_equal(values, expected / 500)
    with pytest.raises(tf.errors.InvalidArgumentError, match="gray with 16 bits"):
        decoded(target_of(png(depth // 100), depth.shape, "depth"))


def test_verify_names_negative_depths(scenes):
    (scenes / "masks").rename(scenes / "depth")
    for number in range(6):
        path = scenes / "depth" / f"{number}.png"
        path.unlink()
        np.save(path.with_suffix(".npy"), np.full((64, 80), -3.0 if number == 4 else 2.0))
    reasons = data.verify(data.load_split("depth", "", path=str(scenes)))["reasons"]
    ((name, reason),) = reasons.items()
    assert name == f"{scenes.as_posix()}/images/4.png" and "a minimum of -3" in reason


def test_rejects_what_masks_cannot_do(scenes):
    for field in ("mixup_alpha", "cutmix_alpha", "randaugment_layers"):
        with pytest.raises(ValueError, match=f"{field} must not be set"):
            load(scenes, **{field: 1})
    with pytest.raises(ValueError, match="leave max_patches"):
        load(scenes, max_patches=1, image_size=0)
    with pytest.raises(ValueError, match="needs a source with a mask"):
        data.from_config({"name": "digits"}, batch_size=6, seed=0, target="masks")
    with pytest.raises(ValueError, match="subfolders images and masks"):
        load(scenes, train_split="other")
    (scenes / "classes.txt").unlink()
    with pytest.raises(ValueError, match="names of their classes"):
        load(scenes)


def test_summary_and_overlay(scenes):
    target = load(scenes).train_target
    summary = target.summary()
    assert "3 classes of pixels (sky " in summary and "ignored 5 %" in summary
    mask = blocks(0)
    picture = np.full((64, 80, 3), 0.5)
    drawn = target.picture(picture, mask)
    assert (drawn[mask == 255] == 0.5).all()
    np.testing.assert_allclose(drawn[mask == 1][0], 0.25 + class_colors(3)[1] / 2)
    np.testing.assert_array_equal(overlay(picture, mask, 3, opacity=0), picture)
    assert len(np.unique(class_colors(255), axis=0)) == 255
