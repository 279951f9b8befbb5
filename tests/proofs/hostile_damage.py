"""What may happen to a node's files: accidents of disks, of people, and of clever attackers.

Each kind of damage takes the dice, the node that is known and a copy of it to damage; it returns
what it did, in words. `KINDS` says how often each is tried.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from hostile_base import Base, Kept, segment_name
from lives import SEGMENT

from finomw.journal.format import (
    HEADER_SIZE,
    decode_segment_header,
    encode_record,
    record_size,
)

Damage = Callable[[random.Random, Base, Path], str]

FIELDS = {
    "length": (0, 4),
    "CRC": (4, 4),
    "LSN": (8, 8),
    "stamp": (16, 8),
    "CRC before": (24, 4),
    "attachment's length": (28, 4),
}
HOSTILE_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    1.5,
    "",
    "alice",
    "bob",
    "x" * 5_000,
    "\0",
    "../../etc",
    b"",
    b"\xff" * 40,
    [],
    {},
    [[]],
    {"n": -5},
    {"n": 2**63 - 1},
]


# The journal.


def _segments(path: Path) -> list[Path]:
    return sorted((path / "journal").glob("*.seg"))


def _patch(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(data)


def _flip(dice: random.Random, file: Path, start: int, length: int, bits: int = 1) -> str:
    """Flip bits within a part of a file; say which."""
    data = bytearray(file.read_bytes())
    places = []
    for _ in range(bits):
        at = start + dice.randrange(length)
        data[at] ^= 1 << dice.randrange(8)
        places.append(at)
    file.write_bytes(data)
    return f"{file.name}: flipped bits of the bytes {places}"


def flip_journal(dice: random.Random, base: Base, path: Path) -> str:
    file = dice.choice(_segments(path))
    return _flip(dice, file, 0, SEGMENT, dice.choice([1, 1, 2, 30]))


def flip_record(dice: random.Random, base: Base, path: Path) -> str:
    """Flip a bit of one record, in a field of its choice."""
    record = _some_record(dice, base)
    file = path / "journal" / segment_name(record.lsn - record.lsn % SEGMENT)
    field = dice.choice([*FIELDS, "body", "attachment", "padding"])
    start, length = FIELDS.get(field, (32, len(record.body)))
    if field == "attachment":
        start, length = 32 + len(record.body), 36 + len(record.attachment)
    if field == "padding" or start + length > len(record.data):
        start, length = len(record.data) - 8, 8
    return f"{field}: " + _flip(dice, file, record.lsn % SEGMENT + start, length)


def _some_record(dice: random.Random, base: Base) -> Kept:
    """Choose a record: any, or one near the tail or a segment's end."""
    late = [record for record in base.records if record.end > base.watermark - 9_000]
    return dice.choice(dice.choice([base.records, base.records, late]))


def flip_header(dice: random.Random, base: Base, path: Path) -> str:
    return _flip(dice, dice.choice(_segments(path)), 0, dice.choice([128, 128, HEADER_SIZE]))


