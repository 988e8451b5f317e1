"""The native calling convention, shared by the code generators and the loader.

Kernel:    void k(ptr ctx, ptr p0, ..., ptr pn-1, ptr workspace)     one pointer per parameter
Region:    void r(ptr closure, i64 thread, i64 begin, i64 end)       some iterations of a loop
Entry:     void e(ptr ctx, ptr table)                                a segment of a model
parallel:  void parallel(ptr ctx, ptr region, ptr closure, i64 extent)   runs 0 .. extent - 1, waits

`ctx` is an array of 64-bit slots, 64-byte aligned, one per running call. `table` is an array of
pointers: arena, constants, then the segment's inputs and outputs in order. `workspace` is the
kernel's scratch memory (its size is part of the compiled kernel's record). The numbers of threads
that run a region at the same time differ and are below CTX_THREADS.
"""

ABI_VERSION = 2

CTX_PARALLEL = 0  # address of `parallel`; a kernel calls it only if CTX_THREADS > 1
CTX_THREADS = 1  # that a parallel region may use, at least 1
CTX_STATUS = 2  # 0, or the first failure: (kernel number + 1) << 8 | code
CTX_PROFILE = 3  # address of u64[kernels + 1] cycle stamps, or 0
CTX_POOL = 4  # address of the pool's state
CTX_REPORT = 5  # address of what sanitized code reports, see below
CTX_SIZES = (
    6  # address of i64[sizes], in the order of the kernel's; unused where it has none
)
CTX_LOG = 7  # address of the log that `traced` writes, see below
CTX_SLOTS = 8

TABLE_ARENA = 0
TABLE_CONSTANTS = 1
TABLE_FIRST_VALUE = 2

STATUS_INDEX = 1  # an index read from data is out of range
STATUS_TILES = 2  # the system does not permit AMX tiles
STATUS_BOUNDS = 3  # sanitized code was about to access memory outside a buffer
NO_MEMORY = (
    -1
)  # what a C function returns whose scratch memory is refused, or not given
NO_PROCESSOR = -2  # that of a library which has no code for this processor
NOT_ALIGNED = -3  # that of a library whose workspace is not at a multiple of ALIGNMENT

# A report, in the workspace of the kernel: the address of a text that ends with 0, the count of
# numbers, and the numbers, which are i64 and take the places of the marks.
REPORT_SIZE = 256
REPORT_NUMBERS = REPORT_SIZE // 8 - 2
REPORT_MARK = "\x01"

# Begins the names of functions that call addresses of this process. An object that has one is
# never written to a file.
OF_PROCESS = "of_this_process."

ALIGNMENT = 64  # bytes; of the arena, constants, workspaces and every slot in them

# A log: how many parts of regions ran, how many have room, and of each the system's number of the
# thread, and the ticks at its begin and its end.
LOG_COUNT = 0
LOG_ROOM = 1
LOG_FIRST = 2
LOG_PART = 3

# The pool: one block of memory, 64-byte aligned and zero at first. Byte offsets; each field that
# one thread writes while others read has its own cache line.
POOL_BUSY = 0  # i32: a region is running; whoever finds 1 here runs everything itself
POOL_RIVALS = (
    4  # i32: those who do so now; the one with the workers leaves them a processor each
)
POOL_PENDING = 64  # i32: workers that have not finished the region
POOL_WAITING = 68  # i32: the caller sleeps on POOL_PENDING
POOL_REGION = 128  # ptr, then ptr closure and i64 extent and i64 participants
POOL_CLOSURE = 136
POOL_EXTENT = 144
POOL_PARTICIPANTS = 152
POOL_WORKERS = 192  # i64: workers that exist
POOL_SPIN = 200  # i64: a quarter of the ticks that a caller spins before it sleeps
POOL_RANGES = (
    232  # i64 per participant, a worker's size apart: the iterations that it has left
)
POOL_FIRST_WORKER = 256
POOL_WORKER_SIZE = 64

# One worker's line in the block; its address is the argument of the thread.
WORKER_TICKET = 0  # i32: one more for every region that the worker takes part in
WORKER_ASLEEP = 4  # i32: the worker sleeps on its ticket
WORKER_POOL = 8  # ptr to the block
WORKER_INDEX = 16  # i64: 1 for the first worker; the caller is participant 0
WORKER_CLAIM = 24  # i32: the last ticket that somebody took, the worker or the caller
WORKER_APART = (
    28  # i32: one more than the number of the processor that the worker keeps off
)
WORKER_THREAD = 32  # i64: the system's number of its thread, 0 until it runs
# At 40, its part of POOL_RANGES.
WORKER_AWAKE = 48  # i64: ticks that it waits for work before it sleeps

# What the pool's object defines: `parallel` as above, the thread function, and a clock.
POOL_PARALLEL_SYMBOL = (
    "tilewright_parallel"  # void(ptr ctx, ptr region, ptr closure, i64)
)
POOL_TRACED_SYMBOL = "tilewright_traced"  # as `parallel`; every part goes into the log
POOL_WORKER_SYMBOL = "tilewright_worker"  # ptr(ptr worker), never returns
POOL_TICKS_SYMBOL = "tilewright_ticks"  # i64(): the clock of CTX_PROFILE and the pool
