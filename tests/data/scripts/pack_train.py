#!/usr/bin/env python3
"""Packs training programs of a corpus into one file: pack_train.py CORPUS OUT.zst   (needs the zstd tool)

CORPUS has a folder a model, as gen_programs.py writes it. All variants of the models in FULL, a few of the others;
float32 programs and startup programs of each. The form is that of pack_amp.py.
"""
import glob
import json
import os
import struct
import subprocess
import sys

FULL = {'cond', 'fp16_guard', 'grad_clip', 'mixed_dtype', 'mlp', 'shared_param', 'weight_decay', 'while_loop'}
LARGE = {'resnet18', 'resnet50', 'mobilenet_v2', 'vgg11', 'bert_mini'}
FEW = ('train.O1.fp16.pb', 'train.O1.bf16.pb', 'train.O2.fp16.pb', 'train.O2.bf16.noscale.pb', 'train.O2.fp16.mgrad.pb',
       'train.O2.fp16.nomw.pb', 'train.O2.fp16.custom.pb', 'train.O2.fp16.adamw.pb', 'train.O2.fp16.momentum.pb')

corpus, out = sys.argv[1:3]
index, body = [], b''
for model in sorted(set(os.listdir(corpus)) - LARGE):
    folder = os.path.join(corpus, model)
    config = json.load(open(os.path.join(folder, 'config.json')))
    stored = {os.path.basename(n) for n in glob.glob(os.path.join(folder, '*.pb'))}
    keep, files = {}, set()
    for name, call in config.items():
        if '.raw.' in name or not name.startswith('train.'):
            continue
        if name.startswith('train.fp32') or model in FULL or name in FEW:
            for n in (name, 'startup.' + name):
                if n in config:
                    keep[n] = config[n]
                    files.add(config[n].get('same_bytes_as', n))
    rows = {n: open(os.path.join(folder, n), 'rb').read() for n in files & stored}
    rows['config.json'] = json.dumps(keep, sort_keys=True).encode()
    for name, data in sorted(rows.items()):
        index.append([model, name, len(data)])
        body += data
head = json.dumps(index).encode()
packed = subprocess.run(['zstd', '-19', '--long=25', '-c', '-'], input=struct.pack('<I', len(head)) + head + body,
                        stdout=subprocess.PIPE, check=True).stdout
open(out, 'wb').write(packed)
print(f'{len(index)} files, {len(body)} bytes, packed {len(packed)}')
