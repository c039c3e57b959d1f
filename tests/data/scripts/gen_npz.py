#!/usr/bin/env python
"""Write the NumPy archives of tests/data/ckpt/npz: gen_npz.py OUTDIR (any NumPy from 1.16 on)."""
import sys

import numpy as np

out = sys.argv[1]
arrays = {
    "image": (np.arange(12, dtype=np.float32) / 8).reshape(3, 4),
    "layer/0.w": np.array([1.5, -2.25], np.float16),
    "label": np.array([[3], [9]], np.int64),
    "scalar": np.float64(0.1),
    "mask": np.array([True, False, True]),
    "empty": np.zeros((0, 5), np.int32),
}
np.savez(f"{out}/feed.npz", **arrays)
np.savez_compressed(f"{out}/compressed.npz", **arrays)
np.savez(f"{out}/columns.npz", columns=np.asfortranarray(arrays["image"]))
np.savez(f"{out}/objects.npz", objects=np.array([{}, None], dtype=object))
np.savez(f"{out}/big_endian.npz", big=np.array([1, 2], ">f4"))
