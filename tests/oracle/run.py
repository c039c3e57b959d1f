#!/usr/bin/env python
"""Do the rewritten programs leave real Paddle in step? run.py [--data DIR] [--keep DIR] [MASTERCAST]

For the orders A-G, float16 and bfloat16, SGD and Adam:
  1. `mastercast rewrite` writes startup.pb, main.pb, resync.pb and renarrow.pb;
  2. Paddle 2.6.2 executes startup.pb once on the CPU;
  3. `mastercast run` interprets the same two programs, narrowing as that Paddle does;
  4. every pair's parameter and master must be equal, bit for bit, in Paddle's scope, in the
     interpreter's and in the table of what must hold.
Then resync.pb and renarrow.pb are executed after a load from outside the program.

Before that, without mastercast: the facts of Paddle that the lowering relies on (facts.py), and the
table of what the unmodified programs do (Paddle's own `amp_init`), so that a pass means something.
Without MASTERCAST the rewriting is done by a few lines of Python: a test of this script alone.

Run with paddlepaddle==2.6.2, numpy<2. The last line is `N passed, N failed`.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import paddle26 as p
from facts import facts
from paddle26 import F16, F32, LOW

HERE = pathlib.Path(__file__).resolve().parent
# order -> steps; LOW is params_f16 or params_bf16
ORDERS = {
    'A': 'startup, load(params_f32), amp_init, main',
    'B': 'startup, amp_init, load(params_f32), main',
    'C': 'startup, amp_init, load(LOW), main',
    'D': 'startup, load(params_f32), amp_init(rewrite_master), main',
    'E': 'startup, amp_init(rewrite_master), load(LOW), main',
    'F': 'startup, load(params_and_masters_f32), amp_init, main',
    'G': 'startup, load(params_and_masters_f32), amp_init(rewrite_master), main',
}
SIXTEEN_BITS_ONLY = 'CE'
passed, failed = [], []


def check(what, holds, why=''):
    (passed if holds else failed).append(what)
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds or not why else ': ' + why}", flush=True)


def case(what, f):
    """One check; an exception fails it."""
    try:
        why = f()
        check(what, not why, why or '')
    except Exception as e:
        check(what, False, f'{type(e).__name__}: {str(e).strip()[-600:]}')


# ---- cells


def differences(scope, want, source='Paddle'):
    """What of {name: array} is not in the scope bit for bit; '' when all is."""
    out = []
    for name, array in want.items():
        kind, got = scope[name] if isinstance(scope, dict) else p.get(scope, name)
        want_kind, bits = p.bits(array)
        if kind != want_kind:
            out.append(f'{name} is {p.NAMES[kind]} in {source}, not {p.NAMES[want_kind]}')
        elif not np.array_equal(got, bits):
            i = int(np.flatnonzero(got != bits)[0]) if len(got) == len(bits) else -1
            out.append(f'{name}[{i}] is {got[i]:#x} in {source}, not {bits[i]:#x}')
    return '; '.join(out)


def read_safetensors(path):
    """{name: (dtype, flat bits)}"""
    data = pathlib.Path(path).read_bytes()
    n = int.from_bytes(data[:8], 'little')
    out = {}
    for name, row in json.loads(data[8:8 + n]).items():
        if name == '__metadata__' or row['dtype'] not in ('F32', 'F16', 'BF16'):
            continue
        a, b = row['data_offsets']
        view = {'F32': np.uint32, 'F16': np.uint16, 'BF16': np.uint16}[row['dtype']]
        kind = {'F32': F32, 'F16': F16, 'BF16': p.BF16}[row['dtype']]
        out[name] = kind, np.frombuffer(data[8 + n + a:8 + n + b], view)
    return out


class Job:
    """One startup and main program, and the checkpoints beside it."""

    def __init__(self, data, low, optimizer):
        self.data, self.low, self.kind = data, low, LOW[low]
        self.stem = f'O2.{low}{optimizer}'
        self.startup_file = data / f'startup.train.{self.stem}.pb'
        self.main_file = data / f'train.{self.stem}.pb'
        self.startup = p.pb.ProgramDesc.FromString(self.startup_file.read_bytes())
        self.main = p.pb.ProgramDesc.FromString(self.main_file.read_bytes())
        self.pairs = p.pairs(self.main)
        assert len(self.pairs) == 4, self.pairs

    def low_dir(self):
        return f'params_{p.NAMES[self.kind]}'

    def checkpoint(self, name):
        """{variable: array}"""
        return {f.name: p.read_stream(f) for f in sorted((self.data / name).iterdir())}

    def schedule(self, order, suffix=''):
        text = ORDERS[order].replace('LOW', self.low_dir())
        for name in ('params_and_masters_f32', 'params_f32', self.low_dir()):
            text = text.replace(f'({name})', f'("{self.data / name}{suffix}")')
        return text

    def expected(self, order):
        """What must hold after the rewrite."""
        if order in SIXTEEN_BITS_ONLY:
            return self.in_step(self.checkpoint(self.low_dir()))
        return self.in_step(self.checkpoint('params_f32'))

    def in_step(self, params):
        """Masters of these values, parameters narrowed from them by truncation."""
        out = {}
        for param, master in self.pairs:
            out[master] = p.widen(params[param])
            out[param] = p.truncate(out[master], self.kind)
        return out


# ---- what unmodified programs do


def amp_init(job, scope, rewrite):
    """Paddle's own, on the parameters of the program."""
    from paddle.static.amp.fp16_utils import cast_parameters_to_fp16
    program = p.paddle.static.Program()
    with p.paddle.static.program_guard(program, p.paddle.static.Program()):
        shapes = {n: list(v.type.lod_tensor.tensor.dims) for n, v in p.declared(job.main).items()}
        params = {n: program.global_block().create_parameter(name=n, shape=shapes[n], dtype='float32')
                  for n, _ in job.pairs}
        masters = {n: program.global_block().create_var(name=m) for n, m in job.pairs}
    kind = p.paddle.base.core.VarDesc.VarType
    cast_parameters_to_fp16(p.PLACE, program, scope, set(params), kind.FP16 if job.kind == F16 else kind.BF16,
                            rewrite, masters)


