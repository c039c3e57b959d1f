"""What Paddle 3.3.1's executor makes of values and names: every line of README.md's part on PIR, checked.

`facts()` gives a name and a check for each; a check returns why the fact does not hold, or ''.
"""

import json
import pathlib
import struct
import tempfile

import numpy as np
import pir33 as p

LONG = {'f32': 'float32', 'bf16': 'bfloat16'}
SHAPE = [2]


def ty(dtype):
    return {'#': '0.t_dtensor', 'D': [{'#': f'0.t_{dtype}'}, SHAPE, 'NCHW', [], 0]}


def attr(kind, value, name):
    return {'AT': {'#': kind, 'D': value}, 'N': name}


def flags(*names):
    return [attr('0.a_array', [{'#': '0.a_bool', 'D': True}], n) for n in names]


def op(kind, operands, results, attrs=(), keep=True):
    return {'#': kind, 'A': list(attrs), 'I': [{'%': i} for i in operands],
            'O': [{'%': i, 'TT': t} for i, t in results],
            'OA': flags(*(['persistable'] if keep else []), 'stop_gradient') if results else []}


def full(i, value, keep=True):
    attrs = [attr('1.a_intarray', SHAPE, 'shape'), attr('0.a_f64', value, 'value'), attr('1.a_dtype', 'float32', 'dtype'),
             attr('1.a_place', [0, 0, ''], 'place')]
    return op('1.full', [], [(i, ty('f32'))], attrs, keep)


def cast(x, i, dtype):
    return op('1.cast', [x], [(i, ty(dtype))], [attr('1.a_dtype', LONG[dtype], 'dtype')])


def named(i, name):
    return op('0.set_parameter', [i], [], [attr('0.a_str', name, 'parameter_name')])


def shadow(i, name):
    return op('0.shadow_output', [i], [], [attr('0.a_str', name, 'output_name')])


def parameter(i, name, dtype='f32'):
    return {'#': 'p', 'A': [0, 1, 1, name], 'DA': [], 'O': {'%': i, 'TT': ty(dtype)}, 'OA': [1, 0, 1], 'QA': []}


def load(path, i, dtype):
    attrs = [attr('0.a_str', str(path), 'file_path'), attr('0.a_bool', False, 'load_as_fp16'),
             attr('0.a_bool', False, 'model_from_memory')]
    return [op('1.load_combine', [], [(i, {'#': '0.t_vec', 'D': [ty(dtype)]})], attrs),
            op('0.slice', [i], [(i + 1, ty(dtype))], [attr('0.a_i32', 0, 'index')])]


def stream(path, array):
    """One tensor, as Paddle's `save` writes it."""
    desc = bytes([8, 22 if array.dtype == np.uint16 else 5]) + b''.join(bytes([16, n]) for n in array.shape)
    path.write_bytes(struct.pack('<IQI', 0, 0, 0) + struct.pack('<i', len(desc)) + desc + array.tobytes())


def run(*ops, scope=None):
    text = {'base_code': {'magic': 'pir', 'trainable': True, 'version': 4}, 'program': {'regions': [
        {'#': 'region_0', 'blocks': [{'#': 'block_0', 'args': [], 'ops': list(ops)}]}]}}
    scope = scope or p.paddle.static.Scope()
    with tempfile.TemporaryDirectory() as tmp:
        file = pathlib.Path(tmp) / 'program.json'
        file.write_text(json.dumps(text))
        p.run(p.read(file), scope)
    return scope


def holds(scope, **want):
    """dtype and first value of cells; None for a cell without value."""
    out = []
    for name, expected in want.items():
        got = p.get(scope, name)
        got = got and (got[0], float((p.widen(got[1]) if got[0] == 'bf16' else got[1])[0]))
        if (got is None) != (expected is None) or got and (got[0] != expected[0] or abs(got[1] - expected[1]) > 1e-6):
            out.append(f'{name} is {got}, not {expected}')
    return '; '.join(out)


def refused(*ops):
    try:
        run(*ops)
    except Exception:
        return ''
    return 'it was run'


def with_cell(value):
    scope = p.paddle.static.Scope()
    p.put(scope, 'w', value)
    return scope


W = np.array([1.2345678, 1.2388], 'float32')


def facts():
    tmp = pathlib.Path(tempfile.mkdtemp())
    stream(tmp / 'f32', W)
    stream(tmp / 'bf16', p.narrow(W))
    yield 'ids need not be in a row', lambda: holds(
        run(full(100, 1.5), cast(100, 7, 'bf16'), named(7, 'w'), shadow(100, 'm')), w=('bf16', 1.5), m=('f32', 1.5))
    yield 'a value is used after its definition', lambda: refused(cast(100, 7, 'bf16'), full(100, 1.5), named(7, 'w'))
    yield 'a value that is not persistable cannot be named', lambda: refused(full(1, 1.5, keep=False), named(1, 'w'))
    yield 'a second name takes the value from the first', lambda: holds(
        run(full(1, 1.5), named(1, 'w'), shadow(1, 'm')), w=None, m=('f32', 1.5))
    yield 'a parameter that is given another name loses its own', lambda: holds(
        run(parameter(1, 'w'), shadow(1, 'm'), scope=with_cell(W)), w=None, m=('f32', 1.2345678))
    yield 'no value may be made after a name has two', lambda: refused(
        full(1, 1.5), named(1, 'w'), full(2, 2.5), named(2, 'w'), cast(2, 3, 'f32'), shadow(3, 'm'))
    yield 'a load that takes a name which is taken is lost', lambda: holds(
        run(full(9, 7.0), cast(9, 10, 'bf16'), named(10, 'w'), *load(tmp / 'f32', 1, 'f32'), named(2, 'w')),
        w=('bf16', 7.0))
    yield 'a cell may be read after it was named', lambda: holds(
        run(full(1, 1.5), named(1, 'w'), parameter(2, 'w'), cast(2, 3, 'bf16'), shadow(3, 'm')),
        w=('f32', 1.5), m=('bf16', 1.5))
    yield 'a cell that is read may be named at the end', lambda: holds(
        run(parameter(1, 'w'), cast(1, 2, 'f32'), shadow(2, 'm'), cast(2, 3, 'bf16'), named(3, 'w'), scope=with_cell(W)),
        w=('bf16', 1.234375), m=('f32', 1.2345678))
    yield 'a load has the dtype of the file', lambda: holds(
        run(*load(tmp / 'f32', 1, 'bf16'), named(2, 'w')), w=('f32', 1.2345678))
    yield 'a load of bfloat16', lambda: holds(
        run(*load(tmp / 'bf16', 1, 'bf16'), cast(2, 3, 'f32'), shadow(3, 'm')), m=('f32', 1.234375))

    def refused_cell(*ops):
        try:
            run(*ops, scope=with_cell(W))
        except Exception:
            return ''
        return 'it was run'

    yield 'a cell of another dtype than is declared is refused', lambda: refused_cell(
        parameter(1, 'w', 'bf16'), cast(1, 2, 'bf16'), shadow(2, 'm'))
    yield 'but a cast to the dtype that it has copies it, whatever is declared', lambda: holds(
        run(parameter(1, 'w', 'bf16'), cast(1, 2, 'f32'), shadow(2, 'm'), scope=with_cell(W)), m=('f32', 1.2345678))
    yield 'cast rounds to nearest even', lambda: holds(
        run(parameter(1, 'w'), cast(1, 2, 'bf16'), shadow(2, 'm'), scope=with_cell(W[1:].repeat(2))),
        m=('bf16', 1.2421875))
