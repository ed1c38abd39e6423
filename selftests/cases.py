# SPDX-License-Identifier: GPL-2.0
"""The cases of the project's tests, the kernels that they run on, and the programs that they want."""

import dataclasses
import functools
import hashlib
import os
import pathlib
import re
import subprocess

TOP = pathlib.Path(__file__).resolve().parent.parent
TESTS = TOP / "selftests"
MODULES = (*(TESTS / "modules" / name for name in ("stackgen", "override", "stackformat", "contexts", "ghost", "keeps")),
           TOP / "tools/bench/stackcost")
# The programs that guests run: their sources, and how to build them.
STATIC = ("-static",)
# Two builds that are one program: the debug information of one is that of the other. Or that say so.
BUILD_ID = "-Wl,--build-id=0x00112233445566778899aabbccddeeff00112233"
PROGRAMS = {
    **{name: (f"selftests/programs/{name}.c", STATIC)
       for name in ("bpf", "callers", "deferred", "family", "pending", "permit", "reopen", "repeats",
                    "slow-exec", "text")},
    # Without rules its frame pointers are followed, whatever they are.
    "hostile": ("selftests/programs/hostile.c", (*STATIC, "-fno-asynchronous-unwind-tables")),
    "callers-plain": ("selftests/programs/callers.c", ("-O2", "-static-pie", "-DWITHOUT_FRAME_POINTERS")),
    # Its own functions have no CFI, and a page each.
    "callers-bare": ("selftests/programs/callers.c",
                     ("-O2", "-static-pie", "-DWITHOUT_FRAME_POINTERS", "-fno-asynchronous-unwind-tables",
                      "-falign-functions=4096")),
    "callers-static": ("selftests/programs/callers.c", ("-O2", *STATIC, "-DWITHOUT_FRAME_POINTERS")),
    **{f"callers-go{name}": ("selftests/programs/callers.go", ("-gcflags=all=-l", *flags))
       for name, flags in (("", ()), ("-pie", ("-buildmode=pie", "-ldflags=-s -w")))},
    "changes": ("selftests/programs/changes.c", ("-O2", "-static-pie")),
    "waits": ("selftests/programs/waits.c", ("-O2", "-g", "-static-pie")),
    "keeps": ("selftests/programs/keeps.c", ("-O2", "-g", "-static-pie")),
    "frames": ("selftests/programs/frames.cpp", ("-O2", "-static-pie", "-fPIE", "-fno-optimize-sibling-calls")),
    "known": ("selftests/programs/known.c", ("-O2", "-g", "-static-pie", BUILD_ID)),
    "known-stripped": ("selftests/programs/known.c", ("-O2", "-s", "-static-pie", BUILD_ID)),
    **{f"framed-{size}": ("selftests/programs/framed.c",
                          ("-O2", "-static-pie", "-Wno-maybe-uninitialized", f"-DBUFFER={size}", BUILD_ID))
       for size in (40, 72)},
    "compat": ("selftests/programs/compat.c", (*STATIC, "-m32", "-nostdlib", "-fno-pic")),
    "entry": ("tools/bench/guest/entry.c", ("-O2", "-static-pie"))}


def library(number, *flags, rotation=0, build_id=True):
    """A library that programs/libraries.c opens: its name there is its build-id, or a word for one without."""
    name, link = f"{number:040x}", f"-Wl,--build-id=0x{number:040x}"
    if not build_id:
        name, link = f"content-{number}", "-Wl,--build-id=none"
    return ("selftests/programs/library.c", ("-O2", "-shared", "-fPIC", "-fno-optimize-sibling-calls", link,
                                             f"-DROTATION={rotation}", f'-DNAME="{name}"', *flags))


COMPILERS = {".c": ("gcc", "-O1", "-Wall", "-Wextra", "-Werror"), ".cpp": ("clang++", "-O1", "-Wall", "-Wextra", "-Werror"),
             ".rs": ("rustc", "--edition=2021", "-O", "-Dwarnings", "-Clink-arg=-Wl,--build-id")}
# Those of one case only.
LIBRARIES = {
    f"{number}.so": library(number, *flags, rotation=number, build_id=build_id) for number, (flags, build_id) in enumerate((
        *[((), True)] * 7, *[((), False)] * 7, *[(("-fno-omit-frame-pointer",), True)] * 3,
        *[(("-Wl,-z,noseparate-code",), False)] * 3))}