def unmodified(job, order):
    """Runs an order as a training script does; what the table of the seven orders says must be seen."""
    scope = p.paddle.static.Scope()
    p.run(job.startup, scope)
    random = {m: p.get(scope, m)[1].view(np.float32).copy() for _, m in job.pairs}
    f32 = job.checkpoint('params_f32')
    for step in ORDERS[order].replace('LOW', job.low_dir()).split(', '):
        if step.startswith('load'):
            for name, array in job.checkpoint(step[5:-1]).items():
                p.put(scope, name, array)
        elif step.startswith('amp_init'):
            amp_init(job, scope, 'rewrite' in step)
    # amp_init rounds to nearest even for float16 and truncates for bfloat16
    narrow = (lambda a: a.astype(np.float16)) if job.kind == F16 else (lambda a: p.truncate(a, job.kind))
    want = {}
    for param, master in job.pairs:
        narrowed = {'B': f32[param], 'C': None, 'E': None}.get(order, narrow(f32[param]))
        want[param] = job.checkpoint(job.low_dir())[param] if narrowed is None else narrowed
        want[master] = {'D': p.widen(narrow(f32[param])), 'G': p.widen(narrow(f32[param])), 'F': f32[param],
                        'E': p.widen(narrow(random[master]))}.get(order, random[master])
    return differences(scope, want)


# ---- rewriting


