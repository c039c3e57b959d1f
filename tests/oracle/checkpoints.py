#!/usr/bin/env python3
"""Does real Paddle read back what `mastercast ckpt convert` writes? checkpoints.py MASTERCAST

Runs with paddlepaddle 2.6.2 and 3.3.1, on a CPU; the distributed flavour follows the version. Each check compares
every tensor bit for bit, with what Paddle reads from the original file. Ends with `N passed, N failed`.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault('GLOG_minloglevel', '3')
import numpy as np
import paddle
import paddle.distributed as dist

paddle.set_device('cpu')
DATA = pathlib.Path(__file__).parent.parent / 'data' / 'ckpt'
V3 = paddle.__version__.startswith('3')
passed, failed = [], []


def convert(tool, source, target, *args):
    subprocess.run([tool, 'ckpt', 'convert', str(source), str(target), '--quiet', *args], check=True)


def array(value):
    return np.asarray(value.numpy() if hasattr(value, 'numpy') else value)


def same(a, b):
    """Equal structure, types, names and bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and set(a) == set(b) and all(same(a[k], b[k]) for k in a)
    if hasattr(a, 'numpy') or isinstance(a, np.ndarray):
        if hasattr(a, 'name') and a.name != b.name:
            return False
        x, y = array(a), array(b)
        return type(a) is type(b) and x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    return a == b


def state_dict(tool, work, name):
    source, target = DATA / name, work / pathlib.Path(name).name.replace('.protocol2', '')
    convert(tool, source, target)
    a, b = paddle.load(str(source)), paddle.load(str(target))
    if name.endswith('.pdparams'):
        # Names of tensors count within a process: two loads of one file differ in nothing else.
        a, b = ({k: array(v) for k, v in d.items()} for d in (a, b))
    assert same(a, b), name


def optimizer(tool, work):
    """The converted state goes into an optimizer."""
    convert(tool, DATA / 'optimizer/Adam.master.float16.protocol4.pdopt', work / 'x.pdopt')
    state = paddle.load(str(work / 'x.pdopt'))
    assert set(state['master_weights']) == {f'linear_{i}.{p}_0' for i in (0, 1) for p in 'wb'}
    assert state['LR_Scheduler']['last_epoch'] == 1


def distributed(tool, work, ranks):
    source, target = DATA / 'dist_v3/twice', work / f'dist{ranks}'
    convert(tool, source, target, '--to-format', 'dist3' if V3 else 'dist26', '--ranks', str(ranks))
    convert(tool, source, work / 'flat.pdparams')
    want = paddle.load(str(work / 'flat.pdparams'))
    got = {k: paddle.zeros(v.shape, v.dtype) for k, v in want.items()}
    # 2.6.2 moves tensors to a GPU for the load, whether there is one or not.
    cuda, paddle.Tensor.cuda = paddle.Tensor.cuda, lambda self, *a, **k: self
    try:
        dist.load_state_dict(got, str(target))
    finally:
        paddle.Tensor.cuda = cuda
    assert all(array(got[k]).tobytes() == array(want[k]).tobytes() for k in want), ranks


def combined(tool, work):
    """Streams, one a variable, by the `load` op's own reader."""
    convert(tool, DATA / 'optimizer/Adam.master.float16.pdparams', work / 'streams', '--to-format', 'streams')
    want = paddle.load(str(DATA / 'optimizer/Adam.master.float16.pdparams'))
    for name, value in want.items():
        got = paddle.load(str(work / 'streams' / name))
        assert array(got).tobytes() == array(value).tobytes(), name


def safetensors(tool, work):
    from safetensors.numpy import load_file
    convert(tool, DATA / 'optimizer/Adam.master.float16.pdparams', work / 'x.safetensors')
    want = paddle.load(str(DATA / 'optimizer/Adam.master.float16.pdparams'))
    got = load_file(str(work / 'x.safetensors'))
    assert all(got[k].tobytes() == array(v).tobytes() for k, v in want.items())


def main(tool):
    with tempfile.TemporaryDirectory() as tmp:
        work = pathlib.Path(tmp)
        cases = [(f'paddle.load of a converted {n}', lambda n=n: state_dict(tool, work, n)) for n in (
            'dygraph_zoo/zoo.protocol4.pdparams', 'dygraph_zoo/zoo.protocol2.pdparams',
            'optimizer/Adam.master.float16.protocol4.pdopt', 'optimizer/Adam.master.bfloat16.protocol4.pdopt')]
        cases += [(f'load_state_dict from {r} ranks', lambda r=r: distributed(tool, work, r)) for r in (1, 3)]
        cases += [('an optimizer state with masters', lambda: optimizer(tool, work)),
                  ('tensor streams', lambda: combined(tool, work))]
        try:
            import safetensors as _
            cases.append(('safetensors', lambda: safetensors(tool, work)))
        except ImportError:
            pass
        for what, run in cases:
            try:
                run()
                passed.append(what)
            except Exception as e:
                failed.append(what)
                print(f'FAILED {what}: {type(e).__name__}: {e}')
    print(f'{len(passed)} passed, {len(failed)} failed')
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]))