OPENER = {"libraries": ("selftests/programs/libraries.c",
                        ("-O2", "-pie", "-fPIE", "-rdynamic", "-fno-optimize-sibling-calls")),
          "callers-cgo": ("selftests/programs/callers-cgo.go", ("-gcflags=all=-l", "-buildmode=pie"))}
NAMES = {
    "names-cpp": ("selftests/programs/names.cpp", ("-g",)),
    "names-cpp-stripped": ("selftests/programs/names.cpp", ("-s",)),
    "names-rust": ("selftests/programs/names.rs", ("-g",)),
    "names-rust-stripped": ("selftests/programs/names.rs", ("-Cstrip=symbols",)),
    "names-go": ("selftests/programs/names.go", ("-gcflags=all=-l",)),
    "names-go-stripped": ("selftests/programs/names.go",
                          ("-gcflags=all=-l", "-buildmode=pie", "-ldflags=-s -w -linkmode=external"))}
# Those of "make test": the newest, and the one that most people run.
KERNELS = ("deb13", "stable")
# Those with CONFIG_RUST and CONFIG_UNWIND_USER for what takes two of them.
NEWER = ("deb13", "deb14")


def definition(path):
    """The text of a kernel's file below tools/lib/kernels, and those of the kernels that it is based on."""
    text = path.read_text()
    bases = re.findall(r'^(?:base=|\. "\$lib/kernels/)([\w-]+)', text, re.MULTILINE)
    return text + "".join(definition(path.parent / base) for base in bases)


def kernels_with(line):
    """The kernels in whose definition a line begins so."""
    files = sorted(path for path in (TOP / "tools/lib/kernels").glob("*") if path.suffix != ".config")
    return tuple(path.name for path in files if re.search(f"^({line})", definition(path), re.MULTILINE))


ALL = kernels_with("")
# Those of "make matrix": all that are as fast as what people run, and there in any case.
MATRIX = tuple(kernel for kernel in ALL if kernel not in kernels_with("patience=|newer_than="))
# Stock kernels of another architecture: where they are not named, only `other_cases` run there. The one without
# fprobes. Their compiler, and the programs that cases run there.
ARM64 = kernels_with("arch=arm64")
OLD_ARM64 = "stable-arm64"
# Others without user stacks.
KERNEL_STACKS = kernels_with("user_stacks=''")
CROSS = {kernel: "aarch64-linux-gnu-" for kernel in ARM64}
ARM64_PROGRAMS = ("bpf", "callers", "callers-plain", "callers-static", "known", "pending", "permit", "reopen", "repeats",
                  "text")
