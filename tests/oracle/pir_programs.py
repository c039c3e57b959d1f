"""Writes the Paddle 3.x programs of tests/data/pir; run with paddlepaddle==3.3.1 (CPU).

    python tests/oracle/pir_programs.py tests/data/pir

SGD alone, because no other optimizer with masters builds for bfloat16 on CPU. Each model as `startup.MODEL.KIND.json`
and `main.MODEL.KIND.json`, KIND fp32 or bf16; besides a file that is written for people (`readable`), one without
`trainable`, and Paddle's own small programs.
"""

import pathlib
import sys

import pir33 as p

paddle = p.paddle
nn, functional = paddle.nn, paddle.nn.functional


def data(name, shape, dtype):
    x = paddle.static.data(name, shape, dtype)
    x.stop_gradient = dtype != 'float32'
    return x


def lenet():
    layers = nn.Sequential(nn.Conv2D(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2), nn.Flatten(), nn.Linear(64, 3))

    def forward(layers, dtype):
        x, y = data('x', [2, 1, 8, 8], 'float32'), data('y', [2, 1], 'int64')
        return functional.cross_entropy(layers(x.astype(dtype)).astype('float32'), y)

    return layers, forward


class Bert(nn.Layer):
    """One block of attention over 6 tokens, 2 heads of 4."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        x = self.words(ids)
        q, k, v = (t.reshape([2, 6, 2, 4]).transpose([0, 2, 1, 3]) for t in self.qkv(self.norm(x.astype('float32')).astype(x.dtype)).split(3, axis=-1))
        # No softmax_grad or layer_norm_grad in bfloat16 on CPU.
        weights = functional.softmax((paddle.matmul(q, k, transpose_y=True) * 0.5).astype('float32')).astype(x.dtype)
        x = x + self.out(paddle.matmul(weights, v).transpose([0, 2, 1, 3]).reshape([2, 6, 8]))
        x = x + self.down(functional.gelu(self.up(x)))
        return self.head(x.mean(axis=1))


def bert_mini():
    def forward(layers, dtype):
        ids, y = data('ids', [2, 6], 'int64'), data('y', [2, 1], 'int64')
        return functional.cross_entropy(layers(ids).astype('float32'), y)

    return Bert(), forward


def while_loop():
    layers = nn.Linear(8, 8)

    def forward(layers, dtype):
        x = data('x', [4, 8], 'float32').astype(dtype)
        i, n = paddle.full([], 0, 'int64'), paddle.full([], 3, 'int64')
        _, x = paddle.static.nn.while_loop(lambda i, x: i < n, lambda i, x: [i + 1, functional.relu(layers(x))], [i, x])
        return x.astype('float32').mean()

    return layers, forward


def cond():
    layers = nn.Linear(8, 8)

    def forward(layers, dtype):
        x = data('x', [4, 8], 'float32').astype(dtype)
        x = paddle.static.nn.cond(x.astype('float32').mean() > 0, lambda: layers(x), lambda: layers(x * 2))
        return x.astype('float32').mean()

    return layers, forward


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for model in [p.mlp, lenet, bert_mini, while_loop, cond]:
        for kind in ['fp32', 'bf16']:
            try:
                # 3.3.1 cannot write the gradient of a loop (it crashes): those two only infer.
                startup, program, _ = p.build(model, kind == 'bf16', model not in (while_loop, cond))
            except Exception as e:  # no kernel on CPU
                print(f'{model.__name__} {kind}: {str(e).strip().splitlines()[-1]}')
                continue
            paddle.save(startup, str(out / f'startup.{model.__name__}.{kind}.json'))
            paddle.save(program, str(out / f'main.{model.__name__}.{kind}.json'))
    program = p.build(cond, False, False)[1]
    p.core.serialize_pir_program(program, str(out / 'main.cond.readable.json'), True, True, True)
    program = p.build(p.mlp)[1]
    p.core.serialize_pir_program(program, str(out / 'main.mlp.bf16.frozen.json'), True, False, False)


if __name__ == '__main__':
    main()
