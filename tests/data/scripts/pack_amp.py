#!/usr/bin/env python3
"""Packs the forward programs of a corpus into one file: pack_amp.py CORPUS OUT.zst   (needs the zstd tool)

CORPUS has a folder a model, as gen_programs.py writes it. The packed file is zstd over: the length of a JSON
list as 4 bytes (little endian), the list ([model, name, length] of each file), the files one after another.
"""
import glob
import json
import os
import struct
import subprocess
import sys

corpus, out = sys.argv[1:3]
index, body = [], b''
for model in sorted(os.listdir(corpus)):
    names = sorted(glob.glob(os.path.join(corpus, model, 'fwd.*.pb')))
    names = [n for n in names if not n.endswith('.raw.pb')]
    files = {os.path.basename(n): open(n, 'rb').read() for n in names}
    config = json.load(open(os.path.join(corpus, model, 'config.json')))
    returned = json.load(open(os.path.join(corpus, model, 'to_fp16_var_names.json')))
    keep = lambda d: json.dumps({k: v for k, v in d.items() if k.startswith('fwd.')}, sort_keys=True).encode()
    files['config.json'], files['to_fp16_var_names.json'] = keep(config), keep(returned)
    for name, data in sorted(files.items()):
        index.append([model, name, len(data)])
        body += data
head = json.dumps(index).encode()
packed = subprocess.run(['zstd', '-19', '-c', '-'], input=struct.pack('<I', len(head)) + head + body,
                        stdout=subprocess.PIPE, check=True).stdout
open(out, 'wb').write(packed)
print(f'{len(index)} files, {len(body)} bytes, packed {len(packed)}')
