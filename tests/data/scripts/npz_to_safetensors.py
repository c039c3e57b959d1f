#!/usr/bin/env python3
"""Turn NumPy archives into safetensors files: npz_to_safetensors.py IN.npz OUT.safetensors ...

Standard library only. Takes little-endian C-order arrays of the types below.
"""
import ast
import json
import struct
import sys
import zipfile

DTYPES = {'<f4': 'F32', '<f8': 'F64', '<f2': 'F16', '<i4': 'I32', '<i8': 'I64', '|b1': 'BOOL', '|u1': 'U8'}


def npy(data):
    """-> dtype, shape, bytes of a .npy member"""
    assert data[:6] == b'\x93NUMPY'
    size, at = (struct.unpack('<H', data[8:10])[0], 10) if data[6] == 1 else (struct.unpack('<I', data[8:12])[0], 12)
    head = ast.literal_eval(data[at:at + size].decode('latin1'))
    assert not head['fortran_order'] or len(head['shape']) < 2
    return DTYPES[head['descr']], list(head['shape']), data[at + size:]


def convert(source, target):
    header, body = {}, b''
    with zipfile.ZipFile(source) as z:
        for member in sorted(z.namelist()):
            dtype, shape, data = npy(z.read(member))
            header[member[:-4]] = {'dtype': dtype, 'shape': shape, 'data_offsets': [len(body), len(body) + len(data)]}
            body += data
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(target, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + body)


args = sys.argv[1:]
for source, target in zip(args[::2], args[1::2]):
    convert(source, target)