# All files: which of them a program or a test reads is not known.
CHECKOUT = (".",)
# Placeholder in a command: the static build of the tool.
TOOL = "{tool}"
# And the directory of the programs.
BUILT = "{programs}"
# Debug kernels, slower than the others by about this factor.
DEBUG, KCSAN, DEBUG_RT, PATIENCE = "debug", "kcsan", "debug-rt", 8
WATCHED = kernels_with("patience=")
# A stock kernel, too, but only where it is named.
RT = "deb13-rt"
# What the packages are tried with.
PACKAGED = (*KERNELS, "deb14", "stable-rt", ARM64[0])
# One with frame pointers, without an ENDBR where the jump would be.
FRAMES = "fp"
# Built here, small.
SMALL = kernels_with("configs=|built_as=")
HOOKS = ("jump", "kprobe")
KPROBE_ONLY = kernels_with("hooks=kprobe")
MATRIX_CASES = ("oracle", "contexts", "lifetime", "reset", "race", "cycles", "native", "user-stacks", "user-oracle")
# kmalloc's slabs without objects that are kept for a CPU or given back after a grace period: what is in use is counted.
COUNTED = "slab_debug=F,kmalloc-*"
SLABS = ("--append", COUNTED)
# An instance whose buffer is kept over a boot, too.
CONTRACT = ("--append", f"{COUNTED} reserve_mem=4M:4096:trace trace_instance=boot_map@trace")
# Switches of the option, and loads of the module.
CYCLES, LONG_CYCLES = ("10", "3"), ("200", "50")
# Nested kprobes are skipped, so the kernel records the full stack.
MISSED = {
    "contexts": ("kprobe", "kretprobe"),
    "sources": (
        "func_stack_trace_kprobe", "func_stack_trace_kretprobe", "trace_printk_kprobe", "trace_printk_kretprobe",
        "kprobe_event", "kretprobe_event", "bpf_kprobe"),
}
CACHE = pathlib.Path(os.environ.get("STACKMAP_CACHE") or pathlib.Path.home() / ".cache/stackmap")


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that prints TAP, or test results of cargo, or just succeeds."""

    name: str
    command: tuple
    # The kernel of its guest.
    kernel: str = ""
    # Whether the command starts guests itself.
    starts_guests: bool = False
    oracle: tuple = None
    # Which script compares.
    judge: str = "oracle"
    # The kernels that must be set up before it starts.
    needs: tuple = ()
    # Whether the module of its guest uses the kernel's own Rust crates: RUST=kernel.
    native: bool = False
    # Files and directories that determine its result, with the commands that are installed: while they are unchanged, it is
    # not computed again. Not for what depends on the order in which CPUs run.
    inputs: tuple = ()

    @property
    def unpacked(self):
        """Whether its guest boots faster, but without KASLR."""
        counts = "--icount" in self.command and "offcpu" not in self.name
        return self.kernel in KERNELS and not counts and not re.search(r"\boracle|: record", self.name)

    @property
    def key(self):
        """Returns a hash of its command and of all that determines its result."""
        settings = {name: value for name, value in os.environ.items() if re.match("RUSTFLAGS|CARGO_|LOOM_|STACKMAP_LOOM", name)}
        rustc = subprocess.run(("rustc", "--version"), stdout=subprocess.PIPE, text=True, check=True).stdout
        command = [word.removeprefix(str(TOP)) for word in self.command]
        digest = hashlib.sha256(repr((command, sorted(settings.items()), os.uname().release, rustc)).encode())
        files = subprocess.run(("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *self.inputs),
                               cwd=TOP, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
        # The installed packages, and those that kernels are built with.
        versions = (pathlib.Path("/var/lib/dpkg/status"), *(CACHE / "chosen").glob("*"))
        for path in sorted((*versions, *(TOP / file for file in files if file))):
            if path.is_file():
                digest.update(f"{path.relative_to(TOP) if path.is_relative_to(TOP) else path} "
                              f"{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return digest.hexdigest()

    @property
    def tools(self):
        """Which builds of the command-line tool are in its command."""
        return {TOOL} if any(TOOL in word for word in self.command) else set()

    @functools.cached_property
    def text(self):
        """All that it runs in its guest, as far as that is not built."""
        files = [pathlib.Path(word.split(":")[0]) for word in self.command if word.startswith(str(TOP))]
        files = [file for path in files for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()]
        return "\n".join(file.read_text(encoding="utf-8") for file in files)

    def names(self, name):
        """Whether it names a file in /tests that begins so; where a variable does, the name is enough."""
        return f"/tests/{name}" in self.text or "/tests/$" in self.text and re.search(rf"\b{name}\b", self.text)

    @property
    def modules(self):
        """The directories of the test modules that it wants. For one of them tap.sh has functions."""
        return [directory for directory in MODULES if self.names(directory.name) or
                directory.name == "override" and re.search(r"^\s*(override|hold_recorder) ", self.text, re.MULTILINE)]

    @property
    def programs(self):
        """The names of the programs that it wants: those in its command, and all whose name begins as one in its text."""
        added = {word.split(":")[0].removeprefix(f"{BUILT}/") for word in self.command if word.startswith(BUILT)}
        return [name for name in (*PROGRAMS, *LIBRARIES, *OPENER, *NAMES)
                if name in added or name in PROGRAMS and self.names(name.partition("-")[0])]


def guest(name, kernel, *args, vm=(), timeout=300, oracle=None, judge="oracle"):
    """A script of selftests/guest in a guest."""
    label = " ".join((name, *args))
    timeout *= PATIENCE if kernel in WATCHED else 1
    command = (*vm, "--timeout", str(timeout), "--", str(TESTS / "guest" / name), *args)
    return Case(f"{kernel}: {label}", command, kernel=kernel, oracle=oracle, judge=judge)


def hooks(kernel):
    """The hooks that a kernel can take."""
    return HOOKS[1:] if kernel in KPROBE_ONLY else HOOKS


def contexts(kernel, hook):
    """Events from all contexts, and stacks from all that asks for one."""
    has_fprobes = kernel != OLD_ARM64
    for name, least in (("contexts", "1500"), ("sources", "600" if has_fprobes else "540")):
        missed = MISSED[name] if hook == "kprobe" else ()
        arguments, oracle = [hook], ["--of", name, "--least", least, "--full", "100"]
        if name == "sources" and kernel in SMALL:
            # Built small, without BPF.
            arguments.append("nobpf")
            oracle += ["--without", "bpf_"]
            missed = [source for source in missed if not source.startswith("bpf_")]
        if not has_fprobes:
            oracle += ["--without", "fprobe"]
        if name == "sources" and kernel in ARM64:
            # There is no NMI in which it prints.
            oracle += ["--without", "sysrq"]
        yield guest(name, kernel, *arguments, oracle=(*oracle, "--missed", ",".join(missed)))


def by_hook(kernel, hook):
    """What depends on the hook more than on the kernel."""
    yield from contexts(kernel, hook)
    yield guest("lifetime", kernel, hook)
    yield guest("instances", kernel, hook)
    yield guest("unserved", kernel, hook)
    # Small ones have no /proc/kcore.
    if kernel not in SMALL:
        yield guest("text", kernel, hook)


# The guest tests of the tool in Debian's userland, and the programs that they want in /tests.
IN_DEBIAN = {"beside": (), "offcpu": ("waits",), "pairs": ("keeps",), "names": NAMES}


def tool(kernel, name, *args, **more):
    """A script of tools/stackmap/tests/guest in a guest that has the tool."""
    command = ["--userland", "debian"] if name in IN_DEBIAN else []
    # Otherwise the machine can stop the guest between two programs' readings of a clock for one event.
    command += ["--icount", "--smp", "2"] if name == "offcpu" else []
    command += ["--timeout", "1200" if name == "beside" else "600", "--add", f"{TOOL}:/bin/stackmap"]
    for program in IN_DEBIAN.get(name, ()):
        command += ["--add", f"{BUILT}/{program}:/tests/{program}"]
    command += ["--", str(TOP / "tools/stackmap/tests/guest" / name), *args]
    return Case(f"{kernel}: the tool: {' '.join((name, *args))}", tuple(command), kernel=kernel, **more)


def libraries(kernel, calls, **more):
    """Stacks of code in libraries that come and go."""
    added = [word for name in (*LIBRARIES, *OPENER) for word in ("--add", f"{BUILT}/{name}:/tests/libraries/{name}")]
    return guest("user-libraries", kernel, str(calls), vm=("--userland", "debian", *added), judge="user-oracle",
                 oracle=("--libraries", str(calls // 2), str(4 * calls)), **more)


def oracle_of_user_stacks(kernel, calls, **more):
    """Stacks of programs that know what they have called."""
    return guest("user-oracle", kernel, str(calls), oracle=(str(2 * calls),), judge="user-oracle", **more)


def late_user_stacks(kernel, calls, *function, **more):
    """Stacks of events at the end of system calls, on arm64 in a function."""
    return guest("user-late", kernel, str(calls), *function, oracle=("--late", str(calls)), judge="user-oracle", timeout=180,
                 **more)


def race(kernel):
    """Two CPUs on two of the machine's."""
    return guest("race", kernel, vm=("--tcg", "multi"))


