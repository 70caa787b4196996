"""Tests of compile errors, the costs of compiled programs, and the supported versions of JAX and
libtpu."""

import configparser
import importlib.metadata
import os
import re

import keras
import pytest
import tensorflow as tf

from keras_vit.terminal import first_line
from keras_vit.tpu import compiler
from keras_vit.tpu.program import refused_program

from ..shared import ROOT

OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (128.00G) exceeds available HBM (7.48G). HLO module: "
    "jit__lambda.\nSee https://openxla.org/xla/errors/error_1000"
)


@pytest.fixture
def compile_function(tpu_compiler):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("requires the TensorFlow backend")
    from keras_vit.tpu.tensorflow_programs import compile_function

    return compile_function


def test_aot_extra_pins_supported_versions():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    aot = setup["options.extras_require"]["aot"]
    pins = dict(re.findall(r"^(\w+)==([\d.]+)", aot, re.MULTILINE))
    assert pins == {name: compiler.VERSIONS[name] for name in ("jax", "libtpu")}


def test_installed_versions_are_supported(tpu_compiler):
    installed = {name: importlib.metadata.version(name) for name in compiler.VERSIONS}
    advice = "test these versions, then update VERSIONS in compiler.py and `aot` in setup.cfg"
    assert installed == compiler.VERSIONS, advice


def test_out_of_memory_error_is_parsed():
    program = refused_program(OUT_OF_MEMORY)
    assert program.out_of_memory
    assert not program.compiles
    assert program.memory_bytes == program.required_bytes == 128 * 2**30
    assert first_line(program.error).endswith("HLO module: jit__lambda.")


def test_other_compile_error_is_not_out_of_memory():
    program = refused_program(ValueError("UNIMPLEMENTED: no such operation\nand why"))
    assert not program.out_of_memory
    assert program.memory_bytes == 0
    assert first_line(program.error) == "UNIMPLEMENTED: no such operation"


def test_dynamic_shape_is_a_compile_error(compile_function):
    program = compile_function(lambda x: x + 1, [tf.TensorSpec((None, 4))], "v3:2x2")
    assert not program.compiles
    assert "static input shape" in program.error
    assert "(None, 4)" in program.error


def test_compile_error_names_unsupported_operation(compile_function):
    def step(x):
        return tf.py_function(lambda y: y, [x], tf.float32)

    program = compile_function(step, [tf.TensorSpec((4,))], "v3:2x2")
    assert not program.compiles
    assert not program.out_of_memory
    assert "unsupported operations" in first_line(program.error)
    assert "EagerPyFunc" in program.error


def test_program_has_flops_memory_and_traffic(compile_function):
    weight = tf.Variable(tf.ones((2048, 2048)))

    def step(x):
        weight.assign_sub(tf.matmul(x, tf.nn.relu(tf.matmul(x, weight)), transpose_a=True) / 1e6)

    program = compile_function(step, [tf.TensorSpec((4096, 2048))], "v6e:2x4")
    assert program.compiles
    assert not program.error
    assert program.argument_bytes == pytest.approx(4 * (4096 + 2048) * 2048, rel=1e-3)
    assert program.flops == pytest.approx(4 * 4096 * 2048**2, rel=0.02)
    assert program.bytes_accessed > 0


def test_compiling_keeps_the_environment(compile_function):
    before = dict(os.environ)
    compile_function(lambda x: x + 1, [tf.TensorSpec((4,))], "v3:2x2")
    assert dict(os.environ) == before


def test_dump_must_exist_and_be_complete(tmp_path):
    with pytest.raises(ImportError, match="libtpu did not write"):
        compiler.dumped_hlo(tmp_path)
    dump = tmp_path / "m.after_optimizations.txt"
    dump.write_text("HloModule m\n{\n}\n\n")
    assert compiler.dumped_hlo(tmp_path) == dump.read_text()
    dump.write_text("HloModule m\n{\n  %a = ")
    with pytest.raises(OSError, match="truncated"):
        compiler.dumped_hlo(tmp_path)
