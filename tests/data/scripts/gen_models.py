#!/usr/bin/env python
"""Record short trainings of the corpus models for the repository: gen_models.py CORPUS OUT.safetensors

Run with PaddlePaddle 2.6.2 (CPU), then `zstd -19 OUT.safetensors -o tests/data/models.zst`. Keys:
  <model>/<stem>/startup, /main    the programs' bytes (uint8)
  <model>/feed/<name>              what is fed at each step
  <model>/<stem>/draw/<step>/<n>   what random ops of main wrote in that step (dropout: Mask)
  <model>/<stem>/loss              float64, one row a step, losses in the order of `losses`
  bench_*/train/...                what benches/train.rs runs
  <model>/losses                   their names, joined by newlines (uint8)
  <model>/<stem>/final/<name>      SAMPLES elements of a persistable after the last step, in even strides
  <model>/<stem>/spread            by how much a loss moves, at most, when the initial values move by 1e-7 of their own

Initial values: element i of the parameter NAME is base + 0.1 * u, all in float32, where base is 1 if the parameter
has one dimension and startup left 1 there (a scale), else 0, and u = (SplitMix64 of fnv1a(NAME) at i >> 40) / 2^23
- 1. The test makes the same.
"""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gen_curves as g  # noqa: E402
import paddle  # noqa: E402
from paddle.base import core  # noqa: E402

