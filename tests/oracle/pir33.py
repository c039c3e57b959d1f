"""What does real Paddle 3.3.1 (PIR, static mode, CPU) make of programs: building, reading, running, cells.

Used by pir.py, pir_facts.py and pir_programs.py; run with paddlepaddle==3.3.1.
"""

import json
import pathlib
import struct

import numpy as np
import paddle

paddle.enable_static()
core = paddle.base.core
CPU = paddle.CPUPlace()


def narrow(array):
    """float32 to the bits of bfloat16, nearest even."""
    bits = np.ascontiguousarray(array, 'float32').view('uint32').astype('uint64')
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype('uint16')


def widen(bits):
    return (np.asarray(bits, 'uint16').astype('uint32') << 16).view('float32')


def read(path):
    """A program from its JSON file."""
    program = paddle.static.Program()
    core.deserialize_pir_program(str(path), program)
    return program


def run(program, scope, feed=None, fetch=()):
    with paddle.static.scope_guard(scope):
        return paddle.static.Executor(CPU).run(program, feed=feed or {}, fetch_list=list(fetch))


def put(scope, name, array):
    """An array into a cell; uint16 is taken for bfloat16 by Paddle."""
    scope.var(name).get_tensor().set(array, CPU)


def get(scope, name):
    """dtype and bits of a cell, `None` when it has no value."""
    var = scope.find_var(name)
    if var is None or not var.get_tensor()._is_initialized():
        return None
    array = np.asarray(var.get_tensor())
    return ('bf16', array) if array.dtype == np.uint16 else ('f32', array)


def safetensors(path, tensors):
    """Writes {name: array}; uint16 is bfloat16."""
    header, data = {}, b''
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        dtype = {'uint16': 'BF16', 'float32': 'F32', 'int64': 'I64'}[str(array.dtype)]
        header[name] = {'dtype': dtype, 'shape': list(array.shape), 'data_offsets': [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack('<Q', len(head)) + head + data)


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack('<Q', raw[:8])[0]
    out = {}
    for name, e in json.loads(raw[8:8 + n]).items():
        if name != '__metadata__':
            dtype = {'F32': 'float32', 'BF16': 'uint16', 'I64': 'int64'}[e['dtype']]
            start, end = e['data_offsets']
            out[name] = np.frombuffer(raw[8 + n + start:8 + n + end], dtype).reshape(e['shape'])
    return out


def build(model, low=True, train=True):
    """startup, main and the loss of a job: SGD if it trains, with masters and bfloat16 when `low`."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        layers, forward = model()
        optimizer = paddle.optimizer.SGD(0.1, parameters=layers.parameters(), multi_precision=low)
        if low:
            layers, optimizer = paddle.amp.decorate(layers, optimizer, level='O2', dtype='bfloat16')
        loss = forward(layers, 'bfloat16' if low else 'float32')
        if train:
            optimizer.minimize(loss)
    return startup, main, loss


def mlp():
    nn, functional = paddle.nn, paddle.nn.functional
    layers = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(layers, dtype):
        x, y = paddle.static.data('x', [4, 8], 'float32'), paddle.static.data('y', [4, 1], 'int64')
        # 3.3.1 reads a null pointer in the bf16 matmul_grad of an input that needs no gradient (oneDNN, CPU).
        x.stop_gradient = False
        return functional.cross_entropy(layers(x.astype(dtype)).astype('float32'), y)

    return layers, forward
