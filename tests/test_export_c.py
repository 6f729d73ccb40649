"""A stream in C gives a layer's values, compiled for this machine and for a Cortex-M4."""

import copy
import errno
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import rnnorm
from rnnorm.export.stream import read, run
from rnnorm.norm.spec import BatchNorm, LayerNorm, RMSNorm

FLAGS = "-std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Werror"
# every cell, every site, every kind of norm alone, folded, and beside another
CASES = {
    "LSTM": rnnorm.LSTM(5, 7),
    "LSTM-batch": rnnorm.LSTM(5, 7, 2, norm="batch"),
    "LSTM-shared-carry": rnnorm.LSTM(
        5, 7, 2, norm=BatchNorm(population="shared", carry="frame"), learn_initial_state=True
    ),
    "LSTM-joint": rnnorm.LSTM(5, 7, norm="joint", bias=False),
    "LSTM-layer": rnnorm.LSTM(5, 7, 2, norm=LayerNorm(over="gate", carry=True)),
    "LSTM-rms-joint": rnnorm.LSTM(
        5, 7, norm=RMSNorm(input=False, recurrent=False, joint=True), batch_first=True
    ),
    "GRU-batch": rnnorm.GRU(5, 7, 2, norm="batch"),
    "GRU-sequence": rnnorm.GRU(5, 7, 2, norm="bn-e*", bias=False),
    "GRU-layer": rnnorm.GRU(5, 7, 2, norm="layer", learn_initial_state=True),
    "GRU-mixed": rnnorm.GRU(5, 7, norm={"input": "batch", "recurrent": RMSNorm(over="term")}),
    "RNN-layer": rnnorm.RNN(5, 7, 3, norm=LayerNorm(recurrent=False), bias=False),
    "RNN-joint-shared": rnnorm.RNN(
        5,
        7,
        nonlinearity="relu",
        norm=BatchNorm(input=None, recurrent=None, joint="frame", population="shared"),
    ),
}

# puts the bits of each output into lines of hexadecimal numbers
DRIVER = """
#include "float_stream.h"
#include "int8_stream.h"

void show(unsigned long bits);
int main(void);

static const float frames[] = {%s};
enum { ROWS = %d, STEPS = %d };

static void show_float(float value)
{
    union { float value; uint32_t bits; } both;
    both.value = value;
    show(both.bits);
}

int main(void)
{
    static float output[FLOAT_STREAM_OUTPUTS];
    static float_stream_state floats;
    static int8_stream_state bytes;
    show(sizeof floats);
    for (int row = 0; row < ROWS; ++row) {
        const float *frame = frames + row * STEPS * FLOAT_STREAM_INPUTS;
        float_stream_reset(&floats);
        int8_stream_reset(&bytes);
        for (int t = 0; t < STEPS; ++t, frame += FLOAT_STREAM_INPUTS) {
            float_stream_frame(&floats, frame, output);
            for (int k = 0; k < FLOAT_STREAM_OUTPUTS; ++k)
                show_float(output[k]);
            int8_stream_frame(&bytes, frame, output);
            for (int k = 0; k < FLOAT_STREAM_OUTPUTS; ++k)
                show_float(output[k]);
        }
    }
    return 0;
}
"""
HOST = """
#include <stdio.h>
void show(unsigned long bits);
void show(unsigned long bits) { printf("%lx\\n", bits); }
"""
# the vectors of a Cortex-M, its FPU, and writing through the debugger
CORTEX = """
int main(void);
void show(unsigned long bits);
void start(void);

static void ask(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void show(unsigned long bits)
{
    char text[10] = "00000000\\n";
    for (int k = 7; k >= 0; --k, bits >>= 4)
        text[k] = "0123456789abcdef"[bits & 15];
    ask(0x04, text);
}

void start(void)
{
    *(volatile unsigned long *)0xe000ed88 |= 0xful << 20;
    main();
    ask(0x18, (const void *)0x20026);
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void))0x20400000, start
};
"""
MEMORY = """
SECTIONS {
    . = 0;
    .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) }
    .ARM.exidx : { *(.ARM.exidx*) }
    . = 0x20000000;
    .data : { *(.data*) }
    .bss : { *(.bss*) *(COMMON) }
    end = .;
}
"""