STEPS, SAMPLES = 3, 16
LOW = ('train.O2.fp16', 'train.O2.bf16')
LARGE = {'resnet18', 'resnet50', 'mobilenet_v2', 'vgg11'}
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def formula(name, base):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) % (1 << 64)
    with np.errstate(over='ignore'):
        z = np.uint64(h) + (np.arange(base.size, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(40)).astype('f4') / np.float32(1 << 23) - np.float32(1)
    start = (base.reshape(-1) == 1).astype('f4') if base.ndim < 2 else np.float32(0)
    return (start + np.float32(0.1) * u).astype('f4').reshape(base.shape)


def run(folder, meta, stem, feeds, perturb):
    place, scope = paddle.CPUPlace(), core.Scope()
    exe, rows = paddle.static.Executor(place), {}
    paddle.seed(0)
    with paddle.static.scope_guard(scope):
        main = g.program(folder, stem + '.pb')
        startup = g.program(folder, f'startup.{stem}.pb')
        exe.run(startup)
        # In Paddle this is the memory of other parameters.
        shared = {n for op in startup.global_block().ops if op.type == 'coalesce_tensor'
                  for n in op.output('FusedOutput')}
        rng = np.random.RandomState(1)
        for p in meta['parameters']:
            if p['name'] in shared:
                continue
            t = scope.find_var(p['name']).get_tensor()
            v = formula(p['name'], np.array(t))
            t.set((v * (1 + 1e-7 * perturb * rng.uniform(-1, 1, v.shape))).astype('f4'), place)
        draws = [op.output(g.RANDOM[op.type])[0] for b in main.blocks for op in b.ops
                 if op.type in g.RANDOM and op.output(g.RANDOM[op.type])]
        names, losses = list(meta['losses'].values()), []
        for step in range(STEPS):
            got = exe.run(main, feed=feeds, fetch_list=names + draws)
            losses.append([float(np.asarray(v).reshape(-1)[0]) for v in got[:len(names)]])
            for n, v in zip(draws, got[len(names):]):
                rows[f'draw/{step}/{n}'] = np.asarray(v)
        rows['loss'] = np.array(losses)
        for n, v in g.state(scope, main).items():
            flat = v.reshape(-1)
            rows['final/' + n] = flat[::max(1, flat.size // SAMPLES)][:SAMPLES]
    return rows


def write(path, rows):
    kinds = {'float32': 'F32', 'float64': 'F64', 'int64': 'I64', 'int32': 'I32', 'uint8': 'U8', 'bool': 'BOOL',
             'float16': 'F16'}
    head, at = {}, 0
    for k, v in rows.items():
        head[k] = dict(dtype=kinds[str(v.dtype)], shape=list(v.shape), data_offsets=[at, at + v.nbytes])
        at += v.nbytes
    text = json.dumps(head, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(len(text).to_bytes(8, 'little') + text)
        for v in rows.values():
            f.write(np.ascontiguousarray(v).tobytes())


def stems(folder):
    config = json.load(open(os.path.join(folder, 'config.json')))
    found = [k[:-3] for k in config if k.startswith('train.fp32') and 'raw' not in k and 'error' not in config[k]]
    return sorted(s for s in found if f'startup.{s}.pb' in config)


def all_rows(corpus):
    rows = {}
    for model in sorted(os.listdir(corpus)):
        folder = os.path.join(corpus, model)
        if model in LARGE or not os.path.exists(os.path.join(folder, 'meta.json')):
            continue
        meta = json.load(open(os.path.join(folder, 'meta.json')))
        feeds = g.feeds_of(meta)
        rows.update({f'{model}/feed/{n}': v for n, v in feeds.items()})
        rows[f'{model}/losses'] = np.frombuffer('\n'.join(meta['losses'].values()).encode(), 'u1')
        for stem in stems(folder):
            at = f'{model}/{stem}/'
            for part, file in (('startup', f'startup.{stem}.pb'), ('main', f'{stem}.pb')):
                rows[at + part] = np.frombuffer(g.program(folder, file).desc.serialize_to_string(), 'u1')
            got = run(folder, meta, stem, feeds, 0)
            rows.update({at + k: v for k, v in got.items()})
            moved = run(folder, meta, stem, feeds, 1)['loss']
            rows[at + 'spread'] = np.array([np.max(np.abs(moved - got['loss']) / np.abs(got['loss']))])
            print(at, got['loss'].reshape(-1), rows[at + 'spread'], flush=True)
        # Mixed precision does not run on a CPU: programs alone.
        config = json.load(open(os.path.join(folder, 'config.json')))
        for stem in sorted(k[:-3] for k in config if k.startswith(LOW) and f'startup.{k}' in config):
            if not any(w in stem for w in ('nomw', 'mgrad', 'custom', 'legacy', 'dyn', 'promote', 'only', 'guard')):
                for part, file in (('startup', f'startup.{stem}.pb'), ('main', f'{stem}.pb')):
                    code = g.program(folder, file).desc.serialize_to_string()
                    rows[f'{model}/{stem}/{part}'] = np.frombuffer(code, 'u1')
    return rows


def bench(net, shape):
    """The programs that `benches/train.rs` runs: batch 64, Adam."""
    import paddle.nn as nn
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x, y = paddle.static.data('x', [64] + shape, 'float32'), paddle.static.data('y', [64, 1], 'int64')
        loss = nn.functional.cross_entropy(net(nn)(x), y)
        paddle.optimizer.Adam(1e-6).minimize(loss)
    for p in (main, startup):
        for op in p.global_block().ops:
            op._remove_attr('op_callstack')
    parts = {'startup': startup.desc.serialize_to_string(), 'main': main.desc.serialize_to_string(),
             'losses': loss.name.encode()}
    return {k: np.frombuffer(v, 'u1') for k, v in parts.items()}


def mlp(nn):
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def lenet(nn):
    return nn.Sequential(nn.Conv2D(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2), nn.Conv2D(6, 16, 5), nn.ReLU(),
                         nn.MaxPool2D(2, 2), nn.Flatten(), nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10))


if __name__ == '__main__':
    paddle.enable_static()
    rows = all_rows(sys.argv[1])
    for name, net, shape in (('bench_mlp', mlp, [784]), ('bench_lenet', lenet, [1, 28, 28])):
        got = bench(net, shape)
        rows[name + '/losses'] = got.pop('losses')
        rows.update({f'{name}/train/{k}': v for k, v in got.items()})
    write(sys.argv[2], rows)
