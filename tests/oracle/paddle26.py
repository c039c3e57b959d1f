"""How does the oracle drive real Paddle 2.6.2? Small programs as protobuf, a scope to read, its rounding as NumPy."""
import importlib.util
import os
import pathlib
import sys
import warnings

os.environ.setdefault('GLOG_minloglevel', '3')
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ['CUDA_VISIBLE_DEVICES'] = ''
warnings.filterwarnings('ignore')
import numpy as np  # noqa: E402
import paddle  # noqa: E402

sys.path.insert(0, str(pathlib.Path(importlib.util.find_spec('paddle').origin).parent / 'base' / 'proto'))
import framework_pb2 as pb  # noqa: E402

paddle.enable_static()
PLACE = paddle.CPUPlace()
F16, F32, BF16 = pb.VarType.FP16, pb.VarType.FP32, pb.VarType.BF16
LOW = {'fp16': F16, 'bf16': BF16}
NAMES = {F16: 'f16', F32: 'f32', BF16: 'bf16'}


# ---- programs


def add_op(block, kind, ins, outs, **attrs):
    """Appends an op; Python types give the attribute's kind."""
    op = block.ops.add(type=kind)
    for slots, rows in ((op.inputs, ins), (op.outputs, outs)):
        for name, args in rows.items():
            slots.add(parameter=name).arguments.extend(args)
    for name, value in attrs.items():
        a = op.attrs.add(name=name)
        if isinstance(value, bool):
            a.type, a.b = pb.BOOLEAN, value
        elif isinstance(value, int):
            a.type, a.i = pb.INT, value
        elif isinstance(value, float):
            a.type, a.f = pb.FLOAT, value
        elif isinstance(value, str):
            a.type, a.s = pb.STRING, value
        elif value and isinstance(value[0], str):
            a.type = pb.STRINGS
            a.strings.extend(value)
        else:
            a.type = pb.INTS
            a.ints.extend(value)
    return op


def add_var(block, name, dtype, shape, persistable):
    v = block.vars.add(name=name, persistable=persistable)
    v.type.type = pb.VarType.LOD_TENSOR
    v.type.lod_tensor.tensor.data_type = dtype
    v.type.lod_tensor.tensor.dims.extend(shape)
    v.type.lod_tensor.lod_level = 0
    return v


def program(variables, ops):
    """variables: (name, dtype, shape, persistable); ops: (kind, inputs, outputs, attributes)."""
    desc = pb.ProgramDesc()
    block = desc.blocks.add(idx=0, parent_idx=-1)
    for row in variables:
        add_var(block, *row)
    for kind, ins, outs, attrs in ops:
        add_op(block, kind, ins, outs, **attrs)
    return desc


def pairs(main):
    """[(parameter, master)] of the optimizer ops."""
    out = []
    for op in main.blocks[0].ops:
        slots = {s.parameter: s.arguments for s in op.inputs}
        out += zip(slots.get('Param', []), slots.get('MasterParam', []))
    return out


def declared(desc):
    return {v.name: v for v in desc.blocks[0].vars}


# ---- running


def executor():
    return paddle.static.Executor(PLACE)


def run(desc, scope, exe=None):
    """One `exe.run` of a program (a message or its bytes), by a fresh executor unless one is given."""
    data = desc if isinstance(desc, bytes) else desc.SerializeToString()
    with paddle.static.scope_guard(scope):
        (exe or executor()).run(paddle.static.Program.parse_from_string(data))


def put(scope, name, array):
    """Sets a tensor from outside; uint16 arrays are bfloat16 to Paddle."""
    scope.var(name).get_tensor().set(np.ascontiguousarray(array), PLACE)


def get(scope, name):
    """(dtype, flat bits): uint16 for 16-bit types, uint32 for float32."""
    var = scope.find_var(name)
    if var is None or not var.get_tensor()._is_initialized():
        raise KeyError(f'{name} is not in the scope')
    return bits(np.array(var.get_tensor()))


def bits(array):
    """(dtype, flat bits) of an array; uint16 is bfloat16."""
    a = np.ascontiguousarray(array).reshape(-1)
    kind = {'float16': F16, 'uint16': BF16, 'float32': F32}[str(a.dtype)]
    return kind, a.view(np.uint32 if kind == F32 else np.uint16)


# ---- its numbers


def widen(array):
    """Any of the three types to float32, exact."""
    a = np.asarray(array)
    if a.dtype == np.uint16:
        return (a.astype(np.uint32) << 16).view(np.float32).reshape(a.shape)
    return a.astype(np.float32)


def truncate(array, low):
    """float32 to 16 bits as the CPU `cast` of Paddle 2.6.2 does it: towards zero.

    float16: a magnitude above 65504 becomes infinity; subnormals are truncated; a NaN keeps the top ten
    bits of its payload, 1 when they are all zero. bfloat16: the upper half of the bits, whatever they are.
    """
    a = np.ascontiguousarray(array, np.float32)
    u = a.reshape(-1).view(np.uint32)
    if low == BF16:
        return (u >> 16).astype(np.uint16).reshape(a.shape)
    v, out = (u & 0x7fffffff).astype(np.int64), np.zeros(u.shape, np.int64)
    nan, sub = v > 0x7f800000, v < 0x38800000
    big = (v > 0x477fe000) & ~nan
    normal = ~(nan | sub | big)
    out[big] = 0x7c00
    out[nan] = 0x7c00 | np.maximum(1, (v[nan] >> 13) & 0x3ff)
    out[normal] = (v[normal] - 0x38000000) >> 13
    out[sub] = np.floor(v[sub].astype(np.uint32).view(np.float32).astype(np.float64) * 2.0 ** 24).astype(np.int64)
    return (out | ((u >> 16) & 0x8000)).astype(np.uint16).view(np.float16).reshape(a.shape)


def read_stream(path):
    """The tensor of a file that the `save` op wrote."""
    data = pathlib.Path(path).read_bytes()
    assert data[:12] == bytes(12), path  # version, no LoD
    size = int.from_bytes(data[16:20], 'little')
    desc = pb.VarType.TensorDesc.FromString(data[20:20 + size])
    dtype = {F16: np.float16, F32: np.float32, BF16: np.uint16}[desc.data_type]
    return np.frombuffer(data[20 + size:], dtype).reshape(tuple(desc.dims))