def every_case(kernel):
    """All scripts for one kernel, the longest first."""
    stock = kernel not in SMALL
    yield guest("faults", kernel, vm=("--userland", "debian"), timeout=600)
    if stock:
        yield tool(kernel, "record")
        yield tool(kernel, "filters")
        yield tool(kernel, "user")
        yield tool(kernel, "names", oracle=(TOOL,), judge=TOP / "tools/stackmap/tests/names")
        yield from (tool(kernel, name) for name in ("offcpu", "pairs", "flight", "bpf"))
        yield guest("reload", kernel)
    # It compares /proc/slabinfo, which this kernel lacks.
    if kernel != DEBUG_RT:
        yield from (guest("cycles", kernel, hook, *CYCLES, vm=SLABS, timeout=600) for hook in hooks(kernel))
    yield race(kernel)
    # The children of trace-cmd stream die in a kernel built small; without the module, too.
    yield guest("userland", kernel, *(() if stock else ("nostream",)), vm=("--userland", "debian"), timeout=600)
    for more in ((), ("instance",)):
        yield from (guest("oracle", kernel, hook, *more, oracle=()) for hook in hooks(kernel))
    yield guest("contract", kernel, vm=CONTRACT)
    yield guest("user-stacks", kernel)
    yield guest("recorders", kernel, hooks(kernel)[0], "20")
    calls = 2000 if kernel in WATCHED else 4000
    yield oracle_of_user_stacks(kernel, calls)
    yield late_user_stacks(kernel, 200)
    # The others count time in ticks, and are too fast for them: a file that is written twice in one is the same file.
    if stock or kernel in WATCHED:
        yield libraries(kernel, 1000 if stock else 500, timeout=600)
        yield guest("user-attacks", kernel, "0" if kernel in WATCHED else "6200")
    yield guest("user-pending", kernel)
    yield guest("symbols", kernel, vm=SLABS)
    yield guest("symbols-faults", kernel)
    yield guest("files", kernel, "5")
    yield guest("unwind", kernel)
    yield guest("reset", kernel)
    for hook in hooks(kernel):
        yield from by_hook(kernel, hook)
    yield guest("exhaustion", kernel, vm=("--icount",))
    if kernel == KERNELS[0]:
        bench = TOP / "tools/bench/guest"
        yield Case(f"{kernel}: instructions",
                   ("--icount", "--add", f"{bench}:/bench", "--timeout", "600", "--", str(bench / "gate")), kernel=kernel)
    yield guest("prototypes", kernel)
    yield guest("hotplug", kernel)
    yield guest("depth", kernel)
    if kernel == FRAMES:
        yield guest("storm", kernel, *hooks(kernel), "120", timeout=20 * 60)
    if kernel == DEBUG:
        yield guest("leak", kernel)
        yield Case(f"{kernel}: gdb", (str(TESTS / "gdb"),), kernel=kernel, starts_guests=True)


