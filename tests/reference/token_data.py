"""Token files, and the order in which a training reads them, in plain Python.

The counterpart of trainer/data: token_file.h has the format, order.h the order.
"""

import pathlib

import numpy
import torch

MAGIC_UINT16, MAGIC_UINT32 = 20240520, 20240801  # of llm.c
HEADER_BYTES = 1024
IGNORED = -100  # a target that does not count in the loss
U64 = (1 << 64) - 1


def mix(value):
    """A hash of a number (the last step of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & U64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & U64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & U64
    return value ^ value >> 31


class Permutation:
    """A permutation of range(size): a Feistel network of 8 rounds; results that are too large go around again."""

    def __init__(self, size, key):
        self.size, self.half_bits, self.keys = size, 6, []
        while 1 << 2 * self.half_bits < size:
            self.half_bits += 1
        for _ in range(8):
            key = mix(key)
            self.keys.append(key)

    def encrypt(self, value):
        mask = (1 << self.half_bits) - 1
        left, right = value >> self.half_bits, value & mask
        for key in self.keys:
            left, right = right, left ^ mix(right ^ key) & mask
        return left << self.half_bits | right

    def __getitem__(self, position):
        value = self.encrypt(position)
        while value >= self.size:
            value = self.encrypt(value)
        return value


class Samples:
    """Sequences of `length` tokens of a file: inputs and targets, the targets one token later."""

    def __init__(self, path, length):
        path = pathlib.Path(path)
        header = numpy.fromfile(path, dtype="<i4", count=5)
        dtype = {MAGIC_UINT16: "<u2", MAGIC_UINT32: "<u4"}[int(header[0])]
        self.tokens = numpy.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES)
        self.counts = numpy.fromfile(f"{path}.mask", dtype=bool) if header[3] == 1 else None
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def read(self, numbers):
        """Inputs and targets of these samples, each [len(numbers), length]."""
        begins = [number * self.length for number in numbers]
        rows = numpy.stack([self.tokens[at : at + self.length + 1] for at in begins]).astype(numpy.int64)
        inputs, targets = rows[:, :-1].copy(), rows[:, 1:].copy()
        if self.counts is not None:
            counts = numpy.stack([self.counts[at + 1 : at + 1 + self.length] for at in begins])
            targets[~counts] = IGNORED
        return torch.from_numpy(inputs), torch.from_numpy(targets)


class Order:
    """Which samples a step reads: `global_batch` of them, in a new order in every epoch if `shuffle`."""

    def __init__(self, samples, global_batch, seed, shuffle):
        self.samples, self.global_batch, self.seed, self.shuffle = samples, global_batch, seed, shuffle

    def step(self, step):
        epoch, step = divmod(step, self.samples // self.global_batch)
        places = range(step * self.global_batch, (step + 1) * self.global_batch)
        if not self.shuffle:
            return list(places)
        permutation = Permutation(self.samples, mix(mix(self.seed) ^ epoch))
        return [permutation[place] for place in places]
