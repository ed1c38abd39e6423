# SPDX-License-Identifier: GPL-2.0
"""Shows the stacks, the trace and the counters of stackmap after a crash, from a vmcore; or those of the running kernel."""

import argparse
import contextlib
import os
import re
import signal
import struct
import sys

import drgn

if tuple(map(int, re.findall(r"\d+", drgn.__version__)[:2])) < (0, 1):
    sys.exit(f"stackmap.py: drgn {drgn.__version__} is too old, 0.1.0 is needed: pip install drgn")
from drgn.helpers.linux.kallsyms import module_kallsyms
from drgn.helpers.linux.module import find_module

sys.dont_write_bytecode = True
from vmcore import DAMAGE, Problem, counters, ring, show
from vmcore.capture import Capture
from vmcore.maps import Map
from vmcore.names import Names
from vmcore.rust import CRATE, static
from vmcore.users import Users

EPILOG = """\
examples:
  drgn -c vmcore -s vmlinux stackmap.py --module stackmap.ko --force map
  drgn -c vmcore -s vmlinux stackmap.py --module stackmap.ko --force trace --instance boot
  drgn -c vmcore -s vmlinux stackmap.py --module stackmap.ko --force save crash.data

stackmap.ko is made with DEBUG_INFO=y from the source of the module that ran, for the same kernel and by the same
compilers.
"""