# What "make test" leaves to "make long-test": what the other kernel or hook shows, too, or what no kernel is known to
# make a difference to. Parts of names, after that of the kernel.
LATER = {
    "deb13": ("kprobe", "native: contract", "cycles", "oracle jump instance", "user-pending"),
    "stable": (
        "cycles kprobe", "text kprobe", "oracle jump instance", "reload", "race", "files", "reset", "exhaustion", "depth",
        "symbols", "hotplug", "user-attacks"),
    RT: ("oracle kprobe instance", "the tool: names"),
    **dict.fromkeys(WATCHED, ("oracle kprobe instance",)),
}


def kernel_stack_cases(kernel):
    """The scripts that make sense on a kernel without user stacks; and those of user stacks, where it has them by the
    module's own deferral. On arm64 that excludes the tool, which is built for the host, and the Debian userland, whose
    packages only a machine of that architecture can configure.
    """
    yield from (guest("cycles", kernel, hook, *CYCLES, vm=SLABS, timeout=900) for hook in hooks(kernel))
    if kernel not in (*ARM64, *KERNEL_STACKS):
        yield guest("user-stacks", kernel)
        yield oracle_of_user_stacks(kernel, 4000)
        yield late_user_stacks(kernel, 200)
        yield guest("user-attacks", kernel, "6200")
        yield guest("user-pending", kernel)
    if kernel in ARM64:
        yield oracle_of_user_stacks(kernel, 500, timeout=900)
        yield guest("user-pending", kernel, timeout=900)
        yield guest("user-entries", kernel, "200")
        yield guest("user-exec", kernel)
        # In the loop that does a task's works, and after it.
        yield late_user_stacks(kernel, 100, "fpsimd_restore_current_state")
        yield late_user_stacks(kernel, 100, "vtime_user_enter", vm=("--append", "nohz_full=1"))
    # Here this is one option for all instances.
    if kernel == "stable":
        yield tool(kernel, "functions")
    yield guest("reload", kernel)
    yield race(kernel)
    for more in ((), ("instance",)):
        yield from (guest("oracle", kernel, hook, *more, oracle=()) for hook in hooks(kernel))
    yield guest("contract", kernel, vm=CONTRACT)
    yield guest("symbols", kernel, vm=SLABS)
    yield guest("symbols-faults", kernel)
    yield guest("files", kernel, "5")
    yield guest("unwind", kernel)
    yield guest("reset", kernel)
    for hook in hooks(kernel):
        yield from by_hook(kernel, hook)
    yield guest("exhaustion", kernel, vm=("--icount",))
    yield guest("prototypes", kernel)
    yield guest("hotplug", kernel)
    yield guest("depth", kernel)


