#!/usr/bin/env python3
"""Writes the op lists and device profiles of the precision pass.

usage: gen_amp_lists.py CAPABILITIES OUTDIR

CAPABILITIES holds what unmodified PaddlePaddle wheels say of themselves, as JSON:
  g2.constants.json          paddlepaddle-gpu 2.6.2, the sets of paddle.amp.amp_lists and
                             paddle.static.amp.fp16_lists
  g2.kernels.GPU.*.json      the same wheel, core.op_supported_infos('GPU', dtype)
  v2.kernels.CPU.*.json      paddlepaddle 2.6.2 (CPU), core.op_supported_infos('CPU', dtype)
"""
import json
import os
import sys

source, out = sys.argv[1:3]


def read(name):
    with open(os.path.join(source, name + '.json')) as f:
        return json.load(f)


def write(name, obj):
    with open(os.path.join(out, name), 'w') as f:
        f.write(show(obj, 0) + '\n')


def show(obj, depth):
    """JSON, lists filled to lines of 110 characters."""
    pad = ' ' * (depth + 1)
    if isinstance(obj, dict):
        rows = [f'{pad}{json.dumps(k)}: {show(v, depth + 1)}' for k, v in obj.items()]
        return '{\n' + ',\n'.join(rows) + f'\n{" " * depth}}}'
    if isinstance(obj, list) and len(obj) > 4:
        lines, line = [], pad
        for i, item in enumerate(obj):
            text = json.dumps(item) + (',' if i + 1 < len(obj) else '')
            if len(line) + len(text) > 110:
                lines.append(line.rstrip())
                line = pad
            line += text + ' '
        return '[\n' + '\n'.join(lines + [line.rstrip()]) + f'\n{" " * depth}]'
    return json.dumps(obj)


c = read('g2.constants')
# Kinds that need no kernel of the type: control flow and what moves values about
# (paddle.static.amp.fp16_lists._get_sys_unsupported_list).
FREE = ['cast', 'conditional_block', 'conditional_block_infer', 'lod_array_length', 'select_input',
        'tensor_array_to_tensor', 'while', 'write_to_array']


def rule(table, kind):
    """The shorter way to say which of the probed slots stay float32."""
    kept = set(c[table][kind])
    if not kept:
        return None
    probed = set().union(*(c[t][k] for t in ('keep_fp32_input', 'keep_fp32_output') for k in c[t]))
    low = sorted(probed - kept)
    return {'all_but': low} if len(low) < len(kept) else {'only': sorted(kept)}


def rules(table):
    return {k: r for k in sorted(c[table]) if (r := rule(table, k))}


write('amp_lists.json', {
    'source': 'paddlepaddle-gpu 2.6.2: paddle.amp.amp_lists, paddle.static.amp.fp16_lists and fp16_utils',
    'white': c['FP16_WHITE_LIST'],
    'white_float16': c['only_supported_fp16_list'],
    'black': c['FP16_BLACK_LIST'],
    'extra_black': c['EXTRA_BLACK_LIST'],
    'gray': c['gray_list'],
    'kernel_free': FREE,
    'kept_inputs': rules('keep_fp32_input'),
    'kept_outputs': rules('keep_fp32_output'),
})
for device, tag, wheel in [('GPU', 'g2', 'paddlepaddle-gpu 2.6.2'), ('CPU', 'v2', 'paddlepaddle 2.6.2')]:
    half, brain = (read(f'{tag}.kernels.{device}.{d}') for d in ('fp16', 'bf16'))
    assert half['all'] == brain['all']
    # A kind may have a kernel in one library of the framework and none in the other; Paddle asks for "unsupported".
    write(f'device_{device.lower()}.json', {
        'name': device.lower(),
        'source': f"{wheel}: core.op_supported_infos('{device}', dtype)",
        'kinds': half['all'],
        'no_float16': half['unsupported'],
        'no_bfloat16': brain['unsupported'],
    })
