#!/usr/bin/env python
"""Times Python's protobuf on a ProgramDesc file; prints one JSON line.

usage: proto.py FILE [RUNS]

Needs `protobuf` (4 or later, for upb) and framework_pb2 of paddlepaddle 2.6.2: installed beside, on PYTHONPATH,
or named by FRAMEWORK_PB2.
"""
import importlib.util
import json
import os
import pathlib
import resource
import sys
import time


def framework():
    path = os.environ.get('FRAMEWORK_PB2')
    if path is None:
        spec = importlib.util.find_spec('framework_pb2')
        if spec is None:
            paddle = importlib.util.find_spec('paddle')
            if paddle is None:
                sys.exit('no framework_pb2: set FRAMEWORK_PB2')
            path = pathlib.Path(paddle.origin).parent / 'base' / 'proto' / 'framework_pb2.py'
        else:
            path = spec.origin
    spec = importlib.util.spec_from_file_location('framework_pb2', str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def median(times):
    return sorted(times)[len(times) // 2]


def main():
    import google.protobuf
    from google.protobuf.internal import api_implementation
    pb = framework()
    with open(sys.argv[1], 'rb') as f:
        data = f.read()
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    decode, encode, equal = [], [], True
    for _ in range(runs):
        start = time.perf_counter()
        program = pb.ProgramDesc()
        program.ParseFromString(data)
        middle = time.perf_counter()
        out = program.SerializeToString()
        end = time.perf_counter()
        decode.append(middle - start)
        encode.append(end - middle)
        equal = equal and out == data
        del program, out
    mb = len(data) / 1e6
    print(json.dumps({
        'lib': f'python protobuf {google.protobuf.__version__} {api_implementation.Type()}',
        'mb': round(mb, 1),
        'decode_mbps': mb / median(decode),
        'encode_mbps': mb / median(encode),
        'bytes_equal': equal,
        'peak_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))


main()
