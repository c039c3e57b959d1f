#!/usr/bin/env python3
"""Write the expected values of checkpoint files as JSON: expected_to_json.py PART_DIR [FILE ...] > expected.json

PART_DIR is what gen_checkpoints.py wrote for one part (expected.json and expected.npz). Output:
{file: [{"name", "dtype", "shape", "hex"}]}, hex = the little-endian bytes of the array. Only the
named files, or those that exist in PART_DIR and have entries. Standard library only: an .npy file
is a short header (a Python literal) and the bytes.
"""
import ast
import json
import os
import struct
import sys
import zipfile


def npy(data):
    assert data[:6] == b'\x93NUMPY', data[:6]
    size, start = (struct.unpack('<H', data[8:10])[0], 10) if data[6] == 1 else (struct.unpack('<I', data[8:12])[0], 12)
    header = ast.literal_eval(data[start:start + size].decode('latin1'))
    assert not header['fortran_order'] or len(header['shape']) < 2, header
    assert header['descr'][0] in '<|', header
    return data[start + size:]


def main(part, wanted):
    files = json.load(open(os.path.join(part, 'expected.json')))
    arrays = zipfile.ZipFile(os.path.join(part, 'expected.npz'))
    out = {}
    for file, what in files.items():
        if 'entries' not in what or (wanted and file not in wanted):
            continue
        out[file] = [dict(name=e['name'], dtype=e['dtype'], shape=e['shape'],
                          hex=npy(arrays.read(e['key'] + '.npy')).hex()) for e in what['entries']]
    json.dump(out, sys.stdout, indent=0, ensure_ascii=False, sort_keys=True)
    print()


main(sys.argv[1], sys.argv[2:])
