"""Schedule: a kernel and the primitives that change it, each of them a method.

A primitive takes two lines here, an import and an attribute. A single import inside the class would
do, but mypy rejects it for decorated functions ("unsupported class scoped import"). The linter
reports it if one of the two is missing, and tests/schedule/test_refusals.py if both are.
"""

from __future__ import annotations

from tilewright.schedule.history import History
from tilewright.schedule.primitives import annotate as _annotate
from tilewright.schedule.primitives import atomic as _atomic
from tilewright.schedule.primitives import bind as _bind
from tilewright.schedule.primitives import blockize as _blockize
from tilewright.schedule.primitives import cache_read as _cache_read
from tilewright.schedule.primitives import cache_write as _cache_write
from tilewright.schedule.primitives import compute_at as _compute_at
from tilewright.schedule.primitives import compute_inline as _compute_inline
from tilewright.schedule.primitives import convert as _convert
from tilewright.schedule.primitives import decompose_reduction as _decompose_reduction
from tilewright.schedule.primitives import double_buffer as _double_buffer
from tilewright.schedule.primitives import duplicate as _duplicate
from tilewright.schedule.primitives import expand as _expand
from tilewright.schedule.primitives import fission as _fission
from tilewright.schedule.primitives import fold_storage as _fold_storage
from tilewright.schedule.primitives import fuse as _fuse
from tilewright.schedule.primitives import hoist_update as _hoist_update
from tilewright.schedule.primitives import merge as _merge
from tilewright.schedule.primitives import pack as _pack
from tilewright.schedule.primitives import pad as _pad
from tilewright.schedule.primitives import parallel as _parallel
from tilewright.schedule.primitives import partition_loop as _partition_loop
from tilewright.schedule.primitives import persist as _persist
from tilewright.schedule.primitives import pipeline as _pipeline
from tilewright.schedule.primitives import rename as _rename
from tilewright.schedule.primitives import reorder as _reorder
from tilewright.schedule.primitives import reshape as _reshape
from tilewright.schedule.primitives import reverse_compute_at as _reverse_compute_at
from tilewright.schedule.primitives import (
    reverse_compute_inline as _reverse_compute_inline,
)
from tilewright.schedule.primitives import rfactor as _rfactor
from tilewright.schedule.primitives import rotate as _rotate
from tilewright.schedule.primitives import serial as _serial
from tilewright.schedule.primitives import set_scope as _set_scope
from tilewright.schedule.primitives import skip as _skip
from tilewright.schedule.primitives import slide as _slide
from tilewright.schedule.primitives import specialize as _specialize
from tilewright.schedule.primitives import split as _split
from tilewright.schedule.primitives import split_scan as _split_scan
from tilewright.schedule.primitives import storage_align as _storage_align
from tilewright.schedule.primitives import store_at as _store_at
from tilewright.schedule.primitives import store_with as _store_with
from tilewright.schedule.primitives import swizzle as _swizzle
from tilewright.schedule.primitives import tensorize as _tensorize
from tilewright.schedule.primitives import tile as _tile
from tilewright.schedule.primitives import transform_layout as _transform_layout
from tilewright.schedule.primitives import unroll as _unroll
from tilewright.schedule.primitives import vectorize as _vectorize
from tilewright.schedule.primitives import vthread as _vthread


class Schedule(History):
    """Applies primitives to a kernel and records them.

    `kernel` is the current program (immutable), `trace` how it came about; `print(schedule)` shows
    the program. Loops and buffers are found by name or by handle (`loop`, `buffer`); the names that
    a primitive makes are returned. A method takes the arguments of the primitive of its name (in
    `schedule/primitives/`), without the kernel; that one's docstring is the full contract. Every
    method raises ScheduleError, and changes nothing, where it is illegal.
    """

    __slots__ = ()

    split = _split.split
    tile = _tile.tile
    fuse = _fuse.fuse
    reorder = _reorder.reorder
    vectorize = _vectorize.vectorize
    unroll = _unroll.unroll
    parallel = _parallel.parallel
    serial = _serial.serial
    bind = _bind.bind
    atomic = _atomic.atomic
    set_scope = _set_scope.set_scope
    pipeline = _pipeline.pipeline
    double_buffer = _double_buffer.double_buffer
    rotate = _rotate.rotate
    persist = _persist.persist
    vthread = _vthread.vthread
    annotate = _annotate.annotate
    rename = _rename.rename
    fission = _fission.fission
    decompose_reduction = _decompose_reduction.decompose_reduction
    hoist_update = _hoist_update.hoist_update
    merge = _merge.merge
    pad = _pad.pad
    skip = _skip.skip
    specialize = _specialize.specialize
    partition_loop = _partition_loop.partition_loop
    cache_write = _cache_write.cache_write
    cache_read = _cache_read.cache_read
    pack = _pack.pack
    expand = _expand.expand
    transform_layout = _transform_layout.transform_layout
    reshape = _reshape.reshape
    storage_align = _storage_align.storage_align
    swizzle = _swizzle.swizzle
    convert = _convert.convert
    compute_at = _compute_at.compute_at
    duplicate = _duplicate.duplicate
    reverse_compute_at = _reverse_compute_at.reverse_compute_at
    store_at = _store_at.store_at
    fold_storage = _fold_storage.fold_storage
    store_with = _store_with.store_with
    slide = _slide.slide
    compute_inline = _compute_inline.compute_inline
    reverse_compute_inline = _reverse_compute_inline.reverse_compute_inline
    blockize = _blockize.blockize
    tensorize = _tensorize.tensorize
    rfactor = _rfactor.rfactor
    split_scan = _split_scan.split_scan