def native_cases(kernel):
    """Whether the sources are still those of a module in Rust for Linux."""
    for case in (guest("contract", kernel, vm=CONTRACT), guest("oracle", kernel, HOOKS[0], oracle=())):
        yield dataclasses.replace(case, name=f"{kernel}: native: {case.name.removeprefix(f'{kernel}: ')}", native=True)


def is_later(case):
    """Whether it is left to the long tests."""
    name = case.name.removeprefix(f"{case.kernel}: ")
    return any(re.search(rf"\b{part}\b", name) for part in LATER.get(case.kernel, ()))


def all_cases(kernel):
    """The cases of a kernel, whoever runs them."""
    if kernel in NEWER:
        yield from native_cases(kernel)
    few = dict.fromkeys((*ARM64, *KERNEL_STACKS, KERNELS[1]), kernel_stack_cases)
    yield from {KCSAN: kcsan_cases, **few}.get(kernel, every_case)(kernel)


def guest_cases(kernel):
    """What "make test" runs of a kernel."""
    yield from (case for case in all_cases(kernel) if not is_later(case))


def matrix_cases(kernel):
    """What "make matrix" runs of a kernel: the cases that it can make a difference to, and what an id costs there."""
    wanted = re.compile(f"{kernel}: ({'|'.join(MATRIX_CASES)})\\b(?!.* instance)")
    yield from (case for case in all_cases(kernel) if wanted.match(case.name))
    bench = str(TOP / "tools/bench/guest")
    for hook in hooks(kernel):
        command = ("--icount", "--add", f"{bench}:/bench", "--timeout", "900", "--", f"{bench}/ratio", hook)
        yield Case(f"{kernel}: ratio {hook}", command, kernel=kernel)


def other_cases():
    """What "make test" runs besides on another architecture: that ids are right, in all contexts, too, and user stacks."""
    yield guest("oracle", ARM64[0], HOOKS[0], oracle=())
    yield next(contexts(ARM64[0], HOOKS[0]))
    yield oracle_of_user_stacks(ARM64[0], 500, timeout=900)
    yield guest("user-entries", ARM64[0], "200")


def kcsan_cases(kernel):
    """What lets the hot path, its readers and the control path meet, for one that looks for data races."""
    yield guest("kcsan", kernel, vm=("--tcg", "multi"))
    yield race(kernel)
    for hook in HOOKS:
        yield from by_hook(kernel, hook)
    yield guest("oracle", kernel, HOOKS[0], oracle=())
    yield guest("reset", kernel)
    yield guest("symbols", kernel, vm=SLABS)
    yield guest("unwind", kernel)
    yield guest("user-stacks", kernel)
    yield guest("user-attacks", kernel, "0")
    yield oracle_of_user_stacks(kernel, 2000)


