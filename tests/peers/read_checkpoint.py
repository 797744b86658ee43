"""read_checkpoint.py PATH [EXPECTED]: reads a checkpoint as docs/checkpoint_format.md specifies it, and lists it.

Written from that page alone, with the standard library. PATH is a checkpoint or the folder of a run. EXPECTED is a
folder with a file of plain bytes per tensor, and expected.json with what the manifest must hold besides; everything
must be there and equal. Tensors rng.* need no file. Hashes need the module xxhash or libxxhash; without both they are
not checked, and it says so.
"""

import ctypes
import ctypes.util
import json
import re
import sys
from math import prod
from pathlib import Path

BLOCK = 1 << 20
DTYPES = {1: "BOOL U8 I8 F8_E5M2 F8_E4M3", 2: "I16 U16 F16 BF16", 4: "I32 U32 F32", 8: "I64 U64 F64 C64"}
BYTES = {name: size for size, names in DTYPES.items() for name in names.split()}
STEP = re.compile(r"step-(\d{8}|[1-9]\d{8,})(?:\.([1-9]\d*))?")
CHECKED_END = re.compile(rb'"check": "([0-9a-f]{32})"\n}\n\Z')


class Damaged(Exception):
    pass


def require(holds, what):
    if not holds:
        raise Damaged(what)


def find_hash():
    """A function from bytes to 32 digits; None where there is no xxHash."""
    try:
        from xxhash import xxh3_128_hexdigest
        return xxh3_128_hexdigest
    except ImportError:
        pass
    name = ctypes.util.find_library("xxhash")
    if not name:
        return None

    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    function = ctypes.CDLL(name).XXH3_128bits
    function.restype, function.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]

    def digits(data):
        found = function(bytes(data), len(data))
        return f"{found.high:016x}{found.low:016x}"
    return digits


HASH = find_hash()


def check_hash(data, digits, what):
    require(re.fullmatch("[0-9a-f]{32}", digits), f"{what}: no hash")
    require(HASH is None or HASH(data) == digits, f"{what} is damaged")


def find(path):
    """The folder of the checkpoint that `path` means."""
    if (path / "manifest.json").exists():
        return path
    steps = {one.name: STEP.fullmatch(one.name) for one in path.iterdir() if (one / "manifest.json").exists()}
    steps = {name: (int(found[1]), int(found[2] or 0)) for name, found in steps.items() if found}
    require(steps, f"{path}: no checkpoint")
    latest = (path / "latest").read_text().strip("\n") if (path / "latest").exists() else ""
    return path / (latest if latest in steps else max(steps, key=steps.get))


def no_key_twice(pairs):
    require(len(dict(pairs)) == len(pairs), "a key is there twice")
    return dict(pairs)


def is_count(number, most=2**63 - 1):
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= most


def read_manifest(path):
    data = path.read_bytes()
    end = CHECKED_END.search(data)
    require(end, f"{path} does not end with its hash")
    check_hash(data[:end.start(1)], end[1].decode(), path)
    manifest = json.loads(data, object_pairs_hook=no_key_twice)
    require(manifest["format"] in (1, 2), f"{path}: format {manifest['format']}")
    require(manifest["block_bytes"] == BLOCK, f"{path}: another size of blocks")
    return manifest


