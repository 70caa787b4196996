"""Tests of masks and depths: their files, their geometry, and what is refused."""

import io
import struct
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import data, evaluation
from keras_vit.data.targets.masks import class_colors, overlay

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
    chunks = [(b"IHDR", header), (b"gAMA", b"\0\0\xb1\x8f"), (b"PLTE", palette)]
    chunks += [(b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n"
    for kind, content in chunks:
        if content or kind == b"IEND":
            checksum = struct.pack(">I", zlib.crc32(kind + content))
            file += struct.pack(">I", len(content)) + kind + content + checksum
    return file


def blocks(seed, classes=3, size=(4, 5), side=16):
    """Returns a mask of large squares, which has 255 in one of them."""
    mask = np.random.default_rng(seed).integers(0, classes, size)
    mask[1, 1] = 255
    return np.repeat(np.repeat(mask, side, 0), side, 1)


@pytest.fixture
def scenes(tmp_path):
    """A folder of 6 images whose red is 50 times the class, or 250 where the mask is ignored."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(6):
        mask = blocks(number)
        red = np.where(mask == 255, 250, 50 * mask)
        (tmp_path / "images" / f"{number}.png").write_bytes(
            png(np.stack([red, red, red], -1), color=RGB)
        )
        (tmp_path / "masks" / f"{number}.png").write_bytes(png(mask))
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    return tmp_path


def load(path, batch_size=6, target="masks", **fields):
    fields = {"name": "masks", "path": str(path), "image_size": 32, "split_seed": 1, **fields}
    return data.from_config(fields, batch_size=batch_size, seed=0, target=target)


@pytest.mark.parametrize(
    "fields",
    [
        {"train_crop": "inception", "image_size": 64},
        {"train_crop": "resize", "shift": 5, "rounding": "uint8"},
        {"train_crop": "resize_crop", "resize_size": 48, "eval_crop": "resize_crop"},
        {"train_crop": "resize_small_crop", "resize_size": 40, "eval_crop": "resize_small_crop"},
        {"train_crop": "resize", "shift": 2, "interpolation": "bicubic"},
    ],
    ids=lambda fields: fields["train_crop"] + fields.get("interpolation", ""),
)
def test_masks_stay_aligned_with_their_images(scenes, fields):
    inputs = load(scenes, test_share=0.5, flip="on", **fields)
    train = iter(inputs.train_batches())
    flipped = set()
    for images, masks, weights in (next(train), next(train), next(iter(inputs.eval_batches()))):
        red = (127.5 * images.numpy()[..., 0] + 127.5) / 50
        number = np.rint(red).astype(int)
        is_pure = np.abs(red - number) < 0.02  # not interpolated between two squares
        masks = masks.numpy().astype(int)
        # The shift fills images with black and masks with 255.
        is_pure &= ~((masks == 255) & (number == 0))
        assert is_pure[weights > 0].mean() > 0.5 and masks.dtype == int
        right = np.where(number == 5, 255, number) == masks
        assert right[is_pure].mean() > 0.99
        flipped |= {*np.unique(masks)}
    assert flipped == {0, 1, 2, 255}


def test_masks_stay_aligned_with_photos_that_exif_rotates(scenes):
    for number in range(6):  # the orientation of stored pixels, by which they become upright
        mask = blocks(number)
        red = np.uint8(np.where(mask == 255, 250, 50 * mask))
        orientation = (2, 3, 5, 6, 7, 8)[number]
        undo = (0, 3, 5, 2, 6, 4)[number]  # of `Image.Transpose`
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo = Image.fromarray(np.stack([red] * 3, -1)).transpose(undo)
        photo.save(scenes / "images" / f"{number}.jpg", quality=100, subsampling=0, exif=exif)
        (scenes / "images" / f"{number}.png").unlink()
    inputs = load(scenes, train_split="", test_split="", exif="on", train_crop="inception")
    for images, masks, _ in inputs.train_batches().take(2):
        red = (127.5 * images.numpy()[..., 0] + 127.5) / 50
        is_pure = np.abs(red - np.rint(red)) < 0.05
        right = np.where(np.rint(red) == 5, 255, np.rint(red)) == masks.numpy()
        assert right[is_pure].mean() > 0.98


@pytest.mark.parametrize(
    ("bits", "color", "classes"),
    [(8, GRAY, 3), (1, GRAY, 2), (2, GRAY, 3), (4, GRAY, 3), (16, GRAY, 3), (8, RGB, 3)]
    + [(bits, INDEXED, min(2**bits, 200)) for bits in (1, 2, 4, 8)],
)
def test_png_files_keep_their_class_numbers(bits, color, classes, tmp_path):
    mask = np.random.default_rng(bits).integers(0, classes, (13, 21))
    stored = np.repeat(mask[..., None], 3, -1) if color == RGB else mask
    palette = np.random.default_rng(0).bytes(3 * classes) if color == INDEXED else b""
    target = data.TARGETS["masks"](source_of(png(stored, bits, color, palette), mask, classes))
    decoded, weight, is_valid = target.decode(target.source.read(0))
    np.testing.assert_array_equal(decoded, mask)
    assert is_valid and weight == 1


def source_of(mask, like, classes=3, key="mask"):
    """Returns a source of one example, with a black image of the size of `like`."""
    image = np.zeros((*like.shape, 3), "uint8")
    read = lambda index: {"image": tf.constant(image), key: tf.constant(mask)}  # noqa: E731
    names = tuple(f"class {number}" for number in range(classes))
    return data.Source(read, 1, names, target="masks" if key == "mask" else key)


def test_offset_and_colors(tmp_path):
    table = tmp_path / "colors.txt"
    table.write_text("9 0 0 class 0\n0 0 0 ignored\n0 200 0 class 1\n")
    mask = blocks(0, 2)
    colors = np.array([[9, 0, 0], [0, 200, 0]])[np.minimum(mask, 1)]
    colors[mask == 255] = 0
    options = data.Options(mask_colors=str(table), image_size=16)
    for change in (False, True):
        colors[0, 0, 2] = change
        target = data.TARGETS["masks"](source_of(png(colors, color=RGB), mask, 2), options)
        decoded, _, is_valid = target.decode(target.source.read(0))
        assert is_valid == (not change)
        np.testing.assert_array_equal(decoded, 255 if change else mask)
    assert "colors that are not in" in target.shown(target.source.read(0))
    # The colors of a palette count, not its indices.
    palette = bytes([0, 200, 0, 0, 0, 0, 9, 0, 0])
    indices = np.where(mask == 255, 1, 2 - 2 * mask.astype("int32"))
    indexed = source_of(png(indices, color=INDEXED, palette=palette), mask, 2)
    np.testing.assert_array_equal(
        data.TARGETS["masks"](indexed, options).decode(indexed.read(0))[0], mask
    )
    # (0, 199, 256) is not (0, 200, 0).
    deep = np.full((*mask.shape, 3), (0, 199, 256))
    deep = source_of(png(deep, 16, RGB), mask, 2)
    assert not data.TARGETS["masks"](deep, options).decode(deep.read(0))[-1]
    # ADE20K: class 0 is ignored, the others are reduced by one.
    target = data.TARGETS["masks"](source_of(mask, mask, 2), data.Options(mask_offset=1))
    decoded = target.decode(target.source.read(0))[0].numpy()
    np.testing.assert_array_equal(decoded, np.where(mask == 1, 0, 255))
    with pytest.raises(ValueError, match="3 different lines"):
        data.TARGETS["masks"](source_of(mask, mask), options)
    table.write_text("9 0 0 class 1\n0 200 0 class 0\n")
    with pytest.raises(ValueError, match="in their order.*'class 1' in .* instead of 'class 0'"):
        data.TARGETS["masks"](source_of(mask, mask, 2), options)


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
        f"{folder}/images/2.png": "63x80 (height x width) for an image of 64x80",
        f"{folder}/images/3.png": "but is: classes 7",
        f"{folder}/images/4.png": "needs --config.data.mask_colors",
    }
    assert reasons.keys() == expected.keys()
    for name, words in expected.items():
        assert words in reasons[name]
    with pytest.raises(ValueError, match="2 files without a partner: .*0.png"):
        load(scenes, train_split="", test_split="")


def test_a_wrong_class_ends_a_run_by_name(scenes):
    (scenes / "masks" / "3.png").write_bytes(png(np.where(blocks(3) == 0, 7, blocks(3))))
    inputs = load(scenes, train_split="", test_split="")
    next(iter(inputs.eval_batches()))
    with pytest.raises(ValueError, match="from 0 to 2 or 255.*mask=classes 7 in .*3.png"):
        inputs.bad_examples("test").update(0)


def test_every_layout_of_folders_gives_the_same_pairs(scenes):
    whole = load(scenes, train_split="", test_split="")
    for name, layout in (("a", "{split}/{folder}"), ("b", "{folder}/{split}")):
        for folder in ("images", "masks"):
            for number in range(6):
                place = layout.format(folder=folder, split="test" if number % 2 else "train")
                path = scenes / name / place / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes((scenes / folder / f"{number}.png").read_bytes())
        inputs = load(scenes / name, class_names=str(scenes / "classes.txt"))
        for source, start in ((inputs.train, 0), (inputs.test, 1)):
            assert source.num_examples == 3
            for index in range(3):
                for key, value in source.read(index).items():
                    assert value == whole.test.read(2 * index + start)[key]
    rows = [f"images/{number}.png,masks/{number}.png" for number in range(6)]
    (scenes / "all.csv").write_text("\n".join(["image,mask", *rows]))
    listed = load(scenes, train_split="all.csv", test_split="all.csv")
    assert listed.test.read(4)["mask"] == whole.test.read(4)["mask"]
    before = listed.fingerprint()
    assert before == whole.fingerprint()
    (scenes / "masks" / "0.png").write_bytes(png(blocks(0) // 2 * 2))
    assert before != load(scenes, train_split="", test_split="").fingerprint()


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


def test_depths_of_both_formats(tmp_path):
    depth = np.arange(12).reshape(3, 4) * 1000
    written = io.BytesIO()
    np.save(written, np.where(depth == 5000, np.nan, depth))
    options = data.Options(depth_scale=500, image_size=16)
    for encoded in (png(depth, 16), written.getvalue()):
        target = data.TARGETS["depth"](source_of(encoded, depth, key="depth"), options)
        decoded, weight, is_valid = target.decode(target.source.read(0))
        assert is_valid and weight == 1 and decoded.dtype == "float32"
        known = depth / 500
        known[(depth == 5000) & (encoded[:1] != b"\x89")] = 0
        np.testing.assert_array_equal(decoded, known)
    wrong = data.TARGETS["depth"](source_of(png(depth // 100), depth, key="depth"), options)
    with pytest.raises(tf.errors.InvalidArgumentError, match="gray with 16 bits"):
        wrong.decode(wrong.source.read(0))


def test_verify_names_wrong_depths(scenes):
    (scenes / "masks").rename(scenes / "depth")
    for number in range(6):
        depth = np.where(blocks(number) == 255, np.nan, 2.0 - 5 * (number == 4))
        np.save(scenes / "depth" / f"{number}.npy", depth)
        (scenes / "depth" / f"{number}.png").unlink()
    report = data.verify(data.load_split("depth", "", path=str(scenes)))
    assert report["bad"] == [f"{scenes.as_posix()}/images/4.png"]
    assert "a minimum of -3" in report["reasons"][report["bad"][0]]


def test_what_masks_cannot_do_is_refused(scenes):
    for field in ("mixup_alpha", "cutmix_alpha", "randaugment_layers"):
        with pytest.raises(ValueError, match=f"{field} must not be set"):
            load(scenes, **{field: 1})
    with pytest.raises(ValueError, match="leave max_patches"):
        load(scenes, max_patches=1, image_size=0)
    with pytest.raises(ValueError, match="needs a source with a mask.*name=masks"):
        data.from_config({"name": "digits"}, batch_size=6, seed=0, target="masks")
    with pytest.raises(ValueError, match="subfolders images and masks"):
        load(scenes, train_split="other")
    (scenes / "classes.txt").unlink()
    with pytest.raises(ValueError, match="names of their classes"):
        load(scenes)


def test_overlay_and_summary(scenes):
    inputs = load(scenes)
    assert "3 classes of pixels (sky " in inputs.train_target.summary()
    assert "ignored 5 %" in inputs.train_target.summary()
    picture = np.full((64, 80, 3), 0.5)
    drawn = inputs.train_target.picture(picture, blocks(0))
    assert (drawn[blocks(0) == 255] == 0.5).all()
    np.testing.assert_allclose(drawn[blocks(0) == 1][0], 0.25 + class_colors(3)[1] / 2)
    np.testing.assert_array_equal(overlay(picture, blocks(0), 3, opacity=0), picture)
    assert len(np.unique(class_colors(255), axis=0)) == 255