def tool(name):
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} here")
    return name


@pytest.fixture(params=CASES.values(), ids=CASES)
def layer(request):
    torch.manual_seed(0)
    layer = copy.deepcopy(request.param)
    layer.reset_parameters()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "gamma" in name:
                parameter.uniform_(0.5, 1.0)
            if "beta" in name or name[1:] == "_0":
                parameter.uniform_(-0.5, 0.5)
    if any(True for _ in layer.buffers()):
        layer.train()
        for scale in (1, 2):
            layer(scale * torch.randn(9, 9, 5) + 1)
    return rnnorm.freeze(layer)


def exported(layer, folder, linear=None):
    """Return frames ``(B, T, I)``, the layer's outputs for them, and costs in float and 8 bits."""
    frames = torch.randn(2, 20, 5)
    given = frames if layer.batch_first else frames.transpose(0, 1)
    with torch.no_grad():
        wanted = layer(given)[0]
        wanted = wanted if linear is None else linear(wanted)
    costs = [
        rnnorm.export.c(layer, folder / f"{kind}_stream.c", quantize, linear=linear, frames=given)
        for kind, quantize in (("float", None), ("int8", "int8"))
    ]
    texts = [f"{float(value):.9g}f" for value in frames.flatten()]
    numbers = ", ".join(t if "." in t or "e" in t else f"{t[:-1]}.0f" for t in texts)
    (folder / "driver.c").write_text(DRIVER % (numbers, 2, 20))
    return frames, wanted if layer.batch_first else wanted.transpose(0, 1), costs


def compiled(folder, machine, *command):
    """Compile what an export has written with a driver for a machine, and return the program."""
    (folder / "machine.c").write_text(machine)
    sources = [folder / f"{n}.c" for n in ("float_stream", "int8_stream", "driver", "machine")]
    program = folder / "program"
    subprocess.run([*command, *sources, "-o", program, "-lm"], check=True, cwd=folder)
    return program


def results(text, wanted):
    """Return the size of the state, and the outputs in float and in 8 bits."""
    size, *bits = [int(line, 16) for line in text.split()]
    values = torch.tensor(bits).to(torch.int32).view(torch.float32)
    rows, steps, features = wanted.shape
    floats, quantised = values.view(rows, steps, 2, features).unbind(2)
    return size, floats, quantised


def rms(values):
    return float(values.square().mean().sqrt())


def check(text, wanted, costs):
    size, floats, quantised = results(text, wanted)
    assert size == costs[0].ram == costs[1].ram
    torch.testing.assert_close(floats, wanted, rtol=0, atol=2e-5)
    assert costs[0].error < 1e-6
    assert rms(quantised - wanted) / rms(wanted) == pytest.approx(costs[1].error, rel=0.05)
    assert 1e-4 < costs[1].error < 0.1


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_stream_gives_the_values_of_the_layer(layer, compiler, tmp_path):
    compiler = tool(compiler)
    _, wanted, costs = exported(layer, tmp_path)
    program = compiled(tmp_path, HOST, compiler, *FLAGS.split(), "-O2")
    check(subprocess.check_output([program], text=True), wanted, costs)
    assert {p.suffix for p in tmp_path.iterdir()} == {".c", ".h", ""}


@pytest.fixture
def spotter():
    torch.manual_seed(0)
    gru = rnnorm.GRU(5, 24, 2, norm="layer")
    return rnnorm.freeze(gru), nn.Linear(24, 10)