class Checkpoint:
    def __init__(self, path):
        self.folder = find(Path(path))
        self.manifest = read_manifest(self.folder / "manifest.json")
        self.tensors, self.files = self.manifest["tensors"], self.manifest["files"]
        names = [file["name"] for file in self.files]
        require(len(set(names)) == len(names), "a file is there twice")
        for file in self.files:
            self.check_file(file)
        for name, tensor in self.tensors.items():
            self.check_tensor(name, tensor)
        for alias, name in self.manifest["aliases"].items():
            require(name in self.tensors and alias not in self.tensors, f"alias {alias}")

    def check_file(self, file):
        name = file["name"]
        require(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}", name), f"{name!r} is no name of a file")
        size = (self.folder / name).stat().st_size
        require(size == file["header_bytes"] + file["data_bytes"], f"{name} has {size} bytes")
        require(len(file["blocks"]) == 32 * -(-file["data_bytes"] // BLOCK), f"{name}: not a hash per block")
        with open(self.folder / name, "rb") as opened:
            check_hash(opened.read(file["header_bytes"]), file["header"], f"the header of {name}")

    def check_tensor(self, name, tensor):
        """That its boxes are runs in memory order, and hold every element once."""
        shape = tensor["shape"]
        require(tensor["dtype"] in BYTES and len(shape) <= 64 and all(map(is_count, shape)), name)
        require(not tensor.get("real_pairs") or (tensor["dtype"], shape[-1:]) == ("F64", [2]), f"{name}: no pairs")
        order = tensor.get("order", list(range(len(shape))))
        require(sorted(order) == list(range(len(shape))), f"{name}: order {order}")
        at = 0
        runs = []
        for box in tensor["boxes"]:
            require(len(box) == 2 + 2 * len(shape) and all(map(is_count, box)), f"{name}: box {box}")
            file, offset, start, extent = self.parts(box)
            require(file < len(self.files), f"{name}: no file {file}")
            end = offset + prod(extent) * BYTES[tensor["dtype"]]
            require(end <= self.files[file]["data_bytes"], f"{name}: box {box} ends behind its file")
            require(all(s + e <= n for s, e, n in zip(start, extent, shape)), f"{name}: box {box} lies outside")
            first = 0
            for d in order:
                first = first * shape[d] + start[d]
            runs.append((first, prod(extent)))
            partial = [d for d in order if extent[d] != shape[d]]
            outer = order[:order.index(partial[-1])] if partial else []
            require(all(extent[d] == 1 for d in outer), f"{name}: box {box} is no run")
        for first, numel in sorted(runs):
            require(first == at, f"{name}: boxes overlap or leave a hole")
            at += numel
        require(at == prod(shape) and (at > 0 or len(runs) == 1), f"{name}: {at} elements")

    @staticmethod
    def parts(box):
        n = (len(box) - 2) // 2
        return box[0], box[1], box[2:2 + n], box[2 + n:]

    def read_data(self, index, begin, end):
        """Bytes of a file behind its header, of blocks that were checked."""
        file = self.files[index]
        first, last = begin // BLOCK, -(-end // BLOCK)
        with open(self.folder / file["name"], "rb") as opened:
            opened.seek(file["header_bytes"] + first * BLOCK)
            data = opened.read(min(last * BLOCK, file["data_bytes"]) - first * BLOCK)
        for block in range(first, last):
            piece = data[(block - first) * BLOCK:(block - first + 1) * BLOCK]
            check_hash(piece, file["blocks"][32 * block:32 * block + 32], f"block {block} of {file['name']}")
        return data[begin - first * BLOCK:end - first * BLOCK]

    def read(self, name):
        """A tensor's bytes in row-major order."""
        tensor = self.tensors[name]
        shape, size = tensor["shape"], BYTES[tensor["dtype"]]
        strides = [size * prod(shape[d + 1:]) for d in range(len(shape))]
        whole = bytearray(size * prod(shape))
        for box in tensor["boxes"]:
            file, offset, start, extent = self.parts(box)
            data = memoryview(self.read_data(file, offset, offset + size * prod(extent)))
            row = size * prod(extent[-1:])
            places = [sum(s * stride for s, stride in zip(start, strides))]
            for count, stride in zip(extent[:-1], strides):
                places = [place + i * stride for place in places for i in range(count)]
            for i, place in enumerate(places if data else []):
                whole[place:place + row] = data[i * row:(i + 1) * row]
        return bytes(whole)


def compare(checkpoint, expected):
    facts = json.loads((expected / "expected.json").read_text())
    for key, value in facts.items():
        found = checkpoint.manifest
        for part in key.split("/"):
            found = found[part]
        require(found == value, f"{key} is {found}, not {value}")
    files = {one.name for one in expected.iterdir()} - {"expected.json"}
    tensors = {name for name in checkpoint.tensors if not name.startswith("rng.")}
    require(files == tensors, f"only one side has {sorted(files ^ tensors)}")
    for name in tensors:
        require(checkpoint.read(name) == (expected / name).read_bytes(), f"{name} differs")
    print(f"{len(tensors)} tensors and {len(facts)} facts are as expected")


def main(path, expected=None):
    checkpoint = Checkpoint(path)
    for name, tensor in checkpoint.tensors.items():
        print(f"{name}: {tensor['dtype']} {tensor['shape']}, {len(checkpoint.read(name))} bytes")
    if expected:
        compare(checkpoint, Path(expected))
    print("hashes were checked" if HASH else "hashes were NOT checked: there is no xxHash here")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Damaged as error:
        sys.exit(f"refused: {error}")
