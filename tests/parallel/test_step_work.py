"""Work of compiled modules: FLOPs and sent bytes, parsed from the text of a module, agree with formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluid.parallel.planner import Work, work_of


def compiled(function, *arguments):
    return work_of(jax.jit(function).lower(*arguments).compile().as_text())


@settings(max_examples=8)
@given(st.lists(st.integers(8, 20), min_size=4, max_size=4))
def test_a_product_counts_two_operations_per_term(sizes):
    batch, rows, inner, columns = sizes
    one, other = np.ones((batch, rows, inner), "float32"), np.ones((batch, inner, columns), "float32")
    assert compiled(jnp.matmul, one, other) == Work(2 * batch * rows * inner * columns)


def test_loop_work_is_multiplied_by_iterations():
    x = np.ones((64, 64), "float32")

    def turning(x, turns):
        return jax.lax.fori_loop(0, turns, lambda _, y: jnp.tanh(y @ x), x)

    each = 2 * 64**3
    assert compiled(lambda x: turning(turning(x, 5), 7), x) == Work(12 * each)
    nested = compiled(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: turning(y, 5) @ x, x), x)
    assert nested == Work(3 * (5 + 1) * each)
    decided = compiled(lambda x: jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: jnp.tanh(y @ x), x), x)
    assert decided == Work(each, partial=True)


def test_a_condition_counts_its_more_expensive_branch():
    x = np.ones((64, 64), "float32")
    found = compiled(lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: jnp.tanh(x @ x) @ x, lambda x: x @ x, x), x)
    assert found.flops == 2 * 2 * 64**3


@pytest.mark.parametrize("groups", [1, 3])
def test_a_convolution_multiplies_each_number_by_its_window(groups):
    image, kernel = np.ones((2, 6, 10, 12), "float32"), np.ones((9, 6 // groups, 3, 5), "float32")
    found = compiled(
        lambda i, k: jax.lax.conv_general_dilated(i, k, (1, 2), "SAME", feature_group_count=groups), image, kernel
    )
    assert found.flops == 2 * (2 * 9 * 10 * 6) * (6 // groups * 3 * 5)


MODULE = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {
  %p = (s32[], bf16[8,128]{1,0:T(8,128)(2,1)}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %sent = bf16[8,128]{1,0} collective-permute(%x), channel_id=3, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT %t = (s32[], /*index=1*/bf16[8,128]{1,0}) tuple(%i, %sent)
}

%condition (q: (s32[], bf16[8,128])) -> pred[] {
  %q = (s32[], bf16[8,128]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %n = s32[] constant(4)
  ROOT %less = pred[] compare(%j, %n), direction=LT
}

ENTRY %main (x: bf16[8,128], w: f32[64,128]) -> f32[512,128] {
  %x = bf16[8,128]{1,0} parameter(0)
  %w = f32[64,128]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %begin = (s32[], bf16[8,128]{1,0}) tuple(%zero, %x)
  %loop = (s32[], bf16[8,128]{1,0}) while(%begin), condition=%condition, body=%body, TURNS
  %r = f32[64,128]{1,0} all-reduce(%w), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %two = (f32[64,128]{1,0}, f32[10]{0}) all-reduce(%w, %w), channel_id=2, replica_groups=[2,4]<=[8], to_apply=%add
  %own = f32[64,128]{1,0} all-reduce(%w), channel_id=6, replica_groups={{0},{1}}, to_apply=%add
  %part = f32[8,128]{1,0} reduce-scatter(%w), channel_id=4, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
  %start = (f32[64,128]{1,0}, f32[512,128]{1,0}) all-gather-start(%w), replica_groups=mesh['a'=2,'b'=8] {'b'}
  ROOT %done = f32[512,128]{1,0} all-gather-done(%start)
}
""".replace("TURNS", 'backend_config={"known_trip_count":{"n":"4"}}')


def test_collectives_count_bytes_sent_around_a_ring():
    found = work_of(MODULE)
    assert found.collectives == {"collective-permute": 4, "all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}
    row = 4 * 128  # the bytes in a row of the array %w: 128 float32 numbers
    assert found.sent == {
        "collective-permute": 4 * 2 * 8 * 128,
        "all-reduce": 2 * 3 / 4 * (64 * row + 64 * row + 10 * 4),
        "reduce-scatter": 7 * 8 * row,
        "all-gather": 7 / 8 * 512 * row,
    }
    assert found.flops == 0 and not found.partial
