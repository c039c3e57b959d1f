#!/usr/bin/env python
"""Record float32 training of corpus programs with every random draw: gen_curves.py CORPUS OUT STEM MODEL ...

Run with PaddlePaddle 2.6.2 (CPU). OUT/<model>.<STEM>.npz holds, for STEPS steps of the program STEM (for
example train.fp32):
  feed/<name>          what is fed at each step
  init/<name>          persistables when main starts
  draw/<step>/<name>   what the random ops of main wrote (dropout: Mask) in that step
  loss/<step>          the losses, in the order of their names in meta.json
  final/<name>         persistables after the last step, only below LIMIT bytes in all
  final_norm/<name>    their Euclidean norms otherwise

BATCH=<n> feeds n examples instead of those of meta.json (models that normalise over two images amplify
rounding without bound). PERTURB=1 multiplies the initial values by 1 + 1e-7 · uniform(-1, 1): how far that moves
a run tells how well it can be repeated at all.
"""
import json
import os
import sys

os.environ['OMP_NUM_THREADS'] = '1'
os.environ['GLOG_minloglevel'] = '3'
import numpy as np  # noqa: E402
import paddle  # noqa: E402
from paddle.base import core  # noqa: E402

STEPS = 3
LIMIT = 4 << 20
RANDOM = {'dropout': 'Mask', 'uniform_random': 'Out', 'gaussian_random': 'Out'}


def feeds_of(meta):
    rng = np.random.RandomState(0)
    feeds = {}
    batch = os.environ.get('BATCH')
    for name, f in sorted(meta['feeds'].items()):
        if batch and f['shape'][0] == -1:
            f['example'][0] = int(batch)
        if 'int' in f['dtype']:
            feeds[name] = rng.randint(0, f['high'], f['example']).astype(f['dtype'])
        else:
            feeds[name] = rng.uniform(-1, 1, f['example']).astype(f['dtype'])
    return feeds


def program(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        path = os.path.join(folder, json.load(open(os.path.join(folder, 'config.json')))[name]['same_bytes_as'])
    return paddle.static.Program.parse_from_string(open(path, 'rb').read())


def state(scope, main):
    out = {}
    for v in main.list_vars():
        sv = scope.find_var(v.name)
        if v.persistable and v.name not in ('feed', 'fetch') and sv and sv.get_tensor()._is_initialized():
            out[v.name] = np.array(sv.get_tensor())
    return out


def record(corpus, out, stem, model):
    folder = os.path.join(corpus, model)
    meta = json.load(open(os.path.join(folder, 'meta.json')))
    feeds, rows = feeds_of(meta), {}
    place, scope = paddle.CPUPlace(), core.Scope()
    exe = paddle.static.Executor(place)
    paddle.seed(0)
    with paddle.static.scope_guard(scope):
        main = program(folder, stem + '.pb')
        startup = stem if stem.startswith('train') else 'fp32'
        exe.run(program(folder, f'startup.{startup}.pb'))
        # Recorded parameters where there are some, so that all runs of a model begin alike.
        given = os.path.join(os.path.dirname(os.path.abspath(corpus)), 'exec', 'dev', model + '.params.npz')
        if os.path.exists(given):
            for n, v in np.load(given).items():
                if scope.find_var(n) is not None:
                    scope.find_var(n).get_tensor().set(v, place)
        if os.environ.get('PERTURB'):
            rng = np.random.RandomState(1)
            for n, v in state(scope, main).items():
                if v.dtype == np.float32 and not n.startswith(('learning_rate', 'loss_scaling')):
                    by = 1 + 1e-7 * rng.uniform(-1, 1, v.shape)
                    scope.find_var(n).get_tensor().set((v * by).astype('f4'), place)
        rows.update({'feed/' + n: v for n, v in feeds.items()})
        rows.update({'init/' + n: v for n, v in state(scope, main).items()})
        draws = [op.output(RANDOM[op.type])[0] for b in main.blocks for op in b.ops
                 if op.type in RANDOM and op.output(RANDOM[op.type]) and not (op.has_attr('is_test') and op.attr('is_test'))]
        losses = list(meta['losses'].values())
        for step in range(STEPS if stem.startswith('train') else 1):
            got = exe.run(main, feed=feeds, fetch_list=losses + draws)
            rows[f'loss/{step}'] = np.array([float(np.asarray(g).reshape(-1)[0]) for g in got[:len(losses)]])
            rows.update({f'draw/{step}/{n}': np.asarray(v) for n, v in zip(draws, got[len(losses):])})
            print(model, stem, step, rows[f'loss/{step}'], flush=True)
        final = state(scope, main)
        if sum(v.nbytes for v in final.values()) < LIMIT:
            rows.update({'final/' + n: v for n, v in final.items()})
        else:
            rows.update({'final_norm/' + n: np.array([np.linalg.norm(v.astype('f8'))]) for n, v in final.items()})
    np.savez(os.path.join(out, f'{model}.{stem}.npz'), **rows)


if __name__ == '__main__':
    paddle.enable_static()
    for name in sys.argv[4:]:
        record(sys.argv[1], sys.argv[2], sys.argv[3], name)