class Mastercast:
    """The tool under test."""

    def __init__(self, binary):
        self.binary = binary

    def call(self, *args):
        done = subprocess.run([self.binary, *map(str, args)], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f'{" ".join(map(str, args[:1]))} exited {done.returncode}: {done.stderr[-600:]}')

    def rewrite(self, job, order, out, suffix=''):
        self.call('rewrite', '--startup', job.startup_file, '--main', job.main_file,
                  '--schedule', job.schedule(order, suffix), '--out', out)

    def interpret(self, startup, main, out):
        """{name: (dtype, bits)} after startup, before the first step"""
        self.call('run', '--startup', startup, '--main', main, '--narrowing', 'truncate', '--steps', '0',
                  '--scope-out', out)
        return read_safetensors(out)


class ByHand:
    """Lowers in Python, so that this script can be tested alone."""

    def rewrite(self, job, order, out, suffix=''):
        out.mkdir(parents=True, exist_ok=True)
        startup = p.pb.ProgramDesc.FromString(job.startup_file.read_bytes())
        block, masters = startup.blocks[0], dict(job.pairs)
        loaded = set()
        for step in ORDERS[order].replace('LOW', job.low_dir()).split(', '):
            if step.startswith('load'):
                for name in job.checkpoint(step[5:-1]):
                    p.add_op(block, 'load', {}, {'Out': [name]}, file_path=str(job.data / step[5:-1] / name))
                    loaded.add(name)
        for param, master in masters.items():
            if master in loaded:
                p.add_op(block, 'cast', {'X': [master]}, {'Out': [param]}, in_dtype=F32, out_dtype=job.kind)
            else:
                self.resync(job, block, param, master)
        (out / 'startup.pb').write_bytes(startup.SerializeToString())
        shutil.copy(job.main_file, out / 'main.pb')
        resync, renarrow = p.program([], []), p.program([], [])
        for param, master in masters.items():
            shape = p.declared(job.main)[param].type.lod_tensor.tensor.dims
            for desc in (resync, renarrow):
                p.add_var(desc.blocks[0], param, job.kind, shape, True)
                p.add_var(desc.blocks[0], master, F32, shape, True)
            self.resync(job, resync.blocks[0], param, master)
            p.add_op(renarrow.blocks[0], 'cast', {'X': [master]}, {'Out': [param]}, in_dtype=F32, out_dtype=job.kind)
        (out / 'resync.pb').write_bytes(resync.SerializeToString())
        (out / 'renarrow.pb').write_bytes(renarrow.SerializeToString())

    @staticmethod
    def resync(job, block, param, master):
        tmp = f'{param}.tmp'
        p.add_var(block, tmp, F32, p.declared(job.main)[param].type.lod_tensor.tensor.dims, False)
        p.add_op(block, 'cast', {'X': [param]}, {'Out': [master]}, in_dtype=F32, out_dtype=F32)
        p.add_op(block, 'assign', {'X': [param]}, {'Out': [tmp]})
        p.add_op(block, 'cast', {'X': [tmp]}, {'Out': [param]}, in_dtype=F32, out_dtype=job.kind)

    def interpret(self, startup, main, out):
        return None


# ---- rewritten programs


def rewritten(tool, job, order, out, suffix=''):
    tool.rewrite(job, order, out, suffix)
    scope = p.paddle.static.Scope()
    p.run((out / 'startup.pb').read_bytes(), scope)
    p.paddle.static.Program.parse_from_string((out / 'main.pb').read_bytes())
    want = job.expected(order)
    why = [differences(scope, want)]
    ours = tool.interpret(out / 'startup.pb', out / 'main.pb', out / 'scope.safetensors')
    if ours is not None:
        why.append(differences(ours, want, 'the interpreter'))
    return '; '.join(w for w in why if w)