def tear(dice: random.Random, base: Base, path: Path) -> str:
    """Lose sectors behind the watermark, as a power cut does; also behind the tail."""
    sector = dice.choice([8, 512, 4096])
    first = base.watermark // sector + (base.watermark % sector > 0)
    at = (first + dice.randrange(max(1, (base.tail + 6_000 - base.watermark) // sector))) * sector
    file = path / "journal" / segment_name(at - at % SEGMENT)
    what = dice.choice(["zeros", "noise"])
    data = bytes(sector) if what == "zeros" else dice.randbytes(sector)
    _patch(file, at % SEGMENT, data)
    return f"{file.name}: {what} in {sector} bytes at LSN {at}, watermark {base.watermark}"


def overwrite(dice: random.Random, base: Base, path: Path) -> str:
    """Put zeros, noise, or what stands elsewhere over a part of the journal."""
    source, file = dice.choice(_segments(path)), dice.choice(_segments(path))
    length = dice.choice([1, 8, 100, 512, 4096, 4096, 20_000])
    unit = dice.choice([1, 8, 512, 4096])
    at = dice.randrange(0, SEGMENT - length) // unit * unit
    other = dice.randrange(0, SEGMENT - length) // unit * unit
    what = dice.choice(["zeros", "noise", "a duplicate"])
    piece = source.read_bytes()[other : other + length]
    data = {"zeros": bytes(length), "noise": dice.randbytes(length), "a duplicate": piece}[what]
    _patch(file, at, data)
    return f"{file.name}: {what} over {length} bytes at {at} (from {source.name} at {other})"


def cut_segment(dice: random.Random, base: Base, path: Path) -> str:
    return _cut(dice, dice.choice(_segments(path)))


def _cut(dice: random.Random, file: Path) -> str:
    size = file.stat().st_size
    length = dice.choice([0, 1, 127, 128, size - 1, size + 1, size + 9_000, None, None, None])
    length = dice.randrange(size) if length is None else length
    os.truncate(file, length)
    return f"{file.name}: {length} of {size} bytes"


def shuffle_segments(dice: random.Random, base: Base, path: Path) -> str:
    """Remove, swap or copy whole segments, or bring foreign ones."""
    files = _segments(path)
    one, other = dice.sample(files, 2)
    match dice.choice(["remove", "swap", "copy", "foreign", "only this"]):
        case "remove":
            one.unlink()
            return f"{one.name}: removed"
        case "swap":
            first, second = one.read_bytes(), other.read_bytes()
            one.write_bytes(second)
            other.write_bytes(first)
            return f"{one.name} and {other.name}: swapped"
        case "copy":
            shutil.copy(other, one)
            return f"{one.name}: a copy of {other.name}"
        case "foreign":
            shutil.copy(base.foreign / "journal" / one.name, one)
            return f"{one.name}: another node's"
        case _:
            for file in files:
                if file != one:
                    file.unlink()
            return f"all but {one.name}: removed"


def add_names(dice: random.Random, base: Base, path: Path) -> str:
    """Put files beside the segments that look like some."""
    size = 16**16 // SEGMENT
    names = [
        "zzz.seg",
        ".seg",
        "1.seg",
        "-000000000000001.seg",
        "0000000000010000 (copy).seg",
        "0000000000010000.seg.1234.draft",
        f"{dice.randrange(1, SEGMENT):016x}.seg",
        f"{'FFFF0000':>016}.seg",
        f"{dice.randrange(6, size) * SEGMENT:016x}.seg",
        "00000000000é0000.seg",
    ]
    name = dice.choice(names)
    shutil.copy(dice.choice(_segments(path)), path / "journal" / name)
    return f"journal/{name}: added"


# Records forged by somebody who knows the format: every CRC is right.


def forge(dice: random.Random, base: Base, path: Path) -> str:
    """Change, drop, double or swap records, and write the chain anew from there on."""
    contents = [(record.body, record.stamp, record.attachment) for record in base.records]
    at = dice.randrange(len(contents))
    body, stamp, attachment = contents[at]
    what = dice.choice(["leaf"] * 8 + ["bytes", "nest", "cut", "drop", "double", "swap", "stamp"])
    if what == "leaf":
        document = msgspec.msgpack.decode(body)
        value = dice.choice([*HOSTILE_VALUES, "near"])
        place = _change_leaf(dice, document, value)
        what = f"{place} of {document[0][:4]!r}"
        contents[at] = (msgspec.msgpack.encode(document), stamp, attachment)
    elif what == "bytes":
        changed = bytearray(body)
        for _ in range(dice.choice([1, 1, 3])):
            changed[dice.randrange(len(body))] = dice.randrange(256)
        contents[at] = (bytes(changed), stamp, attachment)
    elif what == "nest":
        deep = b"\x91" * dice.choice([500, 30_000])
        wrapped = {"alone": deep, "behind": body[:1] + b"\x9f" + deep, "in": body[:3] + deep}
        contents[at] = (dice.choice(list(wrapped.values()))[:32_000], stamp, attachment)
    elif what == "cut":
        contents[at] = (body[: dice.randrange(1, len(body))], stamp, attachment)
    elif what == "drop":
        del contents[at]
    elif what == "double":
        contents.insert(dice.randrange(at, len(contents)), contents[at])
    elif what == "swap":
        other = min(at + dice.choice([1, 1, 30]), len(contents) - 1)
        contents[at], contents[other] = contents[other], contents[at]
    else:
        stamp = dice.choice([0, base.tail + 8, base.tail + 10**6, 2**63, 2**64 - 1])
        contents[at] = (body, stamp, attachment)
    _rewrite(path, contents)
    if dice.randrange(8):
        shutil.rmtree(path / "checkpoints")
    if dice.randrange(2):
        (path / "control").unlink()
    return f"record {at + 1} of {len(base.records)} forged: {what}"


def _change_leaf(dice: random.Random, document: Any, value: Any) -> str:
    """Replace one leaf of nested lists and dicts; return where, and by what."""
    place: list[Any] = []
    node, child = document, document
    while isinstance(child, list | dict) and child:
        node = child
        key = dice.choice(range(len(node)) if isinstance(node, list) else list(node))
        place.append(key)
        child = node[key]
    if value == "near":
        value = child + dice.choice([-1, 1, 100]) if isinstance(child, int) else f"{child}x"
    node[place[-1]] = value
    return f"{place}: {str(child)[:30]!r} is {str(value)[:30]!r}"


def _rewrite(path: Path, contents: list[tuple[bytes, int, bytes]]) -> None:
    """Write a journal of these records into the segments that are there."""
    files = _segments(path)
    data = [bytearray(file.read_bytes()[:HEADER_SIZE]) for file in files]
    seeds = [
        crc32(decode_segment_header(bytes(d), str(f), n * SEGMENT).salt)
        for n, (d, f) in enumerate(zip(data, files, strict=True))
    ]
    number, crc = 0, 0
    for body, stamp, attachment in contents:
        size = record_size(len(body), len(attachment))
        if len(data[number]) + size > SEGMENT:
            number += 1
        if number == len(data):
            break
        lsn = number * SEGMENT + len(data[number])
        record, crc = encode_record(seeds[number], lsn, stamp, crc, body, attachment)
        data[number] += record
    for file, written in zip(files, data, strict=True):
        file.write_bytes(bytes(written) + bytes(SEGMENT - len(written)))


# The other files.


def hurt_control(dice: random.Random, base: Base, path: Path) -> str:
    file = path / "control"
    match dice.choice(["word", "word", "word", "flip", "flip", "cut", "noise", "zeros", "gone"]):
        case "word":
            word = dice.choice([0, 1, 2, 4, 5, 6, 7, 8, 8, 512, 515, 515, 516, 517, 520])
            value = dice.choice([0, 1, 7, 257, 2**32, 2**60, 2**63, 2**64 - 1, base.tail + 8])
            _patch(file, word * 8, value.to_bytes(8, "little"))
            return f"control: word {word} is {value}"
        case "flip":
            return _flip(dice, file, 0, dice.choice([72, 4096 + 64]))
        case "cut":
            return _cut(dice, file)
        case "noise":
            at = dice.choice([0, 8, 4096])
            _patch(file, at, dice.randbytes(dice.choice([8, 64, 4096])))
            return f"control: noise at {at}"
        case "zeros":
            file.write_bytes(bytes(file.stat().st_size))
            return "control: zeros"
        case _:
            file.unlink()
            return "control: removed"


def hurt_node_file(dice: random.Random, base: Base, path: Path) -> str:
    file = path / "node.json"
    fields = json.loads(file.read_text())
    match dice.choice(
        ["field", "field", "field", "flip", "cut", "noise", "foreign", "odd", "gone"]
    ):
        case "field":
            field = dice.choice(list(fields))
            numbers = [0, -1, 1, 2, 4096, 65_537, 65_544, 131_072, 2**40, 2**63, 2**64, 10**30]
            texts = ["", "x" * 32, "A" * 32, "0" * 31, "0" * 32, "\u0660" * 32, None, 1.5, [], "1"]
            value = dice.choice([*numbers, *texts])
            file.write_text(json.dumps({**fields, field: value}))
            return f"node.json: {field} is {value!r}"
        case "flip":
            return _flip(dice, file, 0, file.stat().st_size)
        case "cut":
            return _cut(dice, file)
        case "noise":
            file.write_bytes(dice.randbytes(dice.randrange(200)))
            return "node.json: noise"
        case "foreign":
            shutil.copy(base.foreign / "node.json", file)
            return "node.json: another node's"
        case "odd":
            odd = ["[" * 100_000, '{"x":' * 50_000, "null", "[]", "\ufeff{}", '{"format":1e400}']
            odd.append(json.dumps({**fields, "more": json.loads("[" * 900 + "]" * 900)}))
            text = dice.choice(odd)
            file.write_text(text)
            return f"node.json: {text[:20]!r}"
        case _:
            file.unlink()
            return "node.json: removed"


def hurt_state(dice: random.Random, base: Base, path: Path) -> str:
    file = path / "state" / dice.choice(["data.mdb", "data.mdb", "data.mdb", "lock.mdb"])
    size = file.stat().st_size
    match dice.choice(["flip", "flip", "meta", "cut", "noise", "zeros", "page", "foreign", "gone"]):
        case "flip":
            return _flip(dice, file, 0, size, dice.choice([1, 20, 300]))
        case "meta":
            return _flip(dice, file, 0, min(size, 2 * 4096), dice.choice([1, 5]))
        case "cut":
            return _cut(dice, file)
        case "noise":
            at = dice.randrange(size)
            _patch(file, at, dice.randbytes(min(dice.choice([100, 4096, 100_000]), size - at)))
            return f"{file.name}: noise at {at} of {size}"
        case "zeros":
            at = dice.randrange(size) // 4096 * 4096
            _patch(file, at, bytes(min(4096, size - at)))
            return f"{file.name}: zeros at {at}"
        case "page":
            data = file.read_bytes()
            source, at = (dice.randrange(max(1, size // 4096)) * 4096 for _ in range(2))
            _patch(file, at, data[source : source + 4096])
            return f"{file.name}: the page at {source} stands at {at} too"
        case "foreign":
            shutil.copy(base.foreign / "state" / file.name, file)
            return f"{file.name}: another node's"
        case _:
            file.unlink()
            return f"{file.name}: removed"


def hurt_checkpoint(dice: random.Random, base: Base, path: Path) -> str:
    """Damage one checkpoint or all of them, in the copy, in the footer or whole."""
    files = sorted((path / "checkpoints").glob("*"))
    [foreign] = (base.foreign / "checkpoints").iterdir()
    did = []
    for file in dice.choice([[dice.choice(files)], files]):
        size = file.stat().st_size
        match dice.choice(["flip", "footer", "cut", "noise", "page", "swap", "foreign", "gone"]):
            case "flip":
                did.append(_flip(dice, file, 0, size, dice.choice([1, 20])))
            case "footer":
                did.append(_flip(dice, file, size - 4096, dice.choice([112, 4096])))
            case "cut":
                did.append(_cut(dice, file))
            case "noise":
                at = dice.randrange(size)
                _patch(file, at, dice.randbytes(min(5_000, size - at)))
                did.append(f"{file.name}: noise at {at}")
            case "page":
                source, at = (dice.randrange(size // 4096) * 4096 for _ in range(2))
                _patch(file, at, file.read_bytes()[source : source + 4096])
                did.append(f"{file.name}: the page at {source} stands at {at} too")
            case "swap":
                shutil.copy(dice.choice(files), path / "other")
                (path / "other").rename(file)
                did.append(f"{file.name}: perhaps another")
            case "foreign":
                shutil.copy(foreign, file)
                did.append(f"{file.name}: another node's")
            case _:
                shutil.copy(foreign, path / "checkpoints" / f"{2**48:016x}.mdb")
                did.append("a foreign checkpoint was added")
    return "; ".join(did)


def drop_old_segments(dice: random.Random, base: Base, path: Path) -> str:
    """Remove the segments that the oldest checkpoint stands for, then damage checkpoints."""
    [first, *_] = sorted((path / "checkpoints").glob("*"))
    for file in _segments(path):
        if int(file.stem, 16) + SEGMENT <= int(first.stem, 16):
            file.unlink()
    return "pruned; " + hurt_checkpoint(dice, base, path)


def hurt_locks(dice: random.Random, base: Base, path: Path) -> str:
    files = [path / "node.lock", path / "start.lock", path / "housekeeper.lock"]
    files += sorted((path / "workers").iterdir())
    file = dice.choice(files)
    file.write_bytes(dice.randbytes(100))
    return f"{file.name}: noise"


def replace_by_object(dice: random.Random, base: Base, path: Path) -> str:
    """Put something that is no file where a file belongs, or no directory where one belongs."""
    state = [path / "state" / name for name in ("data.mdb", "lock.mdb")]
    locks = [path / f"{name}.lock" for name in ("node", "start", "housekeeper")]
    next_lock = path / "workers" / "6.lock"
    names = [path / "control", path / "node.json", *state, *locks, next_lock, *_segments(path)]
    names += sorted((path / "checkpoints").glob("*"))
    names += [path / name for name in ("state", "journal", "workers", "checkpoints")]
    name = dice.choice(names)
    if name.is_dir():
        shutil.rmtree(name)
    else:
        name.unlink(missing_ok=True)
    kind = dice.choice(
        ["nothing", "a directory", "a fifo", "a link", "a socket", "a device", "file"]
    )
    match kind:
        case "a directory":
            name.mkdir()
            (name / "inside").mkdir()
        case "a fifo":
            os.mkfifo(name)
        case "a link":
            name.symlink_to(dice.choice([str(name), "nowhere", "/", "/dev/zero", "../control"]))
        case "a socket":
            with socket.socket(socket.AF_UNIX) as listener:
                here = os.open(name.parent, os.O_RDONLY)
                listener.bind(f"/proc/self/fd/{here}/{name.name}")
                os.close(here)
        case "a device":
            name.symlink_to("/dev/full")
        case "file":
            name.write_bytes(b"")
    return f"{name.relative_to(path)}: {kind}"


KINDS: dict[Damage, int] = {
    flip_journal: 6,
    flip_record: 16,
    flip_header: 5,
    tear: 10,
    overwrite: 12,
    cut_segment: 6,
    shuffle_segments: 5,
    add_names: 3,
    forge: 24,
    hurt_control: 9,
    hurt_node_file: 7,
    hurt_state: 12,
    hurt_checkpoint: 9,
    drop_old_segments: 6,
    hurt_locks: 2,
    replace_by_object: 9,
}