def parse(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(prog="stackmap.py", description=__doc__, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", metavar="KO", help="a stackmap.ko made with DEBUG_INFO=y")
    parser.add_argument("--force", action="store_true", help="use the file of --module although its build-id differs")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("map", help="the stacks, as stack_map shows them")
    command.add_argument("--user", action="store_true", help="the user stacks, as stack_map_user shows them")
    command.add_argument("ids", metavar="ID", type=int, nargs="*", help="only the stacks with these ids")
    command = commands.add_parser("trace", help="the events of a ring buffer, each with its stack")
    command.add_argument("--cpu", metavar="N", type=int, action="append", default=[],
                         help="only those of this CPU; can be repeated")
    commands.add_parser("stat", help="the counters, as stack_map_stat and stack_map_user_stat show them")
    save = commands.add_parser("save", help="writes a capture for the program stackmap: report, flame, export ...")
    save.add_argument("file", metavar="FILE",
                      help="the capture; an existing file is replaced, a device or a FIFO is written to; - is standard output")
    for command in (commands.choices["trace"], save):
        command.add_argument("--instance", metavar="NAME", default="", help="the buffer of this instance of ftrace")
    return parser.parse_args(arguments)


def release_of(prog):
    """What `uname -r` said, by what a kernel leaves for those who read its memory."""
    for line in prog["VMCOREINFO"].string_().decode(errors="replace").splitlines():
        if line.startswith("OSRELEASE="):
            return line.partition("=")[2]
    return "?"


def build_id_text(module):
    """The build-id of a module, to be compared with `readelf -n`."""
    return module.build_id.hex() if module.build_id else "unknown"


def prepare(prog, options):
    """Sees to it that the types of the kernel and of the module are known."""
    if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        raise Problem("this is not the memory of a Linux kernel",
                      "drgn -c vmcore takes a dump by kdump, or by dump-guest-memory of QEMU")
    # The only language of drgn whose names may have several parts, as those of Rust have.
    prog.language = drgn.Language.CPP
    try:
        kernel = prog.main_module()
    except LookupError:
        kernel = None
    if kernel is None or kernel.wants_debug_file():
        raise Problem(f"no debug information of the kernel {release_of(prog)}",
                      "give its vmlinux with -s; Debian has it in linux-image-RELEASE-dbg")
    found = find_module(prog, "stackmap")
    if not found:
        raise Problem(f"the module stackmap was not loaded in this kernel {release_of(prog)}")
    if found.state in (prog["MODULE_STATE_UNFORMED"], prog["MODULE_STATE_COMING"]):
        raise Problem("the module stackmap was just being loaded: it had not recorded anything")
    module = prog.linux_kernel_loadable_module(found, create=True)
    module = module[0] if isinstance(module, tuple) else module
    if options.module:
        use_file(module, options)
    if module.wants_debug_file():
        raise Problem(f"no debug information of the module stackmap, build-id {build_id_text(module)}",
                      "give one made with DEBUG_INFO=y, with --module and --force")
    try:
        prog.type("stackmap_main::map::Map")
    except LookupError:
        taken = options.module and not os.path.samefile(options.module, module.debug_file_path)
        raise Problem(f"{module.debug_file_path} has no debug information of Rust code",
                      "drgn takes this file before that of --module: add --no-default-symbols, and give vmlinux alone with -s"
                      if taken else "build it with make DEBUG_INFO=y, and do not strip it") from None
    check_addresses(prog, module, found)


def use_file(module, options):
    """Has drgn take the file of --module."""
    path = options.module
    with open(path, "rb") as file:
        magic = file.read(4)
    module.try_file(path, force=options.force)
    if not module.wants_debug_file():
        return
    # Of a program without modules, any file is taken that has debug information.
    alone = drgn.Program(module.prog.platform).extra_module(path, create=True)
    alone = alone[0] if isinstance(alone, tuple) else alone
    alone.try_file(path, force=True)
    if not alone.wants_debug_file():
        raise Problem(f"{path} is another build than the module that ran, whose build-id is {build_id_text(module)}",
                      "add --force if it was built from the same source by the same compiler")
    if magic == b"\x7fELF":
        raise Problem(f"{path} has no debug information", "it was stripped: build the module again")
    raise Problem(f"{path} is not an ELF file, or compressed in a way that drgn does not know")


def check_addresses(prog, module, found):
    """Compares where a file has the module's statics with where the kernel's own symbols say that they are."""
    known = {symbol.name: symbol.address for symbol in module_kallsyms(found)}
    for path in ("store::KERNEL", "store::USER", "user::STATE", "modules::CHANGED_TEXT"):
        mangled = "".join(f"{len(part)}{part}" for part in (CRATE, *path.split("::")))
        address = next((known[name] for name in known if name.startswith("_RNv") and name.endswith(mangled)), None)
        if address not in (None, static(prog, path).address_):
            raise Problem(f"{module.debug_file_path} has {path} elsewhere than the module that ran",
                          "it was built from another source, or by another compiler")


def tell_damage():
    """Says how much could not be read, where something could not."""
    for what, damaged in DAMAGE.items():
        print(f"stackmap.py: WARNING: {len(damaged)} {what} cannot be read, and are left out", file=sys.stderr)


def run(prog, options):
    """Prints what was asked for."""
    prepare(prog, options)
    out = sys.stdout.write
    stacks = Map.of(prog, "KERNEL")
    users = Users(prog)
    if options.command == "stat":
        for line in (*counters.stat(prog, stacks), *(("\n", *counters.user_stat(prog, users)) if users.map else ())):
            out(line)
        return
    if options.command != "map" or not options.user:
        names = Names(prog)
    if options.command == "map":
        shown, switch = (users.map, "stackmap-user") if options.user else (stacks, "stackmap")
        if not shown:
            raise Problem("this map was not made yet", f"that happens when options/{switch} is first switched on")
        if not shown.generation:
            raise Problem("a reset of the map was running: it has no stacks that are valid")
        for line in show.user_map(users, options.ids) if options.user else show.kernel_map(stacks, names, options.ids):
            out(line)
        gone = [str(stack_id) for stack_id in options.ids if not shown.find(stack_id)]
        if gone:
            raise Problem(f"the map has no stack {', '.join(gone)}: a reset has removed it, or it is of another load "
                          "of the module")
        return
    buffer = ring.Buffer(ring.find(prog, options.instance))
    if options.command == "trace":
        there = [cpu for cpu, _ in buffer.cpus()]
        wrong = [str(cpu) for cpu in options.cpu if cpu not in there]
        if wrong:
            raise Problem(f"no buffer of CPU {', '.join(wrong)}", f"there are those of {', '.join(map(str, there))}")
        for line in show.Trace(buffer, stacks, users, names).text(options.cpu):
            out(line)
    else:
        nr = Capture(buffer, stacks, users, names).write(options.file)
        sys.stdout.flush()
        print(f'{options.file}: {nr} records, {stacks.entries if stacks else 0} stacks; '
              f'see it with "stackmap report {options.file}"', file=sys.stderr)


def main():
    """The exit status."""
    # So that nothing unfinished is left.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if sys.stdout is None:
        return 1
    options = parse(sys.argv[1:])
    try:
        try:
            run(drgn.get_default_prog(), options)
        finally:
            tell_damage()
        sys.stdout.flush()
    except Problem as problem:
        print(f"stackmap.py: {problem}", file=sys.stderr)
        if problem.hint:
            print(f"  hint: {problem.hint}", file=sys.stderr)
        return 1
    except drgn.FaultError as error:
        print(f"stackmap.py: memory is not in the dump: {error}\n"
              "  hint: the dump is truncated, or pages were left out of it", file=sys.stderr)
        return 1
    except drgn.NoDefaultProgramError:
        print("stackmap.py: there is no memory to read\n  hint: drgn -c vmcore stackmap.py ...", file=sys.stderr)
        return 1
    except (AttributeError, LookupError, MemoryError, OverflowError, TypeError, ValueError, struct.error) as error:
        print(f"stackmap.py: {error}\n"
              "  hint: the kernel or the module is of another version than this script knows", file=sys.stderr)
        return 1
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"stackmap.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
