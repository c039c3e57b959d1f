#!/usr/bin/env python
"""Do kernels round as they say? kernels.py MASTERCAST

Runs one op at a time with `mastercast run` on random and special values and compares with NumPy in float64,
rounded once to the storage type: within 1 unit in the last place for float16 and bfloat16, within BOUND[float32]
for float32 (elementary functions of float32 are not exact). Sums and products of float16 and bfloat16 are compared
the same way, on values without cancellation; those of float32 within SUM relative.

Needs numpy and ml_dtypes. The last line is `N passed, N failed`.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

TYPES = {'f32': (np.float32, 'F32'), 'f16': (np.float16, 'F16'), 'bf16': (ml_dtypes.bfloat16, 'BF16')}
BOUND = {'f32': 4, 'f16': 1, 'bf16': 1}
SUM = 2e-6
erf = np.vectorize(math.erf)


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_grad(x, g):
    return g * (0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, s, b):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * s + b


# name, op, slots with shapes, attributes, reference; `elementwise` or `sum`; values from (low, high)
E, S = 'elementwise', 'sum'
A, M, B, V = [64, 33], [64, 33], [33], (-6, 6)
P = (0.1, 6)
CASES = [
    ('add', 'elementwise_add', dict(X=A, Y=B), '', lambda x, y: x + y, E, V),
    ('sub', 'elementwise_sub', dict(X=A, Y=A), '', lambda x, y: x - y, E, V),
    ('mul', 'elementwise_mul', dict(X=A, Y=B), '', lambda x, y: x * y, E, V),
    ('div', 'elementwise_div', dict(X=A, Y=A), '', lambda x, y: x / y, E, P),
    ('pow', 'elementwise_pow', dict(X=A, Y=A), '', lambda x, y: x ** y, E, (0.1, 3)),
    ('max', 'elementwise_max', dict(X=A, Y=A), '', np.maximum, E, V),
    ('min', 'elementwise_min', dict(X=A, Y=A), '', np.minimum, E, V),
    ('relu', 'relu', dict(X=A), '', lambda x: np.maximum(x, 0), E, V),
    ('relu6', 'relu6', dict(X=A), '', lambda x: np.clip(x, 0, 6), E, (-9, 9)),
    ('tanh', 'tanh', dict(X=A), '', np.tanh, E, V),
    ('sigmoid', 'sigmoid', dict(X=A), '', lambda x: 1 / (1 + np.exp(-x)), E, V),
    ('exp', 'exp', dict(X=A), '', np.exp, E, V),
    ('log', 'log', dict(X=A), '', np.log, E, P),
    ('sqrt', 'sqrt', dict(X=A), '', np.sqrt, E, P),
    ('rsqrt', 'rsqrt', dict(X=A), '', lambda x: 1 / np.sqrt(x), E, P),
    ('square', 'square', dict(X=A), '', np.square, E, V),
    ('abs', 'abs', dict(X=A), '', np.abs, E, V),
    ('gelu', 'gelu', dict(X=A), 'approximate: false', gelu, E, V),
    ('gelu tanh', 'gelu', dict(X=A), 'approximate: true', tanh_gelu, E, (-2, 6)),
    ('gelu_grad', 'gelu_grad', {'X': A, 'Out@GRAD': A}, 'approximate: false', gelu_grad, E, (-0.5, 6)),
    ('tanh_grad', 'tanh_grad', {'Out': A, 'Out@GRAD': A}, '', lambda o, g: g * (1 - o * o), E, (-0.9, 0.9)),
    ('sigmoid_grad', 'sigmoid_grad', {'Out': A, 'Out@GRAD': A}, '', lambda o, g: g * o * (1 - o), E, (0.1, 0.9)),
    ('relu_grad', 'relu_grad', {'Out': A, 'Out@GRAD': A}, '', lambda o, g: g * (o > 0), E, V),
    ('clip', 'clip', dict(X=A), 'min: -1f, max: 2f', lambda x: np.clip(x, -1, 2), E, V),
    ('scale', 'scale', dict(X=A), 'scale: 0.25f, bias: 1f', lambda x: x * 0.25 + 1, E, P),
    ('softmax', 'softmax', dict(X=A), '', softmax, S, V),
    ('reduce_sum', 'reduce_sum', dict(X=A), 'dim: [1]', lambda x: x.sum(1), S, P),
    ('reduce_mean', 'reduce_mean', dict(X=A), 'dim: [0]', lambda x: x.mean(0), S, P),
    ('mean', 'mean', dict(X=A), '', lambda x: x.mean(), S, P),
    ('matmul', 'matmul_v2', dict(X=[17, 64], Y=[64, 33]), '', lambda x, y: x @ y, S, P),
    ('matmul T', 'matmul_v2', dict(X=[64, 17], Y=[33, 64]), 'trans_x: true, trans_y: true',
     lambda x, y: x.T @ y.T, S, P),
    ('cumsum', 'cumsum', dict(X=A), 'axis: 1', lambda x: x.cumsum(1), S, P),
]
OUT = {'layer_norm': 'Y', 'gelu_grad': 'X@GRAD', 'tanh_grad': 'X@GRAD', 'sigmoid_grad': 'X@GRAD',
       'relu_grad': 'X@GRAD'}


def write(path, tensors):
    head, at = {}, 0
    for k, (kind, v) in tensors.items():
        head[k] = dict(dtype=kind, shape=list(v.shape), data_offsets=[at, at + v.nbytes])
        at += v.nbytes
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, 'little') + text + b''.join(v.tobytes() for _, v in tensors.values()))


def read(path, dtypes):
    data = path.read_bytes()
    n = int.from_bytes(data[:8], 'little')
    out = {}
    for k, e in json.loads(data[8:8 + n]).items():
        if k in dtypes:
            a, b = (8 + n + x for x in e['data_offsets'])
            out[k] = np.frombuffer(data[a:b], dtypes[k]).reshape(e['shape'])
    return out


def order(v):
    """Floats as integers in their order: neighbours differ by one."""
    size = v.dtype.itemsize * 8
    bits = v.view(f'u{size // 8}').astype('i8')
    return np.where(bits >> (size - 1) != 0, (1 << (size - 1)) - bits, bits)


def main(tool):
    rng, inputs, want, vars_, ops = np.random.RandomState(0), {}, {}, [], []
    for name, (dtype, kind) in TYPES.items():
        for case, op, slots, attrs, ref, how, (low, high) in CASES:
            key, args = f'{name} {case}', []
            for slot, shape in slots.items():
                v = rng.uniform(low, high, shape).astype(dtype)
                inputs[f'{key} {slot}'] = (kind, v)
                vars_.append(f'var "{key} {slot}" : {name}{shape} persistable')
                args.append(v.astype(np.float64))
            exact = np.asarray(ref(*args))
            want[key] = (dtype, exact, how)
            vars_.append(f'var "{key}" : {name}{list(exact.shape)} persistable')
            reads = '; '.join(f'"{s}": "{key} {s}"' for s in slots)
            ops.append(f'("{OUT.get(op, "Out")}": "{key}") = {op}({reads}) {{{attrs}}}')
    folder = pathlib.Path(tempfile.mkdtemp())
    write(folder / 'in.safetensors', inputs)
    body = '\n    '.join(vars_ + ops)
    (folder / 'ops.mc').write_text(f'program {{\n  startup {{\n  }}\n  main {{\n    {body}\n  }}\n}}\n')
    subprocess.run([tool, 'run', '-q', '--main', folder / 'ops.mc', '--scope-in', folder / 'in.safetensors',
                    '--scope-out', folder / 'out.safetensors'], check=True)
    got = read(folder / 'out.safetensors', {k: d for k, (d, _, _) in want.items()})
    failed = 0
    for key, (dtype, exact, how) in want.items():
        name, v = key.split()[0], got[key]
        assert v.shape == exact.shape, (key, v.shape, exact.shape)
        if how == S and name == 'f32':
            far, bound = float(np.max(np.abs(v - exact) / np.abs(exact))), SUM
        else:
            far, bound = int(np.max(np.abs(order(v) - order(exact.astype(dtype))))), BOUND[name]
        failed += far > bound
        print(f'{"ok  " if far <= bound else "FAIL"} {key}: {far:.2g} of {bound:g}')
    print(f'{len(want) - failed} passed, {failed} failed')
    return failed > 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]))
