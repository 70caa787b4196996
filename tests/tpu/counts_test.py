"""What is read from the text of an HLO module."""

import numpy as np
import pytest

from keras_vit.tpu.counts import find_collectives, find_traffic, product_flops, repetitions, window_products
from keras_vit.tpu.hlo import Array, parse

# A step on eight devices as the TPU's compiler writes one, without the attributes that nothing here reads.
MODULE = """\
HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[4,197,768]{2,1,0:T(8,128)})->f32[]{:T(128)}}

%add (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[]{:T(128)} parameter(0)
  %b.1 = f32[]{:T(128)} parameter(1)
  ROOT %sum.1 = f32[]{:T(128)} add(%a.1, %b.1)
}

%fused_product (p0: bf16[4,197,768], p1: bf16[768,100,1]) -> bf16[4,197,100] {
  %p0 = bf16[4,197,768]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = bf16[768,100,1]{1,0,2:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %product = bf16[4,197,100]{2,1,0:T(8,128)(2,1)} convolution(%p0, %p1), window={size=1}, dim_labels=b0f_io0->b0f
}

%body (state: (s32[], bf16[4,197,100])) -> (s32[], bf16[4,197,100]) {
  %state = (s32[]{:T(128)}, bf16[4,197,100]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[]{:S(6)} get-tuple-element(%state), index=0
  %x = bf16[4,197,100]{2,1,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %twice = bf16[4,197,100]{2,1,0:T(8,128)(2,1)} multiply(%x, %x)
  ROOT %next = (s32[]{:T(128)}, bf16[4,197,100]{2,1,0:T(8,128)(2,1)}) tuple(%i, %twice)
}

%condition (state.1: (s32[], bf16[4,197,100])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, /*index=1*/bf16[4,197,100]{2,1,0:T(8,128)(2,1)}) parameter(0)
  ROOT %go = pred[]{:T(512)} constant(false)
}

ENTRY %main.1 (images: bf16[4,197,768], kernel: bf16[768,100,1]) -> f32[] {
  %images = bf16[4,197,768]{2,1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="jit(step)/(images, %kernel)"}
  %kernel = bf16[768,100,1]{1,0,2:T(8,128)(2,1)} parameter(1)
  %copy-start = (bf16[768,100,1]{1,0,2:T(8,128)(2,1)S(1)}, bf16[768,100,1]{1,0,2}, u32[]) copy-start(%kernel)
  %copy-done = bf16[768,100,1]{1,0,2:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %fusion.1 = bf16[4,197,100]{2,1,0:T(8,128)(2,1)} fusion(%images, %copy-done), kind=kOutput, calls=%fused_product
  %start = s32[]{:T(128)} constant(0)
  %first = (s32[]{:T(128)}, bf16[4,197,100]{2,1,0:T(8,128)(2,1)}) tuple(%start, %fusion.1)
  %loop = (s32[]{:T(128)}, bf16[4,197,100]{2,1,0:T(8,128)(2,1)}) while(%first), condition=%condition, body=%body
  %last = bf16[4,197,100]{2,1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
  %gradient = f32[100]{0:T(128)} constant({...})
  %sum = f32[100]{0:T(128)} all-reduce(%gradient), replica_groups=[1,8]<=[8], to_apply=%add
  %part = f32[16]{0:T(128)} constant({...})
  %gather = (f32[16]{0:T(128)}, f32[128]{0:T(128)}) all-gather-start(%part), channel_id=2, dimensions={0}
  ROOT %whole = f32[128]{0:T(128)} all-gather-done(%gather)
}
"""


def _convolution(lhs, kernel, output, window, labels):
    lines = [f"  %{name} = f32[{shape}] parameter({i})" for i, (name, shape) in enumerate([("x", lhs), ("k", kernel)])]
    lines.append(
        f"  ROOT %y = f32[{output}] convolution(%x, %k), window={{{window}}}, dim_labels={labels}, metadata={{}}"
    )
    return product_flops(parse("ENTRY %main (x: f32[1]) -> f32[] {\n" + "\n".join(lines) + "\n}\n"))


def _collectives(text):
    return find_collectives(parse(text), repetitions(parse(text)))


def _traffic(text):
    return find_traffic(parse(text), repetitions(parse(text)))


def test_products_are_counted_inside_of_fusions():
    assert product_flops(parse(MODULE)) == 2 * 4 * 197 * 768 * 100