def long_cases(kernel):
    """What takes minutes: everything that moves at once, more cycles of the option and the module, and the rest."""
    seconds = 600 if kernel in WATCHED else 120
    for hook in hooks(kernel):
        yield guest("storm", kernel, hook, str(seconds), timeout=20 * 60)
    # Those of arm64 would take hours.
    if kernel not in (KCSAN, DEBUG_RT, *ARM64):
        for hook in hooks(kernel):
            yield guest("cycles", kernel, hook, *LONG_CYCLES, vm=SLABS, timeout=1200)
    # More than 5 million stacks are compared.
    yield guest("unwind", kernel, "4" if kernel in (*WATCHED, *ARM64) else "50", timeout=30 * 60)
    # Of the cycles there are more above.
    yield from (case for case in all_cases(kernel) if is_later(case) and "cycles" not in case.name)
    if kernel in ARM64:
        yield oracle_of_user_stacks(kernel, 5000, timeout=20 * 60)
    if kernel in (*ARM64, *KERNEL_STACKS):
        return
    yield from (guest("recorders", kernel, hook, str(seconds), timeout=20 * 60) for hook in hooks(kernel))
    yield guest("user-storm", kernel, str(seconds // 2), timeout=20 * 60, oracle=("--storm", "100"), judge="user-oracle")
    if kernel not in WATCHED:
        yield oracle_of_user_stacks(kernel, 50000, timeout=20 * 60)
        yield guest("user-pending", kernel, "10", timeout=20 * 60)
        # Where times of files are coarse, those that have just changed have no index.
        if kernel != KERNELS[1]:
            yield libraries(kernel, 25000, timeout=20 * 60)
    if kernel == KERNELS[0]:
        yield tool(kernel, "beside", "12")
        yield tool(kernel, "record", "local", "global", "perf", "mono", "mono_raw", "boot", "x86-tsc")
    # The debug information of the kernel is 1.2 GB to download.
    if kernel in NEWER:
        yield Case(f"{kernel}: vmcore", (str(TESTS / "vmcore"), kernel, TOOL), kernel=kernel, starts_guests=True)
    # Several guests of all kernels.
    if kernel == KERNELS[0]:
        for name in ("stable-ids", "fleet"):
            yield Case(f"host: {name}", (str(TESTS / name), TOOL, *NEWER), needs=NEWER, starts_guests=True)


def package_cases(kernel):
    """The Debian packages, installed in a chroot; and what kernels say that want signatures."""
    if kernel in PACKAGED:
        yield Case(f"packages: {kernel}", (str(TESTS / "packages"), kernel))
    if kernel not in KERNELS:
        return
    added = ("--add", f"{TOOL}:/bin/stackmap")
    for parameter in ("module.sig_enforce=1", "lockdown=integrity"):
        yield guest("signing", kernel, parameter, vm=("--append", parameter, *added))
    yield guest("signing", kernel, "loaded", vm=added)


def host_cases():
    """Tests that need no guest, or start their own."""
    stock = KERNELS[:1]
    yield Case("host: commands of the documents", (str(TESTS / "commands"), TOOL), needs=KERNELS)
    yield Case("host: the guest runner", (str(TOP / "tools/vm/selftest"),), needs=stock, inputs=("tools/vm", "tools/lib"))
    yield Case("host: make", (str(TESTS / "make"), TOOL), needs=stock, inputs=CHECKOUT)
    yield Case("host: litmus tests of the map's orderings", (str(TESTS / "litmus/herd"),), needs=stock, inputs=CHECKOUT)
    yield Case("host: cargo test", ("cargo", "test", "--quiet", "--workspace"), inputs=CHECKOUT)
    yield Case("host: the facade with AddressSanitizer",
               ("env", "RUSTC_BOOTSTRAP=1", "RUSTFLAGS=-Zsanitizer=address", "cargo", "test", "--quiet", "--package",
                "stackmap-facade", "--target", "x86_64-unknown-linux-gnu", "--target-dir", "target/asan"), inputs=CHECKOUT)
    yield Case("host: models of the map's races", (str(TESTS / "map/models"),),
               inputs=("Cargo.toml", "Cargo.lock", "src/map", "selftests/map"))
    yield Case("host: instructions of the map", (str(TOP / "tools/bench/gate"),),
               inputs=("Cargo.toml", "Cargo.lock", "src/map", "selftests/map/host.rs", "selftests/map/heap.rs", "tools/bench"))
    for name, command, needs in (
            ("the judge of user stacks", ("selftests/judge",), ()), ("rules of Go", ("selftests/go-rules",), stock),
            ("stacks of packaged programs", ("selftests/step-debian",), stock), ("one more kernel", ("selftests/kernels",), ()),
            ("packaging", ("selftests/packaging",), ()), ("the tool: readers", ("tools/stackmap/tests/readers", TOOL), ()),
            ("the tool: Perfetto", ("tools/stackmap/tests/perfetto-readers", TOOL), ()),
            ("the tool: view", ("tools/stackmap/tests/view", TOOL), ()),
            ("the tool: tables", ("tools/stackmap/tests/tables", TOOL), ())):
        yield Case(f"host: {name}", (str(TOP / command[0]), *command[1:]), needs=needs, inputs=CHECKOUT)


def lint_cases():
    """Each checker is one test."""
    stock = KERNELS[:1]
    for what, needs in (("rustfmt", stock), ("clippy-host", ()), ("clippy-kernel", stock), ("checkpatch", stock),
                        ("shellcheck", ()), ("python", ()), ("docs", stock), ("mutations", ()), ("clippy-fuzz", ()),
                        ("layout", ()), ("terms", ())):
        # Others read the history, too.
        inputs = CHECKOUT if what in ("clippy-host", "clippy-kernel", "clippy-fuzz", "checkpatch", "shellcheck") else ()
        yield Case(f"lint: {what}", (str(TESTS / "lint"), what), needs=needs, inputs=inputs)
