"""Where the pool's workers wake up, as LLVM IR text.

i32  @tw.cpu()                                                   the CPU that this thread runs on, plus one; 0: not known
i32  @tw.thread()                                                the system's number of this thread
void @tw.wake_workers(ptr place, ptr cpus, ptr ids, i64 count)   wake the workers that sleep on `place`

`cpus` has the CPU, plus one, on which each of the workers 1 to `count` fell asleep, 0 for those that are awake; `ids`
are the system's numbers of them.

A system wakes a thread where it slept, if it sees no idle CPU. In a virtual machine it sees none: a virtual CPU that
idles has been given back, and counts as busy. When the caller has come to run where a worker slept (both slept between
two calls, say), the worker would wait there until the caller is done, and several threads would take the time of one.
Such a worker may run on other CPUs alone while it is woken, and on all of its own again right after.
"""

from __future__ import annotations

from typing import Final

ANYWHERE: Final = """
define internal i32 @tw.cpu() {{
  ret i32 0
}}

define internal i32 @tw.thread() {{
  ret i32 0
}}

define internal void @tw.wake_workers(ptr %place, ptr %cpus, ptr %ids, i64 %count) {{
  call void @tw.wake_all(ptr %place)
  ret void
}}
"""

# A set of CPUs is 128 bytes, a bit for each.
LINUX: Final = """
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, {word}, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i32 @tw.cpu() {{
  %cpu = call i32 @sched_getcpu()
  %found = add i32 %cpu, 1
  ret i32 %found
}}

define internal i32 @tw.thread() {{
  %id = call {word} ({word}, ...) @syscall({word} {gettid})
  %number = {to_thread}
  ret i32 %number
}}

define internal i1 @tw.is_empty(ptr %set) {{
  %bits = load i1024, ptr %set, align 8
  %empty = icmp eq i1024 %bits, 0
  ret i1 %empty
}}

; Take a CPU, which is given plus one, out of a set.
define internal void @tw.take_out(ptr %set, i32 %cpu) {{
entry:
  %number = sub i32 %cpu, 1
  %fits = icmp ult i32 %number, 1024
  br i1 %fits, label %clear, label %done
clear:
  %byte.number = lshr i32 %number, 3
  %bit.number = and i32 %number, 7
  %bit.small = trunc i32 %bit.number to i8
  %bit = shl i8 1, %bit.small
  %others = xor i8 %bit, -1
  %at = getelementptr i8, ptr %set, i32 %byte.number
  %byte = load i8, ptr %at, align 1
  %cleared = and i8 %byte, %others
  store i8 %cleared, ptr %at, align 1
  br label %done
done:
  ret void
}}

define internal void @tw.wake_workers(ptr %place, ptr %cpus, ptr %ids, i64 %count) {{
entry:
  %allowed = alloca [128 x i8], align 8
  %apart = alloca [128 x i8], align 8
  %here = call i32 @tw.cpu()
  %known = icmp sgt i32 %here, 0
  br i1 %known, label %find, label %wake
find:
  %worker = phi i64 [ 1, %entry ], [ %worker.next, %find.next ]
  %past = icmp sgt i64 %worker, %count
  br i1 %past, label %wake, label %look
look:
  %cpu.at = getelementptr i32, ptr %cpus, i64 %worker
  %cpu = load atomic i32, ptr %cpu.at monotonic, align 4
  %same = icmp eq i32 %cpu, %here
  br i1 %same, label %found, label %find.next
find.next:
  %worker.next = add i64 %worker, 1
  br label %find
found:
  %id.at = getelementptr i32, ptr %ids, i64 %worker
  %id = load atomic i32, ptr %id.at monotonic, align 4
  %got = call i32 @sched_getaffinity(i32 %id, {word} 128, ptr %allowed)
  %has = icmp eq i32 %got, 0
  br i1 %has, label %choose, label %wake
choose:
  ; Where no other worker sleeps, if there is such a CPU.
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %apart, ptr align 8 %allowed, i64 128, i1 false)
  call void @tw.take_out(ptr %apart, i32 %here)
  br label %other
other:
  %number = phi i64 [ 1, %choose ], [ %number.next, %other.out ]
  %all = icmp sgt i64 %number, %count
  br i1 %all, label %chosen, label %other.out
other.out:
  %other.at = getelementptr i32, ptr %cpus, i64 %number
  %other.cpu = load atomic i32, ptr %other.at monotonic, align 4
  call void @tw.take_out(ptr %apart, i32 %other.cpu)
  %number.next = add i64 %number, 1
  br label %other
chosen:
  %none = call i1 @tw.is_empty(ptr %apart)
  br i1 %none, label %any, label %move
any:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %apart, ptr align 8 %allowed, i64 128, i1 false)
  call void @tw.take_out(ptr %apart, i32 %here)
  %nowhere = call i1 @tw.is_empty(ptr %apart)
  br i1 %nowhere, label %wake, label %move
move:
  %refused = call i32 @sched_setaffinity(i32 %id, {word} 128, ptr %apart)
  call void @tw.wake_all(ptr %place)
  %moved = icmp eq i32 %refused, 0
  br i1 %moved, label %restore, label %done
restore:
  %r = call i32 @sched_setaffinity(i32 %id, {word} 128, ptr %allowed)
  br label %done
wake:
  call void @tw.wake_all(ptr %place)
  br label %done
done:
  ret void
}}
"""
