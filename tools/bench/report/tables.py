# SPDX-License-Identifier: GPL-2.0
"""From figures to tables, and what they say about the aims."""

import dataclasses

from . import guests

DEPTHS = (0, 4, 12, 28, 44, 100)
EVENTS = {"syscalls": "syscalls:*", "kmem": "kmem:*", "sched": "sched:*", "functions": "function tracer"}
# Causes of steps of the kernel's unwinder; the last one is of whole stacks.
SLOW = ("slow_new", "slow_text", "slow_odd", "slow_regs", "slow_return", "slow_stack", "slow_whole")
KERNEL_DEPTHS = (12, 28, 44)
PERCENTS = (5, 50, 95, 100)
WORKLOADS = {"slab": "kmem:*", "block": "block:*", "network": "functions veth_xmit, tcp_v4_rcv"}
# The C series: bytes for each stack of capacity, always allocated.
C_SERIES = 552
BPF_STACK = 1040
OTHERS = {"full": "full stack", "stackmap": "stackmap", "hist": "hist trigger", "bpftrace": "bpftrace",
          "perf": "perf record -g"}
OTHERS_DEPTHS = (4, 12, 28)
SIZES = (1000, 10000, 100000, 1000000)
CPUS = (1, 2, 4, 8)
# With the unwind cache: at further frames; at the shallowest of the kernel's own tracepoints.
UNWIND_AIMS = {12: 0.35, 28: 0.22, 44: 0.22, 100: 0.22}
TRACEPOINT_AIM = 0.6
COST_AIM, SLAB_AIM, DEEP_AIM, MEMORY_AIM = 1.02, 2.3, 8, 1 / 3
# Of perf's complete user stacks.
COMPLETE_AIM = 0.95


@dataclasses.dataclass
class Section:
    """A table with what it shows."""

    title: str
    text: str
    head: tuple
    rows: list
    after: str = ""


def number(value):
    """A number as people read it."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.1f}"


def verdict(what, value, aim, at_most=True):
    """Whether an aim is met."""
    met = value <= aim if at_most else value >= aim
    return f"{what}: **{value:.2f}** (aim: at {'most' if at_most else 'least'} {aim:.2f}, {'met' if met else 'missed'})"


def interpolate(row, at):
    """A count of the map's bench at another depth; it grows with the frames."""
    known = sorted(row)
    low = max((depth for depth in known if depth <= at), default=known[0])
    high = min((depth for depth in known if depth > at), default=known[-1])
    if low == high:
        low = known[-2]
    return row[low] + (row[high] - row[low]) * (at - low) / (high - low)


def cost(found):
    """Point 1: a recorded stack at each depth."""
    one = found["cost"]

    def ratio(name, depth):
        return one[f"{name}.{depth}"] / one[f"full.{depth}"] if f"{name}.{depth}" in one else None

    kinds = {"jump, remembered": "remembered.jump", "jump, searched for": "searched.jump",
             "jump, first insert": "insert.jump", "kprobe, remembered": "remembered.kprobe",
             "kprobe, searched for": "searched.kprobe", "kprobe, first insert": "insert.kprobe",
             "jump, kernel's unwinder, remembered": "remembered.kernel"}
    rows = []
    for depth in DEPTHS:
        row = [depth, one[f"frames.{depth}"], one[f"full.{depth}"]]
        for name in kinds.values():
            count = one.get(f"{name}.{depth}")
            row.append("-" if count is None else f"{count:,} ({ratio(name, depth):.3f})")
        rows.append(row)
    worst, searched, by_kernel = (max(ratio(name, depth) for depth in DEPTHS if f"{name}.{depth}" in one)
                                  for name in ("remembered.jump", "searched.jump", "remembered.kernel"))
    after = (verdict("An id by the jump hook over a full stack, at the worst depth, remembered", worst, COST_AIM)
             + "; " + verdict("searched for", searched, COST_AIM) + ". With the unwind cache, remembered: "
             + "; ".join(verdict(f"{depth} further frames", ratio("remembered.jump", depth), aim)
                         for depth, aim in UNWIND_AIMS.items())
             + f". With ``unwind=kernel`` it is up to {by_kernel:.2f}: the walk begins in the recorder, which is in a "
             "module, where the kernel's unwinder finds a frame with more effort than in the kernel's own text.")
    return Section(
        "Cost of a recorded stack",
        "``trace_dump_stack()`` below further frames of a module: instructions, and in brackets how many "
        "times those of the full stack that the kernel itself records. *Remembered*: the context has just seen the "
        "stack. *Searched for*: 200 known stacks in an order in which they have not come before. The last "
        "column is without the unwind cache. With the kprobe, an instruction more or less says little: what the "
        "exception of a breakpoint costs on a CPU is not in these counts.",
        ("further frames", "frames", "full stack", *kinds), rows, after)


