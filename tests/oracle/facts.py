"""Which facts of Paddle 2.6.2 does the lowering rely on? Each is checked here; README.md words them."""
import pathlib
import tempfile

import numpy as np
import paddle26 as p
from paddle26 import BF16, F16, F32

V = np.array([1.2345678, 1.2388, -1.2388, 1e-8], np.float32)
AS = {F32: V, F16: V.astype(np.float16), BF16: p.truncate(V, BF16)}
CAST = dict(in_dtype=F32, out_dtype=F32)


def _run(variables, ops, before=None):
    scope = p.paddle.static.Scope()
    for name, array in (before or {}).items():
        p.put(scope, name, array)
    p.run(p.program(variables, ops), scope)
    return scope


def _same(scope, name, array):
    (kind, got), (want_kind, want) = p.get(scope, name), p.bits(array)
    return kind == want_kind and np.array_equal(got, want)


def _fails(f, text):
    try:
        f()
    except Exception as e:  # Paddle raises many types
        return text in str(e)
    return False


def _cast(x, y, before, src, dst, **attrs):
    return _run([('x', x, [4], True), ('y', y, [4], True)], [('cast', {'X': ['x']}, {'Out': ['y']}, attrs)],
                {'x': before})


def _narrow(low, declared, tmp, value):
    return _run([('p', declared, [4], True), ('t', tmp, [4], False)],
                [('assign', {'X': ['p']}, {'Out': ['t']}, {}),
                 ('cast', {'X': ['t']}, {'Out': ['p']}, dict(in_dtype=F32, out_dtype=low))], {'p': value})


def _low(value, low):
    a = p.widen(value)
    return value if p.bits(value)[0] == low else (a if low == F32 else p.truncate(a, low))


def facts():
    """(what, holds)"""
    kinds = (F32, F16, BF16)
    yield ('cast needs no attribute but in_dtype and out_dtype; every pair of types, equal ones included, works',
           all(_same(_cast(a, b, AS[a], a, b, in_dtype=a, out_dtype=b), 'y', _low(AS[a], b))
               for a in kinds for b in kinds))
    for missing in ('in_dtype', 'out_dtype'):
        attrs = {k: v for k, v in CAST.items() if k != missing}
        yield (f'cast without {missing} is refused',
               _fails(lambda: _cast(F32, F32, V, F32, F32, **attrs), f'Attribute ({missing}) is not set'))
    yield ('the value of in_dtype is not used: the operand\'s run-time dtype is',
           all(_same(_cast(F32, F32, AS[a], a, F32, in_dtype=wrong, out_dtype=F32), 'y', p.widen(AS[a]))
               for a in kinds for wrong in kinds))
    yield ('declared dtypes are not used: a cell takes the dtype of the last value written',
           all(_same(_cast(x, y, AS[a], a, b, in_dtype=a, out_dtype=b), 'y', _low(AS[a], b))
               for a in kinds for b in (F16, BF16) for x in kinds for y in kinds))
    yield ('cast with its operand as output fails, narrowing',
           _fails(lambda: _run([('x', F32, [4], True)],
                               [('cast', {'X': ['x']}, {'Out': ['x']}, dict(in_dtype=F32, out_dtype=F16))], {'x': V}),
                  'does not match the type of data'))
    yield ('cast with its operand as output fails, widening',
           _fails(lambda: _run([('x', F32, [4], True)],
                               [('cast', {'X': ['x']}, {'Out': ['x']}, CAST)], {'x': AS[F16]}),
                  'dimension is out of bound'))
    yield ('assign param -> tmp, cast tmp -> param narrows in place, whatever the declared and run-time dtypes',
           all(_same(_narrow(low, d, t, AS[a]), 'p', _low(AS[a], low))
               for low in (F16, BF16) for d in kinds for t in kinds for a in kinds))
    yield ('the tmp must be declared',
           _fails(lambda: _run([('p', F32, [4], True)],
                               [('assign', {'X': ['p']}, {'Out': ['t']}, {}),
                                ('cast', {'X': ['t']}, {'Out': ['p']}, dict(in_dtype=F32, out_dtype=F16))], {'p': V}),
                  'not in VariableScope'))
    yield ('unknown attributes of an op are ignored',
           _same(_cast(F32, F16, V, F32, F16, in_dtype=F32, out_dtype=F16, foo='bar', keys=['a'], op_role=0), 'y',
                 p.truncate(V, F16)))
    yield ('amp_init and resync are no ops of Paddle',
           all(_fails(lambda: _run([('p', F32, [4], True)], [(kind, {'X': ['p']}, {'Out': ['p']}, {})], {'p': V}),
                      'is not registered') for kind in ('amp_init', 'resync')))
    yield from _again()
    yield from _loads(kinds)
    yield from _rounding()


