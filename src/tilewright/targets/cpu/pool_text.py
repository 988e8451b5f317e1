"""The thread pool's native half: `parallel` and the workers' loop, as LLVM IR.

The caller of `parallel` is participant 0. Each worker owns a ticket that the caller raises when the
worker takes part, so a worker that is not needed never wakes and can never enter a region twice.
Both sides spin for a short time and then sleep on a futex. A caller that finds the pool busy
(another Python thread, or a nested region) runs everything itself; the owner of the pool then
leaves one worker asleep per such caller, since the two would compete for a processor.

Every participant starts with an equal share of the iterations, so its caches mostly hold what it
wrote in the previous region. It repeatedly takes half of its remaining share; when that is empty,
it steals the second half of another participant's. So a processor that is slower than the others,
or shared with another program, does less of the work, and a worker that is not scheduled yet does
none. Taking costs one exchange, mostly of an uncontended word, and happens about log2(iterations)
times.

Before the region ends, the caller takes back unclaimed tickets: those workers find nothing to do.

Before a sleeping worker is woken, its affinity is set to exclude its caller's processor: systems
tend to wake a thread on its waker's processor, where it would have to wait for the caller. It may
use the other processors that the caller may use. A worker that arrives too late gets its affinity
set again, since the caller may have moved.

Memory order: raising a ticket publishes the region; lowering `pending` publishes its results. The
pairs (ticket, asleep) and (pending, waiting) are sequentially consistent: each side writes one and
then reads the other, so that no wake-up is lost. A range carries no data and needs no order; none
comes back with iterations that it once had, so no exchange takes an old word for a new one.
"""

from __future__ import annotations

