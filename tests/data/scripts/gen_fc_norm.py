#!/usr/bin/env python
"""Writes a small forward program (two times fc, relu, layer_norm) as Paddle builds it, call stacks removed.

usage: gen_fc_norm.py OUT.pb        (python with paddlepaddle 2.6.2)
The codec bench repeats the second layer of this file up to the size that it wants.
"""
import sys

import paddle
import paddle.static as static
from paddle.base.proto import framework_pb2 as pb

paddle.enable_static()
main, startup = static.Program(), static.Program()
with static.program_guard(main, startup), paddle.utils.unique_name.guard():
    x = static.data('x', [-1, 8], 'float32')
    for _ in range(2):
        x = static.nn.fc(x, 8, activation='relu')
        x = static.nn.layer_norm(x, begin_norm_axis=1)
program = pb.ProgramDesc()
program.ParseFromString(main.desc.serialize_to_string())
for op in program.blocks[0].ops:
    for attr in [a for a in op.attrs if a.name == 'op_callstack']:
        op.attrs.remove(attr)
with open(sys.argv[1], 'wb') as f:
    f.write(program.SerializeToString())