def breakdown(found):
    """Where the cost is."""
    one, host = found["cost"], found["map"]
    rows = []
    for depth in DEPTHS:
        frames = one[f"frames.{depth}"]
        unwind, write = one[f"unwind.{depth}"], one[f"write_id.{depth}"]
        lookup = round(interpolate(host["hit_batched"], frames))
        searched = round(interpolate(host["hit_not_batched"], frames))
        hashed = round(interpolate(host["hash"], frames))
        walk = one[f"remembered.jump.{depth}"] - write - lookup
        full_write = one[f"write_full.{depth}"]
        full_rest = one[f"full.{depth}"] - unwind - full_write
        hook = one[f"remembered.kprobe.{depth}"] - one[f"remembered.jump.{depth}"]
        rows.append([depth, walk, lookup, f"{searched} ({hashed})", write, hook, unwind, full_write, full_rest])
    last, first = rows[-1], rows[0]
    by_rule = (last[1] - first[1]) / 100
    by_kernel = (last[6] - first[6]) / 100
    after = (
        f"A further frame takes {by_rule:.0f} instructions by its rule, the check of its text included, and "
        f"{by_kernel:.0f} by the kernel's unwinder. What is left of an id with 100 further frames is the walk, "
        f"{100 * last[1] / one['remembered.jump.100']:.0f} %; without any, {first[1]} instructions of "
        f"{one['remembered.jump.0']}, the recursion guard and the counters included. The map takes {first[2]} to "
        f"{last[2]} instructions. The larger event costs {first[7] - first[4]} to {last[7] - last[4]} more to write "
        "than the id. The jump itself is two.")
    return Section(
        "Breakdown",
        "Of an id by the jump hook, remembered, and of the full stack, in instructions. The kernel's unwinder is "
        "``stack_trace_save()`` by the test module; reserving and committing are those of events of the same "
        "sizes in a ring buffer of its own; the map's part is what valgrind counts of the same code on the host. "
        "The rest is the difference: for an id, the walk by rules, the guards and the counters.",
        ("further frames", "id: walk, guards", "map: remembered", "map: searched for (of it hash)",
         "id: reserve, commit", "kprobe over jump", "full: kernel's unwinder", "full: reserve, copy, commit",
         "full: own frames, guards"), rows, after)


def tracepoints(found):
    """Point 1: the kernel's own events."""
    one = found["tracepoints"]
    kinds = {"jump": "id, jump", "kprobe": "id, kprobe", "kernel": "id, jump, kernel's unwinder"}
    rows, ratios = [], {name: [] for name in kinds.values()}
    for key, name in EVENTS.items():
        full = one[f"full.{key}"]
        for kind, kind_name in kinds.items():
            ratios[kind_name].append(one[f"{kind}.{key}"] / full)
        rows.append([name, one[f"events.{key}"], one[f"depth.{key}"], one[f"stacks.{key}"], full,
                     *(f"{one[f'{kind}.{key}']:,} ({ratios[kind_name][-1]:.3f})" for kind, kind_name in kinds.items())])
    after = (verdict("At the worst of them, by the jump", max(ratios["id, jump"]), TRACEPOINT_AIM)
             + f"; with the kernel's unwinder {max(ratios[kinds['kernel']]):.2f}.")
    return Section(
        "Real tracepoints",
        "Programs under a group of events, or with two traced functions: what a stack adds to its event, in "
        "instructions, first inserts included. ``dd`` of single bytes, a shell that looks for files, two shells "
        "that wake each other.",
        ("events", "events recorded", "mean depth", "distinct stacks", "full stack", *kinds.values()), rows, after)


def slow_frames(found):
    """What the walk leaves to the kernel's unwinder."""
    one = found["tracepoints"]
    return Section(
        "Frames that the kernel's unwinder finds",
        "The same workloads with their first round, by the jump: frames found by rules, cached or learnt, those that took a "
        "step of the kernel's unwinder, by cause (``Documentation/design.rst``), and stacks that it has walked.",
        ("events", "by rules", *(cause.split("_")[1] for cause in SLOW)),
        [[name, one[f"fast.{key}"], *(one[f"{cause}.{key}"] for cause in SLOW)] for key, name in EVENTS.items()])


