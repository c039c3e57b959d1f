#!/usr/bin/env python
"""Write the small real files of tests/data/orders: gen_orders.py PROGRAMS OUT

Run with paddlepaddle 2.6.2 (CPU), numpy < 2 and safetensors; orders.md beside OUT describes the files.

PROGRAMS holds train.O2.<low>[.sgd].pb and their startup.train.O2.<low>[.sgd].pb: a two-layer
perceptron decorated by `paddle.static.amp.decorate(optimizer, dtype=..., level='O2')` and minimised
by SGD or Adam under paddlepaddle-gpu 2.6.2 (the GPU wheel has the kernel lists of a GPU and needs
none to rewrite), `op_callstack` removed. They are copied as they are.

The checkpoints are written by Paddle's own `save` and `save_combine` ops, and once more as
safetensors. Values do not depend on Paddle's random generators.
"""
import os
import pathlib
import shutil
import sys

os.environ['GLOG_minloglevel'] = '3'
import numpy as np  # noqa: E402
import paddle  # noqa: E402
import safetensors  # noqa: E402

PROGRAMS, OUT = map(pathlib.Path, sys.argv[1:3])
SHAPES = {'fc_0.w_0': (8, 16), 'fc_0.b_0': (16,), 'fc_1.w_0': (16, 1), 'fc_1.b_0': (1,)}
# 1.2345678 is rounded by both 16-bit types; 1.2388 tells rounding to nearest from truncation.
MARKS = np.array([1.2345678, 1.2388, -1.2388, 3.0e-6], np.float32)
MASTER = '_fp32_master_0'

paddle.enable_static()
place = paddle.CPUPlace()
exe = paddle.static.Executor(place)


def bf16(a):
    """float32 to bfloat16 bits, nearest even (no NaN here)"""
    u = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return ((u + (((u >> 16) & 1) + 0x7fff)) >> 16).astype(np.uint16)


def values():
    rng, out = np.random.RandomState(0), {}
    for name, shape in SHAPES.items():
        a = rng.uniform(-0.5, 0.5, shape).astype(np.float32).reshape(-1)
        n = min(len(a), len(MARKS))
        a[:n] = MARKS[:n]
        out[name] = a.reshape(shape)
    return out


def stream(kind, tensors, path):
    """Runs one `save` or `save_combine` op. uint16 arrays are bfloat16 to Paddle."""
    program, scope = paddle.static.Program(), paddle.static.Scope()
    block, xs = program.global_block(), []
    with paddle.static.scope_guard(scope):
        for name, a in tensors:
            dtype = 'bfloat16' if a.dtype == np.uint16 else str(a.dtype)
            xs.append(block.create_var(name=name, shape=list(a.shape), dtype=dtype, persistable=True))
            scope.var(name).get_tensor().set(a, place)
        outputs = {}
        if kind == 'save_combine':  # its other output, for save_to_memory, must be named
            raw = paddle.base.core.VarDesc.VarType.RAW
            outputs = {'Y': block.create_var(name='memory', type=raw, persistable=True)}
        block.append_op(type=kind, inputs={'X': xs}, outputs=outputs, attrs={'file_path': str(path)})
        exe.run(program)


def spec(a):
    dtype = {'float32': 'float32', 'float16': 'float16', 'uint16': 'bfloat16'}[str(a.dtype)]
    return safetensors.TensorSpec(dtype=dtype, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)


def checkpoint(name, tensors):
    (OUT / name).mkdir(parents=True)
    for key, a in tensors.items():
        stream('save', [(key, a)], OUT / name / key)
    stream('save_combine', sorted(tensors.items()), OUT / f'{name}.pdiparams')
    data = safetensors.serialize({k: spec(a) for k, a in tensors.items()})
    (OUT / f'{name}.safetensors').write_bytes(data)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    for low in ('fp16', 'bf16'):
        for optimizer in ('', '.sgd'):
            for part in ('', 'startup.'):
                file = f'{part}train.O2.{low}{optimizer}.pb'
                (OUT / file).write_bytes((PROGRAMS / file).read_bytes())
    f32 = values()
    masters = {k + MASTER: a for k, a in f32.items()}
    f16 = {k: a.astype(np.float16) for k, a in f32.items()}
    b16 = {k: bf16(a) for k, a in f32.items()}
    checkpoint('params_f32', f32)
    checkpoint('params_f16', f16)
    checkpoint('params_bf16', b16)
    checkpoint('masters_f32', masters)
    checkpoint('params_and_masters_f32', {**f32, **masters})
    checkpoint('params_f16_masters_f32', {**f16, **masters})
    checkpoint('params_bf16_masters_f32', {**b16, **masters})
    checkpoint('conflict', {**{k: a + np.float32(0.5) for k, a in f32.items()}, **masters})
    checkpoint('partial', {'fc_0.w_0': f32['fc_0.w_0']})
    print('paddle', paddle.__version__, 'numpy', np.__version__, 'safetensors', safetensors.__version__)


main()
