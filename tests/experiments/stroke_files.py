"""Small files of handwriting: crosses of two strokes, of several sizes."""

import numpy as np


def crosses(count=30, seed=0):
    """Offsets, pen and begin of each of some characters."""
    random, offsets, pen, begins = np.random.RandomState(seed), [], [], [0]
    for i in range(count):
        size = 10 + 2 * random.rand()
        across = [[0, 0], [size, 0]] if i % 2 else [[0, 0], [size / 2, 0], [size / 2, 0]]
        down = [[-size / 2, -size / 2], [0, size]]
        offsets += across + down
        pen += [0] * (len(across) - 1) + [1, 0, 1]
        begins.append(len(pen))
    noise = 0.1 * random.randn(len(pen), 2)
    return np.float32(offsets + noise), np.uint8(pen), np.int64(begins)


def write_kanji(folder, **changed):
    """``kanjivg_rdp100.npz`` of crosses; an array by its name in ``changed`` is another."""
    arrays = {}
    for seed, part in enumerate(("train", "valid", "test")):
        found = crosses(30 if part == "train" else 8, seed)
        names = (f"{part}_{name}" for name in ("dxdy", "pen_up", "offsets"))
        arrays |= dict(zip(names, found, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "kanjivg_rdp100.npz"
    np.savez_compressed(path, **arrays | changed)
    return path


IAM = """<?xml version="1.0" encoding="ISO-8859-1"?>
<WhiteboardCaptureSession>
  <WhiteboardDescription><SensorLocation corner="top_left"/></WhiteboardDescription>
  <StrokeSet>
    <Stroke colour="black" start_time="1.5" end_time="1.7">
      <Point x="10" y="20" time="1.5"/><Point x="13" y="24" time="1.6"/>
    </Stroke>
    <Stroke colour="black" start_time="2" end_time="2"><Point x="5" y="24" time="2"/></Stroke>
  </StrokeSet>
</WhiteboardCaptureSession>
"""
