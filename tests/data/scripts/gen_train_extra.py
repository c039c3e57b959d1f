#!/usr/bin/env python3
"""Float32 training programs of odd forms, by PaddlePaddle 2.6.2: gen_train_extra.py OUT.zst   (needs the zstd tool)

Two optimizers over shared weights, sparse gradients, ops behind the optimizer, a recurrent layer, a gradient penalty,
values with many readers, LARS, gradient merging. Call stacks are removed. The form is that of pack_amp.py.
"""
import json
import struct
import subprocess
import sys
import warnings

import paddle

warnings.filterwarnings('ignore')
import paddle.nn.functional as F  # noqa: E402
from paddle import nn, static  # noqa: E402
paddle.enable_static()
index, body = [], []
def param(shape,name,init=None):
    return static.create_parameter(shape,'float32',name=name,default_initializer=init)
def strip(program):
    from paddle.base import core
    d=core.ProgramDesc(program.desc)
    for b in range(d.num_blocks()):
        bl=d.block(b)
        for i in range(bl.op_size()):
            if bl.op(i).has_attr('op_callstack'): bl.op(i).remove_attr('op_callstack')
    return d.serialize_to_string()
def build(name, fn):
    main,start=static.Program(),static.Program()
    with paddle.utils.unique_name.guard(), static.program_guard(main,start):
        fn()
    for part, program in (('main', main), ('startup', start)):
        data = strip(program)
        index.append([name, part + '.pb', len(data)])
        body.append(data)
def gan():
    z=static.data('z',[4,8],'float32'); x=static.data('x',[4,16],'float32')
    g1=param([8,16],'g1'); g2=param([16,16],'g2'); d1=param([16,16],'d1'); d2=param([16,1],'d2')
    def G(z): return paddle.tanh(paddle.matmul(F.relu(paddle.matmul(z,g1)),g2))
    def D(x): return paddle.matmul(F.relu(paddle.matmul(x,d1)),d2)
    fake=G(z)
    dl=F.sigmoid(D(fake)).mean()+F.sigmoid(-D(x)).mean()
    gl=F.sigmoid(-D(fake)).mean()
    paddle.optimizer.Adam(0.001).minimize(dl,parameters=['d1','d2'])
    paddle.optimizer.Adam(0.001).minimize(gl,parameters=['g1','g2'])
build('gan',gan)
def sparse():
    ids=static.data('ids',[4,6],'int64'); y=static.data('y',[4,1],'int64')
    e=static.nn.embedding(ids,(20,8),is_sparse=True).sum(1)
    loss=F.cross_entropy(static.nn.fc(e,4),y).mean()
    paddle.optimizer.Adam(0.001,lazy_mode=True,grad_clip=nn.ClipGradByGlobalNorm(1.0)).minimize(loss)
build('sparse',sparse)
def after():
    x=static.data('x',[4,8],'float32'); y=static.data('y',[4,1],'int64')
    h=static.nn.fc(x,16,activation='relu'); logits=static.nn.fc(h,4)
    loss=F.cross_entropy(logits,y).mean()
    paddle.optimizer.Momentum(0.01,weight_decay=paddle.regularizer.L2Decay(1e-4)).minimize(loss)
    static.accuracy(F.softmax(logits),y)
    ema=static.ExponentialMovingAverage(0.99); ema.update()
build('after',after)
def gru():
    ids=static.data('ids',[4,10],'int64'); y=static.data('y',[4,1],'int64')
    class M(nn.Layer):
        def __init__(s):
            super().__init__(); s.e=nn.Embedding(50,16); s.r=nn.GRU(16,24,direction='bidirect'); s.f=nn.Linear(48,3)
        def forward(s,i): o,_=s.r(s.e(i)); return s.f(o.mean(1))
    loss=F.cross_entropy(M()(ids),y).mean()
    paddle.optimizer.SGD(0.01).minimize(loss)
build('gru',gru)
def gp():
    x=static.data('x',[4,8],'float32'); x.stop_gradient=False
    w1=param([8,16],'w1'); w2=param([16,1],'w2')
    o=paddle.matmul(paddle.tanh(paddle.matmul(x,w1)),w2)
    g=static.gradients([o],[x])[0]
    loss=o.mean()+((g*g).sum(1)-1.0).square().mean()
    paddle.optimizer.Adam(0.001).minimize(loss)
build('gp',gp)
def twoloss():
    x=static.data('x',[4,8],'float32'); y=static.data('y',[4,1],'float32')
    h=static.nn.fc(x,16,activation='relu'); a=static.nn.fc(h,1)
    l=paddle.mean((a-y)**2)+0.1*paddle.mean(paddle.abs(h)); 
    h2=paddle.concat([h,h*2.0],1); parts=paddle.split(h2,4,1); s=paddle.stack(parts,0).sum(0); l=l+F.softmax(s).square().mean()+ (h*h).mean()
    paddle.optimizer.AdamW(0.001,weight_decay=0.1,grad_clip=nn.ClipGradByGlobalNorm(1.0)).minimize(l)
build('fanout',twoloss)
def lars():
    x=static.data('x',[4,8],'float32'); y=static.data('y',[4,1],'float32')
    l=paddle.mean((static.nn.fc(static.nn.fc(x,16,activation='relu'),1)-y)**2)
    from paddle.incubate.optimizer import LarsMomentumOptimizer
    LarsMomentumOptimizer(0.01,0.9).minimize(l)
build('lars',lars)
def merge():
    x=static.data('x',[4,8],'float32'); y=static.data('y',[4,1],'float32')
    l=paddle.mean((static.nn.fc(static.nn.fc(x,16,activation='relu'),1)-y)**2)
    paddle.incubate.optimizer.GradientMergeOptimizer(paddle.optimizer.SGD(0.01),k_steps=2).minimize(l)
build('gradmerge',merge)
head = json.dumps(index).encode()
packed = subprocess.run(['zstd', '-19', '-c', '-'], input=struct.pack('<I', len(head)) + head + b''.join(body),
                        stdout=subprocess.PIPE, check=True).stdout
open(sys.argv[1], 'wb').write(packed)
print(f'{len(index)} files, packed {len(packed)}')
