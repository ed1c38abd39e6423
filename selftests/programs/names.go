// SPDX-License-Identifier: GPL-2.0

// Waits in frames that Go has: a closure, an instance of a generic function, a method.
package main

import (
	"runtime"
	"syscall"
)

type street struct{}

func (*street) wait() { syscall.Pause() }

func crossed[T interface{ wait() }](way T) { way.wait() }

func init() {
	// The thread that is looked at.
	runtime.LockOSThread()
}

func main() {
	func() { crossed(&street{}) }()
}
