// SPDX-License-Identifier: GPL-2.0

// Calls the kernel from stacks that Go's runtime knows: callers-go LOG SEED CALLS.
//
// As callers.c, from several goroutines that stay on threads of their own, while others allocate, are collected and
// preempted. LOG is NUMBER.log; each goroutine has one, whose name has two digits more. What the runtime says begins with
// the caller of the function that calls the kernel, which the line "outer" says. The program is built without inlining:
// each function has its frame. The runtime leaves out what the compiler adds to a go or defer statement with arguments;
// here none has.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const (
	firstFD    = 1000000
	goroutines = 4
	depthMax   = 24
)

type caller struct {
	log                  *bufio.Writer
	state, number, calls uint64
	depth                int
}

func (c *caller) random(below uint64) uint64 {
	c.state = c.state*6364136223846793005 + 1442695040888963407
	return c.state >> 33 % below
}

// leaf calls close() in both ways that there are: the runtime knows, or not.
func (c *caller) leaf() {
	var pcs [2 * depthMax]uintptr

	nr := runtime.Callers(2, pcs[:])
	fmt.Fprint(c.log, c.number)
	for _, pc := range pcs[:nr] {
		fmt.Fprintf(c.log, " %x", pc)
	}
	fmt.Fprintln(c.log)
	if c.random(2) == 0 {
		syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(firstFD+c.number), 0, 0)
	} else {
		syscall.Close(int(firstFD + c.number))
	}
	c.number++
}

func (c *caller) small() { c.down() }

// large makes the stack grow, and with it move.
func (c *caller) large() {
	var words [3000]uint64

	words[c.random(uint64(len(words)))] = 1
	c.down()
	runtime.KeepAlive(&words)
}

func (c *caller) deferred() { defer func() { c.down() }() }

// recovered calls the kernel while a panic goes up.
func (c *caller) recovered() {
	defer func() { _ = recover() }()
	defer func() { c.down() }()
	panic("not a failure")
}

type downer interface{ down() }

func byInterface[T downer](what T) { what.down() }

func (c *caller) allocating() {
	garbage := make([][]byte, 16)
	for i := range garbage {
		garbage[i] = make([]byte, 1+c.random(2000))
	}
	c.down()
	runtime.KeepAlive(garbage)
}

func (c *caller) down() {
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > depthMax/4 || c.random(8) == 0 {
		c.leaf()
		return
	}
	switch c.random(6) {
	case 0:
		c.small()
	case 1:
		c.large()
	case 2:
		c.deferred()
	case 3:
		c.recovered()
	case 4:
		byInterface(c)
	case 5:
		c.allocating()
	}
}

func (c *caller) run(path string) {
	runtime.LockOSThread()
	file, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	c.log = bufio.NewWriter(file)
	fmt.Fprintf(c.log, "thread %d\n", syscall.Gettid())
	own, _ := os.Readlink("/proc/self/exe")
	maps, _ := os.ReadFile("/proc/self/maps")
	for _, line := range strings.Split(string(maps), "\n") {
		if fields := strings.Fields(line); len(fields) == 6 && fields[5] == own {
			start, end, _ := strings.Cut(fields[0], "-")
			fmt.Fprintf(c.log, "map %s %s %s\n", start, end, fields[2])
		}
	}
	fmt.Fprintln(c.log, "outer")
	for c.number < c.calls {
		c.down()
	}
	if err := c.log.Flush(); err != nil {
		panic(err)
	}
}

func main() {
	name := strings.TrimSuffix(os.Args[1], ".log")
	seed, _ := strconv.ParseUint(os.Args[2], 10, 64)
	calls, _ := strconv.ParseUint(os.Args[3], 10, 64)

	var all sync.WaitGroup
	for i := uint64(0); i < goroutines; i++ {
		all.Add(1)
		nr := i
		go func() {
			defer all.Done()
			c := caller{state: 100*seed + nr, calls: calls}
			c.run(fmt.Sprintf("%s%02d.log", name, nr))
		}()
	}
	all.Wait()
}