def kernels(found):
    """Point 1: the same on other kernels."""
    def row(kernel):
        again = "" if kernel == guests.KERNEL else f" {kernel}"
        one, events = found[f"cost{again}"], found[f"tracepoints{again}"]
        full = {depth: one[f"full.{depth}"] for depth in KERNEL_DEPTHS}
        return [f"{kernel}: {guests.release(kernel)}", full[KERNEL_DEPTHS[0]],
                *(f"{one[f'remembered.jump.{depth}'] / count:.3f} ({one[f'searched.jump.{depth}'] / count:.3f})"
                  for depth, count in full.items()),
                *(events[f"jump.{key}"] / events[f"full.{key}"] for key in EVENTS)]

    return Section(
        "Other kernels",
        f"The instructions of a full stack with {KERNEL_DEPTHS[0]} further frames; then an id by the jump hook over a full "
        "stack: by further frames, predicted and in brackets searched for, and at the kernel's own events. "
        "``deb13-rt`` has the source of ``deb13``, and PREEMPT_RT.",
        ("kernel", "full stack", *(f"{depth} further" for depth in KERNEL_DEPTHS), *EVENTS.values()),
        [row(kernel) for kernel in (guests.KERNEL, *guests.OTHER_KERNELS)])


def filled(found):
    """Point 1: while the map fills."""
    one = found["cost"]
    hits, new = ([one[f"{name}.{percent}"] for percent in PERCENTS] for name in ("filled_hit", "filled_new"))
    return Section(
        "A map that fills",
        "12 further frames, ``bits=14``: known stacks, searched for, and new ones. When the map is full, a new "
        "stack is a full stack.",
        ("full", "known stack", "new stack"),
        [[f"{percent} %", *pair] for percent, *pair in zip(PERCENTS, hits, new)],
        f"From 5 % to 100 %, a known stack costs {100 * (hits[-1] / hits[0] - 1):+.2f} %.")


def retention(found):
    """Point 2."""
    one = found["retention"]
    rows, gains = [], {"events": [], "time span": []}
    for key, name in WORKLOADS.items():
        full, ids = ({what: one[f"{what}.{mode}.{key}"] for what in ("kept", "bytes", "span")} for mode in ("full", "id"))
        gains["events"].append(ids["kept"] / full["kept"])
        # A guest that waits for its disk waits for the host's.
        gains["time span"].append(ids["span"] / full["span"] if key != "block" else None)
        rows.append([f"{key}: {name}", one[f"depth.{key}"], full["kept"], ids["kept"], f"{gains['events'][-1]:.2f}",
                     full["bytes"], ids["bytes"],
                     "-" if gains["time span"][-1] is None else f"{gains['time span'][-1]:.2f}"])
    deep, depth, ids = gains["events"][2], one["depth.network"], one["bytes.id.network"]
    after = (verdict("Events kept, slab", gains["events"][0], SLAB_AIM, at_most=False) + "; "
             + verdict("deep", deep, DEEP_AIM, at_most=False)
             + ". The C series, the patches in C that this module descends from, reports 2.17 times the events and 1.85 "
             "times the span for a slab workload. ")
    if deep < DEEP_AIM:
        after += (f"With ids an event of the traced functions and its stack take {ids:.0f} bytes, and 16 of them are "
                  f"the id: at a mean depth of {depth} that is the gain there is; 8 times would take stacks of "
                  f"{(DEEP_AIM * ids - ids + 16 - 24) / 8:.0f} frames.")
    users = {what: (one[f"user_{what}.full.slab"], one[f"user_{what}.id.slab"]) for what in ("kept", "bytes")}
    after += (f" With user stacks as well, the slab workload keeps {users['kept'][0]:,} events with "
              f"``options/userstacktrace``, of {users['bytes'][0]:.0f} bytes each with both stacks, and "
              f"{users['kept'][1]:,} with ``options/stackmap-user``, of {users['bytes'][1]:.0f} bytes: "
              f"{users['kept'][1] / users['kept'][0]:.2f} times.")
    return Section(
        "Retention",
        f"A ring buffer of {one['buffer'] // 1024} KiB at the end of the same workload, recorded with full stacks "
        "and with ids: a shell that looks for files; files written synchronously to ext4 on virtio; a TCP "
        "connection through an IP tunnel between two network namespaces. The time span is that of the guest's "
        "instructions; where the disk is waited for it would be the host's.",
        ("workload", "mean depth", "events: full", "events: ids", "gain", "bytes an event: full", "ids",
         "gain in time span"), rows, after)


