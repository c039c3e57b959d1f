#!/usr/bin/env python
"""Times Paddle's rewrite to mixed precision; prints one JSON line.

usage: amp.py N_OPS O1|O2    (python with paddlepaddle 2.6.2; a build without GPU support works, with the lists of
one: it counts every kind as unsupported, so that the lists of the GPU build are put in their place)

Layers of mul, elementwise_add, relu, layer_norm, built with Paddle's own API, untouched `cast_model_to_fp16`.
"""
import json
import os
import pathlib
import sys
import time

os.environ.setdefault('GLOG_minloglevel', '3')
import paddle  # noqa: E402
import paddle.static as S  # noqa: E402
from paddle.base import core  # noqa: E402
from paddle.static.amp.fp16_lists import AutoMixedPrecisionLists  # noqa: E402
from paddle.static.amp.fp16_utils import cast_model_to_fp16  # noqa: E402

n, level = int(sys.argv[1]), sys.argv[2]
paddle.enable_static()
if not core.is_compiled_with_cuda():
    data = pathlib.Path(__file__).parent.parent.parent / 'src' / 'ops' / 'data' / 'device_gpu.json'
    profile = json.loads(data.read_text())
    kinds, no = set(profile['kinds']), set(profile['no_float16'])
    core.op_supported_infos = lambda device, dtype: (set(kinds), kinds - no, set(no))
main, startup = S.Program(), S.Program()
with S.program_guard(main, startup), paddle.utils.unique_name.guard():
    x = S.data('x', [-1, 8], 'float32')
    for _ in range(n // 4):
        x = S.nn.fc(x, 8, activation='relu')
        x = S.nn.layer_norm(x, begin_norm_axis=1)
ops = len(main.global_block().ops)
start = time.perf_counter()
cast_model_to_fp16(main, AutoMixedPrecisionLists(dtype='float16'), use_fp16_guard=False, level=level)
print(json.dumps({'tool': f'paddle {paddle.__version__}', 'ops': ops, 'out': len(main.global_block().ops),
                  'rewrite_s': time.perf_counter() - start}))