@pytest.mark.parametrize("operands", ["f32[2,3]{1,0} x.1, f32[3,5]{0,1} k.2", "x.1, k.2", "%x.1, f32[3,5]{0,1} %k.2"])
def test_a_text_before_optimization_may_leave_out_what_it_can(operands):
    lines = ["x.1 = f32[2,3]{1,0} parameter(0)", "k.2 = f32[3,5]{0,1} parameter(1)"]
    lines.append(f"ROOT dot.3 = f32[2,5] dot({operands}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}")
    text = "HloModule jit_f, entry_computation_layout={(f32[2,3]{1,0})->f32[2,5]{1,0}}\n\nENTRY main.4 {\n  "
    assert product_flops(parse(text + "\n  ".join(lines) + "\n}\n")) == 2 * 2 * 3 * 5


def test_products_with_zeros_around_an_image_are_not_counted():
    """A kernel of 3 over 5 numbers, "same": the outer two outputs have 2 products each."""
    full = _convolution("2,5,7", "3,7,11", "2,5,11", "size=3 pad=1_1", "b0f_0io->b0f")
    assert full == 2 * 2 * 7 * 11 * (2 + 3 + 3 + 3 + 2)
    strided = _convolution("2,6,7", "3,7,11", "2,3,11", "size=3 stride=2 pad=0_1", "b0f_0io->b0f")
    assert strided == 2 * 2 * 7 * 11 * (3 + 3 + 2)
    cropped = _convolution("2,5,7", "1,7,11", "2,3,11", "size=1 pad=-1_-1", "b0f_0io->b0f")
    assert cropped == 2 * 2 * 7 * 11 * 3


def test_products_with_zeros_between_numbers_are_not_counted():
    """The gradient of a convolution of stride 2 by its images: zeros between what came back."""
    count = _convolution("2,3,11", "3,11,7", "2,6,7", "size=3 pad=2_1 lhs_dilate=2 rhs_reversal=1", "b0f_0io->b0f")
    assert count == 2 * 2 * 7 * 11 * (3 + 3 + 2)
    dilated = _convolution("2,5,7", "2,7,11", "2,3,11", "size=2 rhs_dilate=2", "b0f_0io->b0f")
    assert dilated == 2 * 2 * 7 * 11 * 2 * 3


def test_a_product_for_each_head_is_counted_as_one_where_heads_became_an_axis_of_a_window():
    """How the TPU's compiler writes a product of batches: only equal heads meet."""
    count = _convolution("4,197,64", "4,64,197", "4,197,197", "size=4 stride=3 pad=0_0 lhs_dilate=4", "0bf_0io->0bf")
    assert count == 2 * 4 * 197 * 64 * 197


def test_pairs_of_a_window_are_as_many_as_one_finds_by_trying_each():
    random = np.random.default_rng(0)
    for _ in range(2000):
        side, taps, outputs, stride, side_dilation, tap_dilation = random.integers(1, 8, 6).tolist()
        low = int(random.integers(-6, 10))
        starts = [tap * tap_dilation - low + i * stride for tap in range(taps) for i in range(outputs)]
        pairs = sum(0 <= start <= (side - 1) * side_dilation and start % side_dilation == 0 for start in starts)
        assert window_products(side, taps, outputs, stride, low, side_dilation, tap_dilation) == pairs


def test_collectives_have_the_bytes_of_whole_arrays():
    assert _collectives(MODULE) == [("all-gather", 1, 4 * 128), ("all-reduce", 1, 4 * 100)]


def test_an_exchange_that_several_fusions_go_on_with_is_counted_once():
    gathers = [f"  %g.{i} = f32[128]{{0}} all-gather(%x), channel_id={channel}" for i, channel in enumerate([5, 5, 6])]
    text = "\n".join(["ENTRY %main (x: f32[16]) -> f32[] {", "  %x = f32[16]{0} parameter(0)", *gathers, "}"])
    assert _collectives(text) == [("all-gather", 2, 2 * 4 * 128)]


def test_a_reduce_scatter_that_is_a_fusion_of_an_all_reduce_and_a_slice_is_counted_as_what_it_is():
    text = """
%all-reduce-scatter.5 (x: f32[16,8]) -> f32[2,8] {
  %x = f32[16,8]{1,0} parameter(0)
  %sum = f32[16,8]{1,0} all-reduce(%x), channel_id=3, to_apply=%add
  ROOT %part = f32[2,8]{1,0} dynamic-slice(%sum, %x, %x), dynamic_slice_sizes={2,8}
}

ENTRY %main (y: f32[16,8]) -> f32[2,8] {
  %y = f32[16,8]{1,0} parameter(0)
  ROOT %fusion = f32[2,8]{1,0} fusion(%y), kind=kCustom, calls=%all-reduce-scatter.5
}
"""
    assert _collectives(text) == [("reduce-scatter", 1, 4 * 128)]