def user(found):
    """User stacks."""
    one = found["user"]
    frame = (one["user.deliver.20"] - one["user.deliver.0"]) / 20
    most = one["user.without.20"] + one["user.request.first"] + one["user.deliver.20"]
    aims = (("The first request of an entry", one["user.request.first"], 900), ("a further frame", frame, 60),
            ("a frame whose rule is learnt from its file", one["user.learn"], 6000),
            (f"all of an entry with {one['user.frames.20']} frames", most, 15000))
    rows = [[one[f"user.frames.{frames}"], one[f"user.without.{frames}"], one["user.request.first"],
             one[f"user.deliver.{frames}"],
             one[f"user.without.{frames}"] + one["user.request.first"] + one[f"user.deliver.{frames}"],
             one[f"user.kernel.{frames}"]] for frames in (0, 20)]
    after = "; ".join(f"{what}: **{count:.0f}** (aim: at most {aim:,}, {'met' if count <= aim else 'missed'})"
                      for what, count, aim in aims)
    return Section(
        "User stacks",
        "An entry into the kernel, a close() that fails, with one event of it and its kernel stack as an id: instructions "
        "without user stacks; of the request for the user stack; of its delivery, which is of a known and complete stack "
        "without frame pointers, the kernel's own walk, ours and the event that binds it included; and in all. The last "
        "column is the same entry with a full stack and ``options/userstacktrace``, which finds one frame.",
        ("user frames", "without", "request", "delivery", "in all", "full stacks"), rows,
        after=after + f". A request that finds the stack requested takes {one['user.request.again']}.")


def perf(found):
    """User stacks of Debian's programs against perf's."""
    one, entry = found["perf"], found["user"]
    whole = [entry[f"user.without.{frames}"] + entry["user.request.first"] + entry[f"user.deliver.{frames}"]
             for frames in (0, 20)]
    rows = [[what, one[f"{name}.events"], f"{one[f'{name}.frames']:.1f}", f"{100 * one[f'{name}.complete']:.0f} %",
             one[f"{name}.bytes"], *costs]
            for name, what, costs in (("perf", "perf", [one["perf.entry.0"], one["perf.entry.20"]]),
                                      ("user", "stackmap", whole))]
    program, loader, cut = (one[f"pairs.{kind}"] for kind in ("program", "loader", "cut"))
    after = (f"**Stack by stack:** {one['pairs']} events are in both, paired by thread, kind and time. perf's stack is "
             f"complete in {program} of them. "
             + verdict("Share of these that are complete here", one["pairs.program.complete"] / program, COMPLETE_AIM,
                       at_most=False)
             + f". {one['pairs.program.same']} have the same frames, file by file and offset by offset. {loader} end in "
             f"the first instructions of the loader: {one['pairs.loader.complete']} of them are complete here, and "
             f"{one['pairs.loader.same']} have the same frames. perf cuts {cut}: {one['pairs.cut.complete']} of them are "
             f"complete here, and {one['pairs.cut.longer']} have all of perf's frames and more.")
    return Section(
        "User stacks of programs without frame pointers",
        "Four system calls of bash, ls, sort, gzip, perl and python3 of Debian, recorded at once by ``perf record "
        "--call-graph dwarf``, unwound by ``perf script``, and with ``options/stackmap-user``: user frames of "
        "an event, the share of complete stacks, bytes of an event in the file or in the ring "
        "buffer, and instructions of an entry with one event and 6 or 26 user frames. For perf, unwinding comes on top; for "
        "stackmap, the kernel's stack is included. perf's stacks are taken for complete if they end in the first instructions "
        "of a program or its loader, those of stackmap if they say so. Address space randomization is off: perf finds fewer "
        "frames at some addresses.",
        ("", "events", "frames", "complete", "bytes", "6 frames", "26 frames"), rows, after)


def memory(found):
    """Point 3."""
    one = found["memory"]
    rows, shares = [], []
    sizes = (10, 14, 18)
    for bits in sizes:
        stacks, capacity = one[f"entries.{bits}"], one[f"capacity.{bits}"]
        records = one[f"exported.{bits}"] - 16 - 8 * stacks
        ours = one[f"pool.{bits}"] + one[f"table.{bits}"]
        frames = records / stacks / 8 - 1
        each = (ours / stacks, C_SERIES * capacity / stacks, BPF_STACK, 32 + 8 * frames)
        shares.append(each[0] / each[1])
        rows.append([stacks, bits, f"{frames:.1f}", one[f"table.{bits}"], one[f"pool.{bits}"], ours,
                     *(round(value) for value in each), f"{shares[-1]:.2f}"])
    missed = [row[0] for row, share in zip(rows, shares) if share > MEMORY_AIM]
    after = ("Of what the C series needs: " + ", ".join(f"{share:.2f} at {row[0]:,}" for row, share in zip(rows, shares))
             + f" stacks (aim: at most {MEMORY_AIM:.2f}, " + ("missed at " + " and ".join(f"{n:,}" for n in missed)
                                                              if missed else "met") + "). "
             "The pool comes in chunks of 256 KiB, two of them ahead, which weighs on small maps; the records "
             "themselves are 8 bytes for each frame and 8 more.")
    return Section(
        "Memory",
        "Stacks of a real workload, by the function tracer. The C series allocates 552 bytes for each stack of "
        "capacity, BPF's stack map 1,040 at its default depth; stackdepot's figure is 32 bytes and 8 for each frame.",
        ("stacks", "bits", "mean depth", "table", "pool", "in all", "bytes a stack", "C series", "BPF stack map",
         "stackdepot", "over C series"), rows, after)


