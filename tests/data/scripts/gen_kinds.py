#!/usr/bin/env python
"""Writes ProgramDesc files that hold every field of framework.proto, by protobuf's own encoder.

usage: gen_kinds.py OUTDIR          (python with protobuf; framework_pb2.py of paddlepaddle 2.6.2 on PYTHONPATH)

  kinds.pb     every attribute kind with edge values, every kind of variable, flags present and false
  unknown.pb   the same with fields that no Paddle has, in every message, where protobuf writes them
"""
import os
import struct
import sys

import framework_pb2 as pb

NAN = struct.unpack('<f', bytes.fromhex('0100a07f'))[0]
INTS = [0, 1, -1, 127, 128, 2**31 - 1, -2**31]
LONGS = INTS + [2**63 - 1, -2**63]
FLOATS = [0.0, -0.0, 1.5, float('inf'), float('-inf'), 1e-45, NAN]
DOUBLES = FLOATS + [5e-324, 1.7976931348623157e308]
TEXTS = ['', 'a', 'größe', '行\n"quoted"', 'x' * 300]


def attr(op, kind, name, **fields):
    a = op.attrs.add(name=name, type=getattr(pb, kind))
    for key, value in fields.items():
        if isinstance(value, list):
            getattr(a, key).extend(value)
        else:
            setattr(a, key, value)
    return a


def scalars(a_list):
    a_list.add(type=pb.Scalar.BOOLEAN, b=True)
    a_list.add(type=pb.Scalar.LONG, i=-5)
    a_list.add(type=pb.Scalar.FLOAT64, r=-0.0)
    c = a_list.add(type=pb.Scalar.COMPLEX128)
    c.c.r, c.c.i = 1.0, -2.0


def build():
    p = pb.ProgramDesc()
    b = p.blocks.add(idx=0, parent_idx=-1)
    for name, number in pb.VarType.Type.items():
        v = b.vars.add(name=f'kind_{name}')
        v.type.type = number
        if name == 'LOD_TENSOR':
            v.type.lod_tensor.tensor.data_type = pb.VarType.BF16
            v.type.lod_tensor.tensor.dims.extend([-1, 3, 2**40])
            v.type.lod_tensor.lod_level = 2
        elif name == 'LOD_TENSOR_ARRAY':
            v.type.tensor_array.tensor.data_type = pb.VarType.FP16
            v.type.tensor_array.tensor.dims.extend([7])
        elif name == 'SELECTED_ROWS':
            v.type.selected_rows.data_type = pb.VarType.FP64
            v.type.selected_rows.dims.extend([1, 0])
        elif name == 'READER':
            t = v.type.reader.lod_tensor.add()
            t.tensor.data_type = pb.VarType.INT64
            t.lod_level = 1
        elif name == 'TUPLE':
            v.type.tuple.element_type.extend([5, 7])
        elif name in ('STRING', 'STRINGS', 'VOCAB', 'SPARSE_COO', 'SPARSE_CSR'):
            t = getattr(v.type, name.lower())
            t.data_type = pb.VarType.PSTRING
            t.dims.extend([4])
    for i in range(81):
        v = b.vars.add(name=f'flags_{i}')
        v.type.type = pb.VarType.LOD_TENSOR
        v.type.lod_tensor.tensor.data_type = pb.VarType.FP32
        for k, flag in enumerate(('persistable', 'need_check_feed', 'is_parameter', 'stop_gradient')):
            state = i // 3**k % 3
            if state:
                setattr(v, flag, state == 2)
    v = b.vars.add(name='no_tensor')
    v.type.type = pb.VarType.LOD_TENSOR
    v = b.vars.add(name='with_attrs')
    v.type.type = pb.VarType.RAW
    v.attrs.add(name='a', type=pb.INT, i=3)
    v.attrs.add(name='b', type=pb.STRING, s='text')

    op = b.ops.add(type='every_kind')
    op.inputs.add(parameter='X', arguments=['kind_LOD_TENSOR', '', 'größe'])
    op.inputs.add(parameter='Empty')
    op.outputs.add(parameter='Out', arguments=['x' * 200])
    for i, v in enumerate(INTS):
        attr(op, 'INT', f'int_{i}', i=v)
        attr(op, 'BLOCK', f'block_{i}', block_idx=v)
    for i, v in enumerate(LONGS):
        attr(op, 'LONG', f'long_{i}', l=v)
    for i, v in enumerate(FLOATS):
        attr(op, 'FLOAT', f'float_{i}', f=v)
    for i, v in enumerate(DOUBLES):
        attr(op, 'FLOAT64', f'double_{i}', float64=v)
    for i, v in enumerate(TEXTS):
        attr(op, 'STRING', f'string_{i}', s=v)
        attr(op, 'VAR', f'var_{i}', var_name=v)
    for v in (False, True):
        attr(op, 'BOOLEAN', f'bool_{v}', b=v)
    for kind, field, values in (
        ('INTS', 'ints', INTS), ('BLOCKS', 'blocks_idx', INTS), ('LONGS', 'longs', LONGS), ('FLOATS', 'floats', FLOATS),
        ('FLOAT64S', 'float64s', DOUBLES), ('STRINGS', 'strings', TEXTS), ('VARS', 'vars_name', TEXTS),
        ('BOOLEANS', 'bools', [True, False])):
        attr(op, kind, f'{field}_none')
        attr(op, kind, f'{field}_all', **{field: values})
    attr(op, 'SCALARS', 'scalars_none')
    scalars(attr(op, 'SCALARS', 'scalars_all').scalars)
    every = pb.OpDesc.Attr()
    scalars(every.scalars)
    for i, s in enumerate(every.scalars):
        attr(op, 'SCALAR', f'scalar_{i}').scalar.CopyFrom(s)
    for target in (False, True):
        b.ops.add(type='target', is_target=target)
    c = p.blocks.add(idx=1, parent_idx=0, forward_block_idx=-1)
    c.ops.add(type='nop')
    p.version.version = 0
    pair = p.op_version_map.pair.add(op_name='every_kind')
    pair.op_version.version = 2
    return p


def add_unknown(message):
    """Gives every message below `message`, and itself, a varint, a string, a fixed word and a group of number 1000."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for m in (value if hasattr(value, '__len__') else [value]):
                add_unknown(m)
    tag = lambda wire: bytes([0xC0 | wire, 0x3E])
    message.MergeFromString(tag(0) + b'\x07' + tag(2) + b'\x02hi' + tag(5) + b'abcd' + tag(3) + b'\x08\x01' + tag(4))


out = sys.argv[1]
program = build()
with open(os.path.join(out, 'kinds.pb'), 'wb') as f:
    f.write(program.SerializeToString())
add_unknown(program)
with open(os.path.join(out, 'unknown.pb'), 'wb') as f:
    f.write(program.SerializeToString())