def test_traffic_is_that_with_the_large_memory_and_of_whole_tiles():
    traffic = {array: (read, written) for array, read, written in _traffic(MODULE)}
    product = 2 * 4 * 200 * 128  # 197 rows of 100 numbers fill 25 times 8 rows of 128
    # The kernel is read once, on its way to the small memory; the loop's body is counted once.
    assert traffic["bf16[768,100,1]"] == (2 * 768 * 128, 0)
    assert traffic["bf16[4,197,768]"] == (2 * 4 * 200 * 768, 0)
    assert traffic["bf16[4,197,100]"] == (2 * product, 2 * product)
    assert next(iter(traffic)) == "bf16[4,197,768]"


def test_of_a_slice_the_part_is_read():
    text = """\
ENTRY %main (x: s8[4096]) -> s8[1024] {
  %x = s8[4096]{0:T(1024)(128)(4,1)} parameter(0)
  ROOT %part = s8[1024]{0:T(1024)(128)(4,1)S(1)} slice(%x), slice={[0:1024]}
}
"""
    assert _traffic(text) == [("s8[4096]", 1024, 0)]


# Steps, whose number is an argument, and micro-batches: two loops, one in the other, beside one without products.
LOOPS = """\
HloModule jit_steps

%inner (a: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %a = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i.a = s32[]{:S(6)} get-tuple-element(%a), index=0
  %x.a = f32[8,128]{1,0:T(8,128)} get-tuple-element(%a), index=1
  %one.a = s32[]{:S(6)} constant(1)
  %next.a = s32[]{:S(6)} add(%i.a, %one.a)
  %k = f32[128,128]{1,0:T(8,128)} constant({...})
  %sum = f32[8,128]{1,0:T(8,128)} all-reduce(%x.a), channel_id=1, to_apply=%plus
  %dot = f32[8,128]{1,0:T(8,128)} dot(%sum, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t.a = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}) tuple(%next.a, %dot)
}

%more_inner (m: (s32[], f32[8,128])) -> pred[] {
  %m = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i.m = s32[]{:S(6)} get-tuple-element(%m), index=0
  %three = s32[]{:S(6)} constant(3)
  ROOT %lt.m = pred[]{:T(512)S(6)} compare(%i.m, %three), direction=LT
}

%random (b: (f32[8,128], u32[], u32[])) -> (f32[8,128], u32[], u32[]) {
  %b = (f32[8,128]{1,0:T(8,128)}, u32[]{:S(6)}, u32[]{:S(6)}) parameter(0)
  %x.b = f32[8,128]{1,0:T(8,128)} get-tuple-element(%b), index=0
  %i.b = u32[]{:S(6)} get-tuple-element(%b), index=1
  %end.b = u32[]{:S(6)} get-tuple-element(%b), index=2
  %two = u32[]{:S(6)} constant(2)
  %next.b = u32[]{:S(6)} add(%i.b, %two)
  %twice = f32[8,128]{1,0:T(8,128)} multiply(%x.b, %x.b)
  ROOT %t.b = (f32[8,128]{1,0:T(8,128)}, u32[]{:S(6)}, u32[]{:S(6)}) tuple(%twice, %next.b, %end.b)
}

%more_random (n: (f32[8,128], u32[], u32[])) -> pred[] {
  %n = (f32[8,128]{1,0:T(8,128)}, u32[]{:S(6)}, u32[]{:S(6)}) parameter(0)
  %i.n = u32[]{:S(6)} get-tuple-element(%n), index=1
  %end.n = u32[]{:S(6)} get-tuple-element(%n), index=2
  ROOT %lt.n = pred[]{:T(512)S(6)} compare(%i.n, %end.n), direction=LT
}

%outer (d: (s32[], f32[8,128], s32[])) -> (s32[], f32[8,128], s32[]) {
  %d = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}, s32[]{:S(6)}) parameter(0)
  %i.d = s32[]{:S(6)} get-tuple-element(%d), index=0
  %x.d = f32[8,128]{1,0:T(8,128)} get-tuple-element(%d), index=1
  %end.d = s32[]{:S(6)} get-tuple-element(%d), index=2
  %zero = s32[]{:S(6)} constant(0)
  %one = s32[]{:S(6)} constant(1)
  %first = u32[]{:S(6)} constant(1)
  %last = u32[]{:S(6)} constant(8)
  %before = (f32[8,128]{1,0:T(8,128)}, u32[]{:S(6)}, u32[]{:S(6)}) tuple(%x.d, %first, %last)
  %drawn = (f32[8,128]{1,0:T(8,128)}, u32[]{:S(6)}, u32[]{:S(6)}) while(%before), condition=%more_random, body=%random
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%drawn), index=0
  %begin = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}) tuple(%zero, %x)
  %micro = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}) while(%begin), condition=%more_inner, body=%inner
  %gradient = f32[8,128]{1,0:T(8,128)} get-tuple-element(%micro), index=1
  %updated = f32[8,128]{1,0:T(8,128)} add(%gradient, %x.d)
  %next.d = s32[]{:S(6)} add(%i.d, %one)
  ROOT %t.d = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}, s32[]{:S(6)}) tuple(%next.d, %updated, %end.d)
}

%more_outer (o: (s32[], f32[8,128], s32[])) -> pred[] {
  %o = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}, s32[]{:S(6)}) parameter(0)
  %i.o = s32[]{:S(6)} get-tuple-element(%o), index=0
  %end.o = s32[]{:S(6)} get-tuple-element(%o), index=2
  ROOT %lt.o = pred[]{:T(512)S(6)} compare(%i.o, %end.o), direction=LT
}

ENTRY %main (e: f32[8,128], s: s32[]) -> f32[8,128] {
  %e = f32[8,128]{1,0:T(8,128)} parameter(0)
  %s = s32[]{:S(6)} parameter(1)
  %none = s32[]{:S(6)} constant(0)
  %zero.copy = s32[]{:S(6)} copy(%none)
  %state = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}, s32[]{:S(6)}) tuple(%zero.copy, %e, %s)
  %steps = (s32[]{:S(6)}, f32[8,128]{1,0:T(8,128)}, s32[]{:S(6)}) while(%state), condition=%more_outer, body=%outer
  ROOT %result = f32[8,128]{1,0:T(8,128)} get-tuple-element(%steps), index=1
}
"""