def others(found):
    """Point 4."""
    one = found["others"]
    rows = []
    for key, name in OTHERS.items():
        if f"{key}.12" not in one:
            rows.append([name, *["does not run here"] * 3, "-", "-"])
            continue
        counts = [one[f"{key}.{depth}"] for depth in OTHERS_DEPTHS]
        cells = [f"{count:,} ({count / one[f'full.{depth}']:.3f})" for count, depth in zip(counts, OTHERS_DEPTHS)]
        capacity = one.get(f"capacity.{key}")
        fixed = f"{one[f'memory.{key}']:,} for {capacity:,}" if capacity else "-"
        rows.append([name, *cells, one.get(f"bytes.{key}", 0), fixed])
    both = found["agree"]
    same, differ = both["same"], both["differ"]
    after = (f"**Same answers:** of {both['events']:,} events of ``kmem:kmem_cache_alloc``, recorded by stackmap and "
             f"by the hist trigger at once, {same:,} distinct stacks have the same count in both, and {differ:,} "
             "have not. The trigger leaves out the two innermost frames and keeps 31 of the others; stackmap's "
             "stacks are cut in the same way for this.")
    return Section(
        "Against what people use",
        "One event of a test module in one guest, with 200 known stacks, at 4, 12 and 28 further frames: "
        "instructions of the event with all that it causes at once, and times those of the plain event with a "
        "full stack. What perf's reader does later is not in it. Bytes are those of an event and its stack at 12 "
        "further frames in the buffer or file; memory is what holds the distinct stacks, of at most this many: "
        "stackmap's is for the 600 that there are and grows, the others' is there from the beginning. At 28 further "
        "frames the hist trigger stops at its 31st.",
        ("by", *(f"{depth} further" for depth in OTHERS_DEPTHS), "bytes an event", "memory, for at most"), rows, after)


def growth(found):
    """Point 5: stacks."""
    one = found["growth"]
    names = {"known stack": "hit", "new stack": "new", "binary export, a stack": "binary", "text export, a stack": "text",
             "bytes a stack": "bytes"}
    return Section(
        "Growth: stacks",
        "``bits=20``, 14 frames: instructions of an event by the stacks in the map, of an export for each "
        "of them (the text export: for the first of them), and bytes.",
        ("stacks", *names), [[size, *(one[f"{key}.{size}"] for key in names.values())] for size in SIZES])


def cpus(found):
    """Point 5: CPUs."""
    one = found["cpus"]
    return Section(
        "Growth: CPUs",
        "CPUs that record 12 further frames at once, the same 4,000 stacks or fewer: instructions of an event, by all "
        "CPUs together, and over those of one CPU. QEMU runs the CPUs by turns: a step that is taken again because "
        "another CPU was quicker is counted; what a cache line costs that moves between CPUs is not, "
        "see `Documentation/results/map.rst` for two real ones.",
        ("CPUs", "full stack", "id", "id over full stack", "full, over one CPU", "id, over one CPU"),
        [[count, one[f"full.{count}"], one[f"id.{count}"], one[f"id.{count}"] / one[f"full.{count}"],
          *(one[f"{mode}.{count}"] / one[f"{mode}.1"] for mode in ("full", "id"))] for count in CPUS])


SECTIONS = (cost, breakdown, tracepoints, slow_frames, kernels, filled, user, perf, retention, memory, others, growth, cpus)


def repeat(found, name):
    """The largest difference between two runs of a guest. The map's seed decides which stacks in turn are predicted."""
    one, two = found[name], found[f"{name} again"]
    return max(abs(two[key] / value - 1) for key, value in one.items()
               if value and key.split(".")[0] not in ("events", "stacks", "depth", "frames", "in_turn"))