def standalone(tool, job, out, name, start, before, want):
    """Runs `start`, puts `before` from outside, runs `out/name`, then once more.

    A second run takes the narrowed parameters for loaded ones: the masters come out rounded, still in
    step. So resync.pb is to be run once after a load. renarrow.pb can be run at any time.
    """
    scope = p.paddle.static.Scope()
    p.run(start, scope)
    for cell, array in before.items():
        p.put(scope, cell, array)
    p.run((out / name).read_bytes(), scope)
    why = [differences(scope, want)]
    p.run((out / name).read_bytes(), scope)
    again = want if name == 'renarrow.pb' else job.in_step({n: want[n] for n, _ in job.pairs})
    why.append(differences(scope, again, 'Paddle after a second run'))
    # The interpreter has no outside: the same story as one startup program, with load ops.
    merged = p.pb.ProgramDesc.FromString(start)
    block, extra = merged.blocks[0], p.pb.ProgramDesc.FromString((out / name).read_bytes()).blocks[0]
    names = {v.name for v in block.vars}
    block.vars.extend(v for v in extra.vars if v.name not in names)
    for cell, array in before.items():
        file = out / f'{cell}.stream'
        save = p.program([(cell, p.bits(array)[0], array.shape, True)],
                         [('save', {'X': [cell]}, {}, dict(file_path=str(file)))])
        one = p.paddle.static.Scope()
        p.put(one, cell, array)
        p.run(save, one)
        p.add_op(block, 'load', {}, {'Out': [cell]}, file_path=str(file))
    block.ops.extend(extra.ops)
    (out / f'merged.{name}').write_bytes(merged.SerializeToString())
    ours = tool.interpret(out / f'merged.{name}', out / 'main.pb', out / 'merged.safetensors')
    if ours is not None:
        why.append(differences(ours, want, 'the interpreter'))
    return '; '.join(w for w in why if w)


def outside(tool, job, out):
    """resync.pb after parameters, renarrow.pb after masters, from the original and the rewritten startup."""
    starts = {'original': job.startup_file.read_bytes(), 'rewritten': (out / 'startup.pb').read_bytes()}
    f32 = job.checkpoint('params_f32')
    # Other values than the rewritten startup loaded.
    other = {n: (a * np.float32(0.75)).astype(np.float32) for n, a in f32.items()}
    for start, data in starts.items():
        loads = {'f32': other, 'f16': {n: a.astype(np.float16) for n, a in other.items()},
                 'bf16': {n: p.truncate(a, p.BF16) for n, a in other.items()}}
        for kind, params in loads.items():
            case(f'{job.stem} resync.pb after {kind} parameters, {start} startup',
                 lambda: standalone(tool, job, out, 'resync.pb', data, params, job.in_step(params)))
        masters = {m: other[n] for n, m in job.pairs}
        case(f'{job.stem} renarrow.pb after masters, {start} startup',
             lambda: standalone(tool, job, out, 'renarrow.pb', data, masters, job.in_step(other)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('mastercast', nargs='?', help='the binary; without it the lowering is done by hand')
    parser.add_argument('--data', type=pathlib.Path, default=HERE.parent / 'data' / 'orders')
    parser.add_argument('--keep', type=pathlib.Path, help='keep what is written in this directory')
    args = parser.parse_args()
    assert p.paddle.__version__ == '2.6.2', p.paddle.__version__
    tool = Mastercast(str(pathlib.Path(args.mastercast).resolve())) if args.mastercast else ByHand()
    data = args.data.resolve()
    with tempfile.TemporaryDirectory() as tmp:
        work = (args.keep or pathlib.Path(tmp)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        for what, holds in facts():
            check(f'fact: {what}', holds)
        for low in LOW:
            for optimizer in ('.sgd', ''):
                job = Job(data, low, optimizer)
                for order in ORDERS:
                    case(f'{job.stem} order {order} unmodified shows what the table says', lambda: unmodified(job, order))
                for order in ORDERS:
                    case(f'{job.stem} order {order} rewritten is in step',
                         lambda: rewritten(tool, job, order, work / job.stem / order))
                if args.mastercast:
                    for order in 'ACFG':
                        case(f'{job.stem} order {order} rewritten from safetensors is in step',
                             lambda: rewritten(tool, job, order, work / job.stem / f'{order}.st', '.safetensors'))
                outside(tool, job, work / job.stem / 'A')
    print(f'{len(passed)} passed, {len(failed)} failed')
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main())