def test_what_is_in_a_loop_is_counted_as_often_as_it_runs():
    module, once, size = parse(LOOPS), 2 * 8 * 128 * 128, 4 * 8 * 128
    times = repetitions(module, 5)
    # 1, 3, 5 and 7 are below 8.
    expected = {"main": 1, "outer": 5, "inner": 15, "random": 20}
    assert {name: times[name] for name in expected} == expected
    assert {name: repetitions(module)[name] for name in expected} == {"main": 1, "outer": 1, "inner": 3, "random": 4}
    assert (product_flops(module), product_flops(module, times)) == (once, 15 * once)
    assert find_collectives(module, times) == [("all-reduce", 15, 15 * size)]
    moved = {array: (read, written) for array, read, written in find_traffic(module, times)}
    # A product of numbers drawn; an all-reduce and a product of each micro-batch; in each step weights are updated.
    assert moved["f32[8,128]"] == ((20 * 2 + 15 * 2 + 5 * 2) * size, (20 + 15 * 2 + 5) * size)
    assert moved["f32[128,128]"] == (15 * 4 * 128 * 128, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compare(%i.m, %three), direction=LT", "compare(%i.m, %three), direction=NE"),
        ("%three = s32[]{:S(6)} constant(3)", "%three = s32[]{:S(6)} negate(%i.m)"),
        ("%next.a = s32[]{:S(6)} add(%i.a, %one.a)", "%next.a = s32[]{:S(6)} multiply(%i.a, %one.a)"),
        ("tuple(%zero, %x)", "tuple(%i.d, %x)"),
    ],
)
def test_a_loop_in_a_step_whose_length_is_not_in_the_text_counts_once(old, new):
    assert LOOPS.count(old) == 1
    times = repetitions(parse(LOOPS.replace(old, new)), 5)
    assert (times["outer"], times["inner"], times["random"]) == (5, 5, 20)


@pytest.mark.parametrize(
    ("array", "size", "padded"),
    [
        (Array("bf16", (4, 197, 197), "2,1,0:T(8,128)(2,1)"), 2 * 4 * 197**2, 2 * 4 * 200 * 256),
        (Array("bf16", (4, 197, 197), "0,2,1:T(8,128)(2,1)"), 2 * 4 * 197**2, 2 * 197 * 200 * 128),
        (Array("f32", (5,), "0:T(1024)"), 20, 4096),
        (Array("pred", (3, 5), "1,0"), 15, 15),
        (Array("f32", (), ":T(128)"), 4, 4),
        (Array("token", ()), 0, 0),
    ],
    ids=str,
)
def test_the_size_of_an_array(array, size, padded):
    assert (array.bytes, array.padded_bytes) == (size, padded)


def test_another_text_is_refused():
    with pytest.raises(ValueError, match="not that of an HLO module"):
        parse("module @jit_step {\n}")