TEXT = """\
source_filename = "pool"
target triple = "{triple}"

declare i64 @llvm.readcyclecounter()
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

define i64 @{POOL_TICKS_SYMBOL}() nounwind {{
  %now = {ticks}
  ret i64 %now
}}

define internal i64 @system(i64 %number, i64 %a, i64 %b, ptr %c) nounwind noinline {{
  %r = call i64 asm sideeffect {system}(i64 %number, i64 %a, i64 %b, ptr %c, i64 0)
  ret i64 %r
}}

define internal void @futex(ptr %word, i64 %operation, i64 %value) nounwind noinline {{
  %address = ptrtoint ptr %word to i64
  %number = inttoptr i64 %value to ptr
  %r = call i64 @system(i64 {futex}, i64 %address, i64 %operation, ptr %number)
  ret void
}}

; Have a worker run on what processors the caller may use, but not on the caller's own.
define internal void @keep_apart(ptr %worker) nounwind noinline {{
entry:
  %cpu.p = alloca i32
  %mask = alloca [16 x i64]
  %cpu.a = ptrtoint ptr %cpu.p to i64
  %failed = call i64 @system(i64 {getcpu}, i64 %cpu.a, i64 0, ptr null)
  %cpu = load i32, ptr %cpu.p
  %here = add i32 %cpu, 1
  %apart.p = getelementptr i8, ptr %worker, i64 {WORKER_APART}
  %apart = load i32, ptr %apart.p
  %thread.p = getelementptr i8, ptr %worker, i64 {WORKER_THREAD}
  %thread = load atomic i64, ptr %thread.p monotonic, align 8
  %good = icmp eq i64 %failed, 0
  %moved = icmp ne i32 %here, %apart
  %runs = icmp ne i64 %thread, 0
  %counted = icmp ult i32 %cpu, 1024
  %a = and i1 %good, %moved
  %b = and i1 %runs, %counted
  %c = and i1 %a, %b
  br i1 %c, label %ask, label %done
ask:
  store [16 x i64] zeroinitializer, ptr %mask
  %bytes = call i64 @system(i64 {getaffinity}, i64 0, i64 128, ptr %mask)
  %known = icmp sgt i64 %bytes, 0
  br i1 %known, label %clear, label %done
clear:
  %word = lshr i32 %cpu, 6
  %word.p = getelementptr i64, ptr %mask, i32 %word
  %place = and i32 %cpu, 63
  %place64 = zext i32 %place to i64
  %bit = shl i64 1, %place64
  %others = xor i64 %bit, -1
  %old = load i64, ptr %word.p
  %new = and i64 %old, %others
  store i64 %new, ptr %word.p
  br label %count
count:
  %n = phi i64 [ 0, %clear ], [ %n.next, %count ]
  %all = phi i64 [ 0, %clear ], [ %all.next, %count ]
  %part.p = getelementptr i64, ptr %mask, i64 %n
  %part = load i64, ptr %part.p
  %all.next = or i64 %all, %part
  %n.next = add i64 %n, 1
  %more = icmp ult i64 %n.next, 16
  br i1 %more, label %count, label %counted.all
counted.all:
  %any = icmp ne i64 %all.next, 0
  br i1 %any, label %set, label %done
set:
  %r = call i64 @system(i64 {setaffinity}, i64 %thread, i64 128, ptr %mask)
  store i32 %here, ptr %apart.p
  br label %done
done:
  ret void
}}

; Half of the iterations that a participant has left, rounded up: its first or its last ones. Of the
; result and of the word at %range, the low half is where they begin, the high half where they end.
define internal i64 @take(ptr %range, i1 %first) nounwind {{
entry:
  %seen = load atomic i64, ptr %range monotonic, align 8
  br label %look
look:
  %held = phi i64 [ %seen, %entry ], [ %found, %claim ]
  %begin = and i64 %held, 4294967295
  %end = lshr i64 %held, 32
  %left = sub i64 %end, %begin
  %any = icmp sgt i64 %left, 0
  br i1 %any, label %claim, label %none
claim:
  %more = add i64 %left, 1
  %half = lshr i64 %more, 1
  %front = add i64 %begin, %half
  %back = sub i64 %end, %half
  %cut = select i1 %first, i64 %front, i64 %back
  %cut.high = shl i64 %cut, 32
  %end.high = shl i64 %end, 32
  %lower = or disjoint i64 %cut.high, %begin
  %upper = or disjoint i64 %end.high, %cut
  %kept = select i1 %first, i64 %upper, i64 %lower
  %taken = select i1 %first, i64 %lower, i64 %upper
  %swap = cmpxchg ptr %range, i64 %held, i64 %kept monotonic monotonic
  %found = extractvalue {{ i64, i1 }} %swap, 0
  %won = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %won, label %done, label %look
done:
  ret i64 %taken
none:
  ret i64 0
}}

; Run iterations as participant %self until none is left: first its own, then those of others.
define internal void @work(ptr %pool, i64 %self, i64 %participants) nounwind {{
entry:
  %region.p = getelementptr i8, ptr %pool, i64 {POOL_REGION}
  %region = load ptr, ptr %region.p
  %closure.p = getelementptr i8, ptr %pool, i64 {POOL_CLOSURE}
  %closure = load ptr, ptr %closure.p
  %extent.p = getelementptr i8, ptr %pool, i64 {POOL_EXTENT}
  %extent = load i64, ptr %extent.p
  %unit = call i64 @unit(i64 %extent)
  %ranges = getelementptr i8, ptr %pool, i64 {POOL_RANGES}
  %own.offset = mul i64 %self, {POOL_WORKER_SIZE}
  %own = getelementptr i8, ptr %ranges, i64 %own.offset
  br label %next
next:
  %part = call i64 @take(ptr %own, i1 true)
  %some = icmp ne i64 %part, 0
  br i1 %some, label %run, label %search
run:
  %first = and i64 %part, 4294967295
  %last = lshr i64 %part, 32
  %begin = mul i64 %first, %unit
  %whole = mul i64 %last, %unit
  %beyond = icmp sgt i64 %whole, %extent
  %end = select i1 %beyond, i64 %extent, i64 %whole
  call void %region(ptr %closure, i64 %self, i64 %begin, i64 %end)
  br label %next
search:
  %n = phi i64 [ 1, %next ], [ %n.next, %rob ]
  %all = icmp sge i64 %n, %participants
  br i1 %all, label %done, label %rob
rob:
  %after = add i64 %self, %n
  %round = icmp sge i64 %after, %participants
  %before = sub i64 %after, %participants
  %victim = select i1 %round, i64 %before, i64 %after
  %offset = mul i64 %victim, {POOL_WORKER_SIZE}
  %theirs = getelementptr i8, ptr %ranges, i64 %offset
  %stolen = call i64 @take(ptr %theirs, i1 false)
  %n.next = add i64 %n, 1
  %got = icmp ne i64 %stolen, 0
  br i1 %got, label %keep, label %search
keep:
  store atomic i64 %stolen, ptr %own monotonic, align 8
  br label %next
done:
  ret void
}}

; So many iterations are counted as one that 31 bits hold their number.
define internal i64 @unit(i64 %extent) nounwind {{
  %high = lshr i64 %extent, 31
  %unit = add i64 %high, 1
  ret i64 %unit
}}

define void @{POOL_PARALLEL_SYMBOL}(ptr %ctx, ptr %region, ptr %closure, i64 %asked) nounwind {{
entry:
  %extent = call i64 @llvm.smax.i64(i64 %asked, i64 0)
  %threads.p = getelementptr i64, ptr %ctx, i64 {CTX_THREADS}
  %threads = load i64, ptr %threads.p
  %pool.p = getelementptr i64, ptr %ctx, i64 {CTX_POOL}
  %pool = load ptr, ptr %pool.p
  %busy = getelementptr i8, ptr %pool, i64 {POOL_BUSY}
  %rivals.p = getelementptr i8, ptr %pool, i64 {POOL_RIVALS}
  %swap = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %won = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %won, label %publish, label %alone
alone:
  %rival = atomicrmw add ptr %rivals.p, i32 1 monotonic
  call void %region(ptr %closure, i64 0, i64 0, i64 %extent)
  %was.rival = atomicrmw sub ptr %rivals.p, i32 1 monotonic
  ret void
publish:
  %workers.p = getelementptr i8, ptr %pool, i64 {POOL_WORKERS}
  %workers = load atomic i64, ptr %workers.p acquire, align 8
  %crew = add i64 %workers, 1
  %unit = call i64 @unit(i64 %extent)
  %rounding = sub i64 %unit, 1
  %up = add i64 %extent, %rounding
  %count = udiv i64 %up, %unit
  %allowed = call i64 @llvm.smin.i64(i64 %threads, i64 %count)
  %most = call i64 @llvm.smin.i64(i64 %allowed, i64 %crew)
  %rivals = load atomic i32, ptr %rivals.p monotonic, align 4
  %rivals64 = zext i32 %rivals to i64
  %left.over = sub i64 %most, %rivals64
  %several = icmp sgt i64 %left.over, 1
  %participants = select i1 %several, i64 %left.over, i64 1
  %region.p = getelementptr i8, ptr %pool, i64 {POOL_REGION}
  store ptr %region, ptr %region.p
  %closure.p = getelementptr i8, ptr %pool, i64 {POOL_CLOSURE}
  store ptr %closure, ptr %closure.p
  %extent.p = getelementptr i8, ptr %pool, i64 {POOL_EXTENT}
  store i64 %extent, ptr %extent.p
  %participants.p = getelementptr i8, ptr %pool, i64 {POOL_PARTICIPANTS}
  store i64 %participants, ptr %participants.p
  %pending = getelementptr i8, ptr %pool, i64 {POOL_PENDING}
  %others = add i64 %participants, -1
  %others32 = trunc i64 %others to i32
  store atomic i32 %others32, ptr %pending monotonic, align 4
  %lines = getelementptr i8, ptr %pool, i64 {POOL_FIRST_WORKER}
  %ranges = getelementptr i8, ptr %pool, i64 {POOL_RANGES}
  %each = udiv i64 %count, %participants
  %rest = urem i64 %count, %participants
  br label %divide
divide:
  %d = phi i64 [ 0, %publish ], [ %d.next, %divide ]
  %from = phi i64 [ 0, %publish ], [ %to, %divide ]
  %longer = icmp ult i64 %d, %rest
  %longer64 = zext i1 %longer to i64
  %size = add i64 %each, %longer64
  %to = add i64 %from, %size
  %to.high = shl i64 %to, 32
  %range = or disjoint i64 %to.high, %from
  %d.offset = mul i64 %d, {POOL_WORKER_SIZE}
  %range.p = getelementptr i8, ptr %ranges, i64 %d.offset
  store atomic i64 %range, ptr %range.p monotonic, align 8
  %d.next = add i64 %d, 1
  %d.more = icmp slt i64 %d.next, %participants
  br i1 %d.more, label %divide, label %call
call:
  %n = phi i64 [ 0, %divide ], [ %n.next, %called ]
  %all = icmp sge i64 %n, %others
  br i1 %all, label %work, label %raise
raise:
  %offset = mul i64 %n, {POOL_WORKER_SIZE}
  %worker = getelementptr i8, ptr %lines, i64 %offset
  %ticket = getelementptr i8, ptr %worker, i64 {WORKER_TICKET}
  %old = atomicrmw add ptr %ticket, i32 1 seq_cst
  %asleep.p = getelementptr i8, ptr %worker, i64 {WORKER_ASLEEP}
  %asleep = load atomic i32, ptr %asleep.p seq_cst, align 4
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %wake, label %called
wake:
  call void @keep_apart(ptr %worker)
  call void @futex(ptr %ticket, i64 {wake}, i64 1)
  br label %called
called:
  %n.next = add i64 %n, 1
  br label %call
work:
  call void @work(ptr %pool, i64 0, i64 %participants)
  %spin.p = getelementptr i8, ptr %pool, i64 {POOL_SPIN}
  %spin = load atomic i64, ptr %spin.p monotonic, align 8
  %patience = mul i64 %spin, {patience}
  %grace = lshr i64 %spin, {grace}
  %start = {ticks}
  br label %hoping
hoping:
  %left0 = load atomic i32, ptr %pending acquire, align 4
  %finished0 = icmp eq i32 %left0, 0
  br i1 %finished0, label %leave, label %hoping.pause
hoping.pause:
  {pause}
  %now0 = {ticks}
  %waited0 = sub i64 %now0, %start
  %early0 = icmp ult i64 %waited0, %grace
  br i1 %early0, label %hoping, label %taking
taking:
  %m = phi i64 [ 0, %hoping.pause ], [ %m.next, %take ], [ %m.next, %mine ]
  %m.all = icmp sge i64 %m, %others
  br i1 %m.all, label %spinning, label %take
take:
  %m.offset = mul i64 %m, {POOL_WORKER_SIZE}
  %m.worker = getelementptr i8, ptr %lines, i64 %m.offset
  %m.ticket.p = getelementptr i8, ptr %m.worker, i64 {WORKER_TICKET}
  %m.ticket = load atomic i32, ptr %m.ticket.p monotonic, align 4
  %m.before = add i32 %m.ticket, -1
  %m.claim = getelementptr i8, ptr %m.worker, i64 {WORKER_CLAIM}
  %m.swap = cmpxchg ptr %m.claim, i32 %m.before, i32 %m.ticket acq_rel monotonic
  %m.won = extractvalue {{ i32, i1 }} %m.swap, 1
  %m.next = add i64 %m, 1
  br i1 %m.won, label %mine, label %taking
mine:
  call void @keep_apart(ptr %m.worker)
  %m.left = atomicrmw sub ptr %pending, i32 1 acq_rel
  br label %taking
spinning:
  %left = load atomic i32, ptr %pending acquire, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %leave, label %pausing
pausing:
  {pause}
  %now = {ticks}
  %waited = sub i64 %now, %start
  %early = icmp ult i64 %waited, %patience
  br i1 %early, label %spinning, label %sleep
sleep:
  %waiting = getelementptr i8, ptr %pool, i64 {POOL_WAITING}
  store atomic i32 1, ptr %waiting seq_cst, align 4
  br label %sleeping
sleeping:
  %left2 = load atomic i32, ptr %pending seq_cst, align 4
  %finished2 = icmp eq i32 %left2, 0
  br i1 %finished2, label %awake, label %doze
doze:
  %value = zext i32 %left2 to i64
  call void @futex(ptr %pending, i64 {wait}, i64 %value)
  br label %sleeping
awake:
  store atomic i32 0, ptr %waiting monotonic, align 4
  br label %leave
leave:
  store atomic i32 0, ptr %busy release, align 4
  ret void
}}

; Iterations of a traced region; the closure is the log, the region and its own closure.
define internal void @log.part(ptr %traced, i64 %self, i64 %first, i64 %last) nounwind {{
entry:
  %log = load ptr, ptr %traced
  %region.p = getelementptr i64, ptr %traced, i64 1
  %region = load ptr, ptr %region.p
  %closure.p = getelementptr i64, ptr %traced, i64 2
  %closure = load ptr, ptr %closure.p
  %begin = {ticks}
  call void %region(ptr %closure, i64 %self, i64 %first, i64 %last)
  %end = {ticks}
  %thread = call i64 @system(i64 {gettid}, i64 0, i64 0, ptr null)
  %count.p = getelementptr i64, ptr %log, i64 {LOG_COUNT}
  %number = atomicrmw add ptr %count.p, i64 1 monotonic
  %room.p = getelementptr i64, ptr %log, i64 {LOG_ROOM}
  %room = load i64, ptr %room.p
  %fits = icmp ult i64 %number, %room
  br i1 %fits, label %write, label %done
write:
  %words = mul i64 %number, {LOG_PART}
  %at = add i64 %words, {LOG_FIRST}
  %thread.p = getelementptr i64, ptr %log, i64 %at
  store i64 %thread, ptr %thread.p
  %begin.p = getelementptr i64, ptr %thread.p, i64 1
  store i64 %begin, ptr %begin.p
  %end.p = getelementptr i64, ptr %thread.p, i64 2
  store i64 %end, ptr %end.p
  br label %done
done:
  ret void
}}

define void @{POOL_TRACED_SYMBOL}(ptr %ctx, ptr %region, ptr %closure, i64 %extent) nounwind {{
entry:
  %traced = alloca [3 x i64], align 8
  %log.p = getelementptr i64, ptr %ctx, i64 {CTX_LOG}
  %log = load ptr, ptr %log.p
  store ptr %log, ptr %traced
  %region.p = getelementptr i64, ptr %traced, i64 1
  store ptr %region, ptr %region.p
  %closure.p = getelementptr i64, ptr %traced, i64 2
  store ptr %closure, ptr %closure.p
  call void @{POOL_PARALLEL_SYMBOL}(ptr %ctx, ptr @log.part, ptr %traced, i64 %extent)
  ret void
}}

define ptr @{POOL_WORKER_SYMBOL}(ptr %worker) nounwind {{
entry:
  %pool.p = getelementptr i8, ptr %worker, i64 {WORKER_POOL}
  %pool = load ptr, ptr %pool.p
  %index.p = getelementptr i8, ptr %worker, i64 {WORKER_INDEX}
  %index = load i64, ptr %index.p
  %ticket = getelementptr i8, ptr %worker, i64 {WORKER_TICKET}
  %asleep = getelementptr i8, ptr %worker, i64 {WORKER_ASLEEP}
  %pending = getelementptr i8, ptr %pool, i64 {POOL_PENDING}
  %waiting = getelementptr i8, ptr %pool, i64 {POOL_WAITING}
  %claim = getelementptr i8, ptr %worker, i64 {WORKER_CLAIM}
  %limit.p = getelementptr i8, ptr %worker, i64 {WORKER_AWAKE}
  %participants.p = getelementptr i8, ptr %pool, i64 {POOL_PARTICIPANTS}
  %thread = call i64 @system(i64 {gettid}, i64 0, i64 0, ptr null)
  %thread.p = getelementptr i8, ptr %worker, i64 {WORKER_THREAD}
  store atomic i64 %thread, ptr %thread.p monotonic, align 8
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %claimed, %work ], [ %seen.next, %done ]
  %start = {ticks}
  br label %spinning
spinning:
  %drawn = load atomic i32, ptr %ticket acquire, align 4
  %same = icmp eq i32 %drawn, %seen
  br i1 %same, label %pausing, label %work
pausing:
  {pause}
  %now = {ticks}
  %waited = sub i64 %now, %start
  %limit = load atomic i64, ptr %limit.p monotonic, align 8
  %early = icmp ult i64 %waited, %limit
  br i1 %early, label %spinning, label %sleep
sleep:
  store atomic i32 1, ptr %asleep seq_cst, align 4
  br label %sleeping
sleeping:
  %drawn2 = load atomic i32, ptr %ticket seq_cst, align 4
  %same2 = icmp eq i32 %drawn2, %seen
  br i1 %same2, label %doze, label %awake
doze:
  %value = zext i32 %seen to i64
  call void @futex(ptr %ticket, i64 {wait}, i64 %value)
  br label %sleeping
awake:
  store atomic i32 0, ptr %asleep monotonic, align 4
  br label %work
work:
  %seen.next = add i32 %seen, 1
  %swap = cmpxchg ptr %claim, i32 %seen, i32 %seen.next acq_rel monotonic
  %won = extractvalue {{ i32, i1 }} %swap, 1
  %claimed = extractvalue {{ i32, i1 }} %swap, 0
  br i1 %won, label %share, label %idle
share:
  %participants = load i64, ptr %participants.p
  call void @work(ptr %pool, i64 %index, i64 %participants)
  %before = atomicrmw sub ptr %pending, i32 1 seq_cst
  %is.last = icmp eq i32 %before, 1
  br i1 %is.last, label %last.check, label %done
last.check:
  %sleeper = load atomic i32, ptr %waiting seq_cst, align 4
  %nobody = icmp eq i32 %sleeper, 0
  br i1 %nobody, label %done, label %last
last:
  call void @futex(ptr %pending, i64 {wake}, i64 1)
  br label %done
done:
  br label %idle
}}
"""
