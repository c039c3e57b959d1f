"""Do rewritten programs of Paddle 3.x do in real Paddle 3.3.1 what the rewrite promises?

    python tests/oracle/pir.py MASTERCAST

For orders P1 to P4 (tests/oracle/README.md) in bfloat16, inside startup and after it, the parameters and masters
in Paddle's scope are compared bit for bit with what must hold, and with the interpreter. Prints one line a case and
`N passed, N failed`.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pir33 as p
from pir_facts import facts

# 1.2388 tells rounding from truncation.
SPECIAL = np.array([1.2345678, 1.2388, -0.1, 3.0e-3], 'float32')
passed = failed = 0


def case(name, check):
    global passed, failed
    try:
        why = check()
    except Exception as e:  # a fault of Paddle or of the tool is a failed case
        why = f'{type(e).__name__}: {str(e).strip().splitlines()[-1] if str(e).strip() else ""}'
    passed, failed = passed + (not why), failed + bool(why)
    print(f'{"FAIL" if why else "ok  "} {name}{": " + why if why else ""}', flush=True)


class Job:
    """Real programs, and the loads of each order."""

    def __init__(self, work):
        self.work = work
        startup, main, self.loss = p.build(p.mlp)
        self.startup, self.main = work / 'startup.json', work / 'main.json'
        p.paddle.save(startup, str(self.startup))
        p.paddle.save(main, str(self.main))
        self.scope = p.paddle.static.Scope()
        p.run(p.read(self.startup), self.scope)
        params = [q.name for q in main.global_block().all_parameters()]
        self.pairs = [(n, f'{n}_fp32_master_0') for n in sorted(params)]
        rng = np.random.RandomState(1)
        self.param, self.master = {}, {}
        for param, master in self.pairs:
            shape = p.get(self.scope, param)[1].shape
            value = rng.randn(*shape).astype('float32')
            value.reshape(-1)[:2] = SPECIAL[:2]
            self.param[param] = value
            self.master[master] = (value * np.float32(1.001)).astype('float32')

    def loads(self, order):
        """What is loaded, and the master that must hold after it."""
        low = {n: p.narrow(v) for n, v in self.param.items()}
        widened = {m: p.widen(low[n]) for n, m in self.pairs}
        return {
            'P1': (self.param, {m: self.param[n] for n, m in self.pairs}),
            'P2': (low, widened),
            'P3': ({**self.param, **self.master}, self.master),
            'P4': (self.master, self.master),
        }[order]

    def differences(self, get, masters, who):
        out = []
        for param, master in self.pairs:
            for name, want in [(master, ('f32', masters[master])), (param, ('bf16', p.narrow(masters[master])))]:
                got = get(name)
                if got is None or got[0] != want[0] or got[1].tobytes() != want[1].tobytes():
                    out.append(f'{who}: {name} is {got and (got[0], got[1].reshape(-1)[:2])}, not {want[1].reshape(-1)[:2]}')
        return '; '.join(out[:2])


def tool(binary, *args, codes=(0,)):
    done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True)
    assert done.returncode in codes, f'{args[0]}: exit {done.returncode}: {done.stderr[-300:]}'
    return done


def unmodified(job):
    """The fault that the rewrite mends: masters go through 16 bits, and a load after startup leaves them."""
    for param, master in job.pairs:
        if param.endswith('w_0'):
            kind, value = p.get(job.scope, master)
            if kind != 'f32' or not np.array_equal(value, p.widen(p.narrow(value))):
                return f'{master} was not rounded'
    p.put(job.scope, job.pairs[0][0], job.param[job.pairs[0][0]])
    return ''


def seeded(binary, job):
    """Without loads: the master starts at the float32 value, the parameter is that narrowed."""
    out = job.work / 'plain'
    tool(binary, 'rewrite', '--startup', job.startup, '--main', job.main, '--out', out)
    scope = p.paddle.static.Scope()
    p.run(p.read(out / 'startup.json'), scope)
    masters = {m: p.get(scope, m)[1] for _, m in job.pairs}
    wide = [m for m, v in masters.items() if m.startswith('linear_') and '.w_0' in m
            and not np.array_equal(v, p.widen(p.narrow(v)))]
    if len(wide) != 2:
        return f'only {wide} hold more than 16 bits'
    return job.differences(lambda n: p.get(scope, n), masters, 'Paddle')


def inside(binary, job, order):
    """The load is in startup."""
    loads, masters = job.loads(order)
    out = job.work / order
    ckpt = job.work / f'{order}.safetensors'
    p.safetensors(ckpt, loads)
    tool(binary, 'rewrite', '--startup', job.startup, '--main', job.main, '--out', out,
         '--schedule', f'startup, load({ckpt}), main')
    scope = p.paddle.static.Scope()
    p.run(p.read(out / 'startup.json'), scope)
    why = [job.differences(lambda n: p.get(scope, n), masters, 'Paddle')]
    # What is written proves again, and runs here.
    tool(binary, 'check', '--startup', out / 'startup.json', '--main', out / 'main.json')
    tool(binary, 'run', '--startup', out / 'startup.json', '--main', out / 'main.json', '--steps', 0,
         '--scope-out', out / 'scope.safetensors')
    ours = p.read_safetensors(out / 'scope.safetensors')
    kinds = {'float32': 'f32', 'uint16': 'bf16'}
    why.append(job.differences(lambda n: n in ours and (kinds[str(ours[n].dtype)], ours[n]), masters, 'the interpreter'))
    why.append(step(job, out, scope, masters))
    return '; '.join(w for w in why if w)


def step(job, out, scope, masters):
    """A training step at learning rate zero changes neither."""
    p.put(scope, 'learning_rate_0', np.zeros(1, 'float32'))
    feed = {'x': np.ones((4, 8), 'float32'), 'y': np.zeros((4, 1), 'int64')}
    p.run(p.read(out / 'main.json'), scope, feed)
    return job.differences(lambda n: p.get(scope, n), masters, 'after a step')


def after(binary, job, order, start):
    """The load is put into the scope after startup; then one of the standalone programs runs."""
    loads, masters = job.loads(order)
    out = job.work / 'plain'
    scope = p.paddle.static.Scope()
    p.run(p.read(start), scope)
    for name, value in loads.items():
        p.put(scope, name, value)
    file = {'P1': 'resync', 'P2': 'resync', 'P3': 'renarrow', 'P4': 'renarrow'}[order]
    p.run(p.read(out / f'{file}.json'), scope)
    why = [job.differences(lambda n: p.get(scope, n), masters, 'Paddle'), step(job, out, scope, masters)]
    before = job.work / f'{order}.before.safetensors'
    p.safetensors(before, loads)
    tool(binary, 'run', '--main', out / f'{file}.json', '--steps', 1, '--scope-in', before,
         '--scope-out', out / f'{order}.safetensors')
    ours = p.read_safetensors(out / f'{order}.safetensors')
    kinds = {'float32': 'f32', 'uint16': 'bf16'}
    why.append(job.differences(lambda n: n in ours and (kinds[str(ours[n].dtype)], ours[n]), masters, 'the interpreter'))
    return '; '.join(w for w in why if w)


def training(binary, work):
    """One step at learning rate 0.1, every parameter. Not in bfloat16: `sgd_` on CPU leaves masters as they are."""
    startup, program, _ = p.build(p.mlp, False)
    p.paddle.save(program, str(work / 'step.json'))
    scope = p.paddle.static.Scope()
    p.run(startup, scope)
    names = [q.name for q in program.global_block().all_parameters()]
    before = {n: p.get(scope, n)[1].copy() for n in names + ['learning_rate_0']}
    rng = np.random.RandomState(2)
    feed = {'x': rng.randn(4, 8).astype('float32'), 'y': np.array([[0], [2], [1], [1]], 'int64')}
    p.safetensors(work / 'cells.safetensors', before)
    p.safetensors(work / 'feed.safetensors', feed)
    p.run(program, scope, feed)
    tool(binary, 'run', '--main', work / 'step.json', '--steps', 1, '--scope-in', work / 'cells.safetensors',
         '--feed', work / 'feed.safetensors', '--scope-out', work / 'stepped.safetensors')
    ours = p.read_safetensors(work / 'stepped.safetensors')
    after = {n: p.get(scope, n)[1] for n in names}
    off = {n: float(np.abs(ours[n] - after[n]).max()) for n in names}
    still = [n for n in names if np.array_equal(before[n], after[n])]
    return '; '.join([f'{n} is off by {v}' for n, v in off.items() if v > 1e-6] + [f'{n} did not move' for n in still])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('mastercast', help='the binary')
    parser.add_argument('--keep', type=pathlib.Path, help='keep what is written in this directory')
    args = parser.parse_args()
    assert p.paddle.__version__ == '3.3.1', p.paddle.__version__
    binary = str(pathlib.Path(args.mastercast).resolve())
    with tempfile.TemporaryDirectory() as tmp:
        work = (args.keep or pathlib.Path(tmp)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        for what, holds in facts():
            case(f'fact: {what}', holds)
        job = Job(work)
        case('unmodified startup rounds the masters', lambda: unmodified(job))
        case('rewritten startup seeds the masters', lambda: seeded(binary, job))
        for order in ['P1', 'P2', 'P3', 'P4']:
            case(f'{order} inside startup', lambda: inside(binary, job, order))
        case('a training step of mlp in float32 agrees with the interpreter', lambda: training(binary, work))
        for order in ['P1', 'P2', 'P3', 'P4']:
            for name, start in [('original', job.startup), ('rewritten', work / 'plain' / 'startup.json')]:
                case(f'{order} after the {name} startup', lambda: after(binary, job, order, start))
    print(f'{passed} passed, {failed} failed')
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main())
