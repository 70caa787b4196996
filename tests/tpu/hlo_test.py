"""Tests of computing HBM traffic from the text of an HLO module."""

import pytest

from keras_vit.tpu.hlo import padded_bytes, traffic

# HLO of a step on eight devices, as the TPU compiler prints it. Most attributes are removed.
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


def test_traffic_counts_padded_hbm_tiles():
    sizes = dict(traffic(MODULE))
    product = 2 * 4 * 200 * 128  # 197 x 100 is padded to 200 x 128
    # The kernel is copied from HBM to VMEM once.
    assert sizes["bf16[768,100,1]"] == 2 * 768 * 128
    assert sizes["bf16[4,197,768]"] == 2 * 4 * 200 * 768
    assert sizes["bf16[4,197,100]"] == 4 * product
    assert next(iter(sizes)) == "bf16[4,197,768]"


def test_slice_reads_only_its_part():
    text = """\
ENTRY %main (x: s8[4096]) -> s8[1024] {
  %x = s8[4096]{0:T(1024)(128)(4,1)} parameter(0)
  ROOT %part = s8[1024]{0:T(1024)(128)(4,1)S(1)} slice(%x), slice={[0:1024]}
}
"""
    assert traffic(text) == [("s8[4096]", 1024)]


def test_indices_of_dynamic_slice_are_small():
    text = """\
ENTRY %main (x: s8[4096], i: s32[]) -> s8[1024] {
  %x = s8[4096]{0:T(1024)(128)(4,1)} parameter(0)
  %i = s32[]{:T(128)} parameter(1)
  ROOT %part = s8[1024]{0:T(1024)(128)(4,1)S(1)} dynamic-slice(%x, %i), dynamic_slice_sizes={1024}
}
"""
    assert traffic(text) == [("s8[4096]", 1024), ("s32[]", 4)]


# A loop over steps that contains a loop over micro-batches. The number of steps is an argument of
# the program.
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


def test_loop_traffic_is_multiplied_by_trip_count():
    for steps in (1, 5):
        assert dict(traffic(LOOPS, steps))["f32[128,128]"] == 3 * steps * 4 * 128 * 128


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (("bf16", (4, 197, 197), "2,1,0:T(8,128)(2,1)"), 2 * 4 * 200 * 256),
        (("bf16", (4, 197, 197), "0,2,1:T(8,128)(2,1)"), 2 * 197 * 200 * 128),
        (("f32", (5,), "0:T(1024)"), 4096),
        (("pred", (3, 5), "1,0"), 15),
        (("f32", (), ":T(128)"), 4),
        (("token", (), ""), 0),
    ],
    ids=str,
)
def test_padded_bytes(array, size):
    assert padded_bytes(array) == size