def _again():
    """Kernels are chosen in the first run of a program by an executor in a scope, by run-time dtype."""
    desc = p.program([('x', F32, [4], True), ('y', F32, [4], True)],
                     [('cast', {'X': ['x']}, {'Out': ['y']}, CAST)])
    scope, exe = p.paddle.static.Scope(), p.executor()
    p.put(scope, 'x', V)
    p.run(desc, scope, exe)
    p.put(scope, 'x', 2 * V)
    p.run(desc, scope, exe)
    again = _same(scope, 'y', 2 * V)
    p.put(scope, 'x', AS[F16])
    refused = _fails(lambda: p.run(desc, scope, exe), 'does not match the type of data')
    p.run(desc, scope)
    yield ('a second run by the same executor is refused when an operand has another run-time dtype than in the '
           'first; a fresh executor takes it', again and refused and _same(scope, 'y', p.widen(AS[F16])))


def _loads(kinds):
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d) / 'a dir.x'
        d.mkdir()
        for kind, value in AS.items():
            _run([('x', kind, [4], True)], [('save', {'X': ['x']}, {}, dict(file_path=str(d / p.NAMES[kind])))],
                 {'x': value})

        def load(kind, declared, shape=(4,), outs=('p',), **attrs):
            return _run([(n, declared, shape, True) for n in outs],
                        [('load', {}, {'Out': list(outs)}, dict(file_path=str(d / p.NAMES[kind]), **attrs))])
        yield ('load needs file_path alone; the cell takes the file\'s dtype, whatever was declared',
               all(_same(load(a, x), 'p', AS[a]) for a in kinds for x in kinds))
        yield ('load does not compare shapes', _same(load(F32, F32, shape=(2,)), 'p', V))
        yield ('load ignores keys and stored_dtypes', _same(load(F32, F32, keys=['p'], stored_dtypes=[5]), 'p', V))
        two = load(F32, F32, outs=('p', 'q'))
        yield ('load with two outputs fills the first alone, without an error',
               _same(two, 'p', V) and _fails(lambda: p.get(two, 'q'), 'not in the scope'))
        yield ('load of a file that is not there fails',
               _fails(lambda: _run([('p', F32, [4], True)],
                                   [('load', {}, {'Out': ['p']}, dict(file_path=str(d / 'no')))]), 'fail to open file'))
        (d / 'both').write_bytes((d / 'f32').read_bytes() + (d / 'bf16').read_bytes())
        both = [('load_combine', {}, {'Out': ['p', 'q']}, dict(file_path=str(d / 'both')))]
        scope = _run([('p', F32, [4], True), ('q', F32, [4], True)], both)
        yield ('load_combine fills its outputs in order, each with its own dtype',
               _same(scope, 'p', V) and _same(scope, 'q', AS[BF16]))
        some = [('load_combine', {}, {'Out': ['p']}, dict(file_path=str(d / 'both')))]
        yield ('load_combine of fewer outputs than the file has is refused',
               _fails(lambda: _run([('p', F32, [4], True)], some), 'Not allowed to load partial data'))
        whole = [('uniform_random', {}, {'Out': ['p']}, dict(shape=[4], dtype=F32)),
                 ('fill_constant', {}, {'Out': ['m']}, dict(shape=[4], dtype=F32, value=0.0)),
                 ('load', {}, {'Out': ['p']}, dict(file_path=str(d / 'f32'))),
                 ('cast', {'X': ['p']}, {'Out': ['m']}, dict(in_dtype=F16, out_dtype=F32)),
                 ('assign', {'X': ['p']}, {'Out': ['t']}, {}),
                 ('cast', {'X': ['t']}, {'Out': ['p']}, dict(in_dtype=F32, out_dtype=F16))]
        scope = _run([('p', F32, [4], True), ('m', F32, [4], True), ('t', F32, [4], False)], whole)
        yield ('ops of a startup program that overwrite one cell take effect in file order',
               _same(scope, 'm', V) and _same(scope, 'p', p.truncate(V, F16)))


def _rounding():
    rng = np.random.RandomState(1)
    x = np.concatenate([rng.randint(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32).view(np.float32),
                        rng.uniform(-1e-4, 1e-4, 1 << 18).astype(np.float32),
                        rng.uniform(-7e4, 7e4, 1 << 18).astype(np.float32),
                        np.array([0x7f800001, 0x7fffffff, 0x7f800000, 0x477fe000, 0x477fe001, 0x387fffff, 1],
                                 np.uint32).view(np.float32)])
    for low in (F16, BF16):
        scope = _run([('x', F32, x.shape, True), ('y', low, x.shape, True)],
                     [('cast', {'X': ['x']}, {'Out': ['y']}, dict(in_dtype=F32, out_dtype=low))], {'x': x})
        yield f'cast to {p.NAMES[low]} truncates as `truncate` says', _same(scope, 'y', p.truncate(x, low))


if __name__ == '__main__':
    for what, holds in facts():
        print('ok  ' if holds else 'FAIL', what)
