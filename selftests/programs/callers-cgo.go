// SPDX-License-Identifier: GPL-2.0

// Calls the kernel from Go that C has called, which Go has called: callers-cgo LOG SEED CALLS.
//
// As callers.go, in one thread, and in C or in Go. What the program says of a call in Go ends with runtime.cgocallbackg(),
// which code in assembly calls that switches from C's stack, and that of a call in C with its caller. The line "cut" says that
// stacks end there or soon after.
package main

/*
#include <stddef.h>
#include <sys/syscall.h>
#include "call.h"

struct ips { unsigned long call, caller; };

void enterGo(void);

// The compiler has both more than once.
static __attribute__((noinline, unused)) struct ips callKernel(long fd)
{
	return (struct ips) { CALL(SYS_close, fd, 0L, 0L, NULL),
			      (unsigned long)__builtin_return_address(0) };
}

static __attribute__((noinline, unused)) void enterC(void)
{
	enterGo();
	asm volatile("");
}
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

const firstFD = 1000000

var (
	log                  *bufio.Writer
	state, number, calls uint64
)

func random(below uint64) uint64 {
	state = state*6364136223846793005 + 1442695040888963407
	return state >> 33 % below
}

func leaf() {
	var pcs [64]uintptr

	fd := firstFD + number
	fmt.Fprint(log, number)
	number++
	if random(2) == 0 {
		ips := C.callKernel(C.long(fd))
		fmt.Fprintf(log, " %x %x\n", ips.call, ips.caller)
		return
	}
	for _, pc := range pcs[:runtime.Callers(2, pcs[:])] {
		fmt.Fprintf(log, " %x", pc)
		if runtime.FuncForPC(pc).Name() == "runtime.cgocallbackg" {
			break
		}
	}
	fmt.Fprintln(log)
	syscall.Close(int(fd))
}

func down() {
	switch random(4) {
	case 0:
		leaf()
	case 1:
		C.enterC()
	default:
		down()
	}
}

//export enterGo
func enterGo() { down() }

func main() {
	runtime.LockOSThread()
	state, _ = strconv.ParseUint(os.Args[2], 10, 64)
	calls, _ = strconv.ParseUint(os.Args[3], 10, 64)
	file, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	log = bufio.NewWriter(file)
	fmt.Fprintf(log, "thread %d\n", syscall.Gettid())
	own, _ := os.Readlink("/proc/self/exe")
	maps, _ := os.ReadFile("/proc/self/maps")
	for _, line := range strings.Split(string(maps), "\n") {
		if fields := strings.Fields(line); len(fields) == 6 && fields[5] == own {
			start, end, _ := strings.Cut(fields[0], "-")
			fmt.Fprintf(log, "map %s %s %s\n", start, end, fields[2])
		}
	}
	fmt.Fprintln(log, "cut")
	for number < calls {
		C.enterC()
	}
	if err := log.Flush(); err != nil {
		panic(err)
	}
}