def test_a_linear_layer_follows(spotter, tmp_path):
    layer, linear = spotter
    _, wanted, costs = exported(layer, tmp_path, linear)
    assert wanted.shape == (2, 20, 10)
    assert costs[0].multiplications == 3 * 24 * (5 + 3 * 24) + 240
    program = compiled(tmp_path, HOST, tool("gcc"), *FLAGS.split())
    check(subprocess.check_output([program], text=True), wanted, costs)


M4 = "-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16"


def test_a_cortex_m4_gives_the_values_of_the_layer(spotter, tmp_path):
    compiler, emulator = tool("arm-none-eabi-gcc"), tool("qemu-system-arm")
    layer, linear = spotter
    _, wanted, costs = exported(layer, tmp_path, linear)
    (tmp_path / "memory.ld").write_text(MEMORY)
    linking = "-O2 -nostartfiles --specs=nosys.specs -T memory.ld -Wl,--no-warn-rwx-segments"
    program = compiled(tmp_path, CORTEX, compiler, *FLAGS.split(), *M4.split(), *linking.split())
    machine = "-M mps2-an386 -nographic -monitor none -semihosting-config enable=on,target=native"
    run = [emulator, *machine.split(), "-kernel", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    check(done.stdout + done.stderr, wanted, costs)


def test_flash_and_stack_are_not_more_than_the_file_says(layer, tmp_path):
    compiler, size = tool("arm-none-eabi-gcc"), tool("arm-none-eabi-size")
    for kind, cost in zip(("float", "int8"), exported(layer, tmp_path)[2], strict=True):
        source, program = tmp_path / f"{kind}_stream.c", tmp_path / "stream.o"
        options = [*FLAGS.split(), *M4.split(), "-O2", "-fstack-usage", "-c", source, "-o", program]
        subprocess.run([compiler, *options], check=True)
        sections = subprocess.check_output([size, "-A", program], text=True)
        found = re.findall(r"^(\.\S+) +(\d+)", sections, re.MULTILINE)
        sizes = {name: int(count) for name, count in found}
        constants = sum(count for name, count in sizes.items() if name.startswith(".rodata"))
        # besides the numbers, tables of where they are
        assert cost.flash <= constants <= cost.flash + 100 * layer.num_layers
        assert sum(sizes.get(name, 0) for name in (".data", ".bss")) == 0
        assert sizes[".text"] < 2048
        lines = program.with_suffix(".su").read_text().splitlines()
        assert sum(int(line.split("\t")[1]) for line in lines) <= cost.stack
        text = source.read_text().replace("\n *  ", "")
        assert f"flash: {cost.flash} bytes" in text
        assert f"{cost.error:.2e} of its outputs" in text


def test_a_file_names_its_functions(tmp_path):
    rnnorm.export.c(rnnorm.RNN(2, 3), tmp_path / "Key_word2.c")
    header = (tmp_path / "Key_word2.h").read_text()
    assert "void Key_word2_frame(Key_word2_state *state, " in header
    assert "KEY_WORD2_INPUTS = 2, KEY_WORD2_OUTPUTS = 3" in header
    for name in ("math.c", "stdint.c", "Math.c", "threads.c"):
        with pytest.raises(ValueError, match="must not be named as a header of C's library"):
            rnnorm.export.c(rnnorm.RNN(2, 3), tmp_path / name)
    (tmp_path / "folder.h").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        rnnorm.export.c(rnnorm.RNN(2, 3), tmp_path / "folder.c")
    for name in ("stream.cpp", "stream", "2.c", "key-word.c", "é.c", "_a.c", ".c"):
        with pytest.raises(ValueError, match=r"path must end with a name in C and \.c"):
            rnnorm.export.c(rnnorm.RNN(2, 3), tmp_path / name)
    with pytest.raises(FileNotFoundError, match="a folder that exists"):
        rnnorm.export.c(rnnorm.RNN(2, 3), tmp_path / "none" / "stream.c")


def test_a_header_does_not_hide_another_whose_name_differs_in_case_alone(tmp_path):
    for name in ("a/stream", "b/Stream"):
        (tmp_path / name).parent.mkdir()
        rnnorm.export.c(rnnorm.RNN(2, 3), tmp_path / f"{name}.c")
    (tmp_path / "main.c").write_text(
        """
        #include "a/stream.h"
        /* the constants of both are in capitals */
        #define STREAM_INPUTS INPUTS
        #define STREAM_OUTPUTS OUTPUTS
        #include "b/Stream.h"
        stream_state one;
        Stream_state other;
        """
    )
    command = [tool("gcc"), "-std=c99", "-Wall", "-Werror", "-c", "main.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_training_changes_no_stream(tmp_path):
    layer = rnnorm.LSTM(5, 7, norm="batch")
    layer(torch.randn(4, 8, 5))
    rnnorm.export.c(layer, tmp_path / "first.c")
    assert layer.training
    rnnorm.export.c(rnnorm.freeze(layer), tmp_path / "second.c")
    first, second = ((tmp_path / f"{name}.c").read_text() for name in ("first", "second"))
    assert (
        first.replace("first", "second").partition("#include")[2]
        == (second.partition("#include")[2])
    )


def test_one_row_of_statistics_needs_no_constants_of_its_own(tmp_path):
    plain = rnnorm.export.c(rnnorm.GRU(5, 7), tmp_path / "plain.c")
    for norm in (BatchNorm(population="shared"), "batch"):
        layer = rnnorm.GRU(5, 7, norm=norm)
        layer(torch.randn(1, 8, 5))
        assert rnnorm.export.c(layer, tmp_path / "one.c").flash == plain.flash


def test_constants_are_the_numbers_of_the_layer(tmp_path):
    layer = rnnorm.RNN(5, 7)
    rnnorm.export.c(layer, tmp_path / "rnn.c")
    found = re.search(r"layer0_ih_weight\[35\] = {(.*?)}", (tmp_path / "rnn.c").read_text(), re.S)
    numbers = [float(text) for text in re.findall(r"[-+.e0-9]+(?=f)", found[1])]
    assert torch.equal(torch.tensor(numbers), layer.weight_ih_l0.flatten())


@pytest.mark.parametrize(
    ("layer", "option"),
    [
        (rnnorm.LSTM(3, 4, bidirectional=True), "bidirectional=True"),
        (rnnorm.LSTM(3, 4, proj_size=2), "proj_size=2"),
        (rnnorm.LSTM(3, 4, peephole="output"), "peephole='output'"),
        (rnnorm.GRU(3, 4, reset_after=False), "reset_after=False"),
        (rnnorm.GRU(3, 4, reset_after="both"), "reset_after='both'"),
        (rnnorm.RNN(3, 4, learn_initial_state="from_input"), "learn_initial_state='from_input'"),
        (rnnorm.LSTM(3, 4, recurrent_dropout=rnnorm.Zoneout()), "recurrent_dropout=Zoneout"),
    ],
)
def test_an_option_without_a_stream_is_refused_by_name(layer, option, tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"layer must be without {option}")):
        rnnorm.export.c(layer, tmp_path / "stream.c")
    assert list(tmp_path.iterdir()) == []


def test_dropout_that_evaluation_leaves_out_is_no_obstacle(tmp_path):
    for dropout in (rnnorm.CellDropout(), rnnorm.SequenceDropout(hidden=0.5)):
        layer = rnnorm.LSTM(3, 4, 2, dropout=0.5, recurrent_dropout=dropout)
        assert rnnorm.export.c(layer, tmp_path / "stream.c").error < 1e-6


class Own(rnnorm.LayerNorm):
    pass


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (nn.LSTM(3, 4), TypeError, r"got torch\.nn\.modules\.rnn\.LSTM: rnnorm\.convert\.torch_nn"),
        (
            rnnorm.LiGRU(3, 4),
            TypeError,
            r"LiGRU: there is no other stream in C; rnnorm\.export\.onnx",
        ),
        (rnnorm.LSTMCell(3, 4), TypeError, "LSTMCell"),
        (nn.Sequential(rnnorm.LSTM(3, 4)), TypeError, "Sequential: give the layer alone"),
        (rnnorm.Stateful(rnnorm.LSTM(3, 4)), TypeError, "Stateful: give its layer"),
        (rnnorm.LSTM(3, 4, norm=Own()), ValueError, r"norm\.input must be a BatchNorm, LayerNorm"),
    ],
)
def test_another_layer_is_refused_by_name(given, error, message, tmp_path):
    with pytest.raises(error, match=message):
        rnnorm.export.c(given, tmp_path / "stream.c")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"quantize": "int4"}, ValueError, "quantize must be None or 'int8', got 'int4'"),
        ({"linear": nn.Identity()}, TypeError, "linear must be a torch.nn.Linear, got Identity"),
        ({"linear": nn.Linear(3, 4)}, ValueError, "linear must have 4 inputs, .*, got 3"),
        ({"frames": [[1.0] * 3]}, TypeError, "frames must be a tensor, got list"),
        ({"frames": torch.full((2, 3), torch.nan)}, ValueError, "frames must be finite"),
        ({"frames": torch.zeros(0, 3)}, ValueError, "one frame or more"),
        ({"frames": torch.full((2, 3), 1e300, dtype=torch.float64)}, ValueError, "in float32"),
        ({"frames": torch.zeros(2, 3, dtype=torch.complex64)}, TypeError, "frames must be real"),
        ({"frames": torch.zeros(2, 4)}, ValueError, "frames must be an input of the layer"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        rnnorm.export.c(rnnorm.LSTM(3, 4), tmp_path / "stream.c", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_beside_the_file(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*stream\.h'"):
        rnnorm.export.c(rnnorm.LSTM(3, 4), tmp_path / "stream.c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e300])
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_value_that_float_does_not_hold_is_an_error(value, quantize, tmp_path):
    layer = rnnorm.RNN(3, 4).double()
    with torch.no_grad():
        layer.weight_hh_l0[0, 0] = value
    with pytest.raises(ValueError, match="finite in float32, got other values for layer0_hh"):
        rnnorm.export.c(layer, tmp_path / "stream.c", quantize)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_frames_with_which_float_overflows_are_an_error(quantize, tmp_path):
    layer, frames = rnnorm.GRU(3, 4, norm="layer"), torch.full((2, 3), 1e30)
    with pytest.raises(ValueError, match=r"frames and weights must be so small .* 1\.0e\+30"):
        rnnorm.export.c(layer, tmp_path / "stream.c", quantize, frames=frames)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_linear_layer_without_outputs_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="linear must have an output, got out_features=0"):
        rnnorm.export.c(rnnorm.LSTM(3, 4), tmp_path / "stream.c", linear=nn.Linear(4, 0))


def test_an_eps_that_float_does_not_hold_is_an_error(tmp_path):
    layer = rnnorm.GRU(3, 4, norm=RMSNorm(eps=1e39))
    with pytest.raises(ValueError, match="finite in float32, got other values for layer0_input"):
        rnnorm.export.c(layer, tmp_path / "stream.c")


def test_cpp_calls_the_functions(spotter, tmp_path):
    layer, linear = spotter
    exported(layer, tmp_path, linear)
    (tmp_path / "main.cpp").write_text(
        """
        #include "float_stream.h"
        #include "int8_stream.h"
        int main() {
          float_stream_state floats;
          int8_stream_state bytes;
          const float frame[FLOAT_STREAM_INPUTS] = {};
          float output[FLOAT_STREAM_OUTPUTS];
          float_stream_reset(&floats), float_stream_frame(&floats, frame, output);
          int8_stream_reset(&bytes), int8_stream_frame(&bytes, frame, output);
        }
        """
    )
    for file in ("float_stream.c", "int8_stream.c"):
        command = [tool("gcc"), "-std=c99", "-c", file, "-o", f"{file}.o"]
        subprocess.run(command, cwd=tmp_path, check=True)
    command = [tool("g++"), "-Wall", "-Wextra", "-Wpedantic", "-Werror", "main.cpp"]
    objects = ["float_stream.c.o", "int8_stream.c.o", "-o", "program", "-lm"]
    subprocess.run([*command, *objects], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "program"], check=True)


@pytest.mark.parametrize("factor", [2, 1.001])
@pytest.mark.parametrize("norm", [None, LayerNorm(gamma=6)])
def test_what_hooks_compute_is_an_error(tmp_path, norm, factor):
    layer = rnnorm.LSTM(20, 64, norm=norm)
    layer.register_forward_hook(lambda module, given, result: (factor * result[0], result[1]))
    with pytest.raises(RuntimeError, match="such as forward hooks"):
        rnnorm.export.c(layer, tmp_path / "stream.c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("frames", [None, torch.zeros(100, 20)], ids=["noise", "silence"])
def test_a_layer_that_enlarges_rounding_is_written_with_its_difference(tmp_path, frames):
    torch.manual_seed(0)
    layer = rnnorm.LSTM(20, 64, norm=LayerNorm(gamma=6))
    assert rnnorm.export.c(layer, tmp_path / "stream.c", frames=frames).error > 1e-3


@pytest.mark.parametrize("level", ["-O0", "-Os", "-O3"])
def test_matrices_of_one_column_compile_without_a_warning(tmp_path, level):
    rnnorm.export.c(rnnorm.LSTM(1, 1), tmp_path / "stream.c", quantize="int8")
    command = [tool("gcc"), *FLAGS.split(), level, "-c", "stream.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_parametrized_weights_are_those_that_run(tmp_path):
    layer = rnnorm.LSTM(3, 4)
    nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    assert rnnorm.export.c(layer, tmp_path / "stream.c").error < 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_layer_of_another_dtype_becomes_float(dtype, tmp_path):
    layer = rnnorm.GRU(3, 4, norm="layer").to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        assert rnnorm.export.c(layer, tmp_path / "stream.c").error < 1e-6


def test_frames_of_zeros_are_rounded_to_zeros():
    stream = read(rnnorm.freeze(rnnorm.LSTM(3, 4, bias=False)).double())
    assert torch.equal(run(stream, torch.zeros(2, 1, 3), True), torch.zeros(2, 1, 4))


def test_the_difference_of_a_file_is_that_on_the_frames_which_are_given(tmp_path):
    for seed in range(4):
        torch.manual_seed(seed)
        layer, frames = rnnorm.LSTM(3, 4), torch.randn(9, 2, 3)
        cost = rnnorm.export.c(layer, tmp_path / "stream.c", "int8", frames=frames)
        wanted = layer(frames)[0].detach()
        apart = run(read(rnnorm.freeze(layer).double()), frames, True) - wanted
        assert cost.largest_error == pytest.approx(float(apart.abs().max()), rel=1e-3)
        assert cost.error == pytest.approx(rms(apart) / rms(wanted), rel=1e-3)


@pytest.mark.parametrize(
    ("layer", "expf", "tanhf"),
    [
        (rnnorm.LSTM(3, 4, 2), 3 * 8, 2 * 8),
        (rnnorm.GRU(3, 4), 2 * 4, 4),
        (rnnorm.RNN(3, 4), 0, 4),
        (rnnorm.RNN(3, 4, nonlinearity="relu"), 0, 0),
    ],
    ids=str,
)
def test_a_file_counts_its_calls_of_the_library(tmp_path, layer, expf, tanhf):
    rnnorm.export.c(layer, tmp_path / "stream.c")
    text = (tmp_path / "stream.c").read_text().replace("\n *  ", "")
    assert f" {expf} calls of expf, {tanhf} of tanhf" in text
