/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The binary export of the stack map: /sys/kernel/tracing/stack_map_bin.
 *
 * One struct stackmap_bin_header, then nr_stacks times a struct stackmap_bin_stack with its frames.
 * All fields are in the byte order of the machine that wrote them; the magic tells which.
 */
#ifndef _UAPI_STACKMAP_H
#define _UAPI_STACKMAP_H

#include <linux/types.h>

#define STACKMAP_BIN_MAGIC	0x464D5342
#define STACKMAP_BIN_VERSION	2

/* /sys/kernel/tracing/stack_map_user_bin: frames are words, see Documentation/abi. */
#define STACKMAP_BIN_MAGIC_USER	0x554D5346

struct stackmap_bin_header {
	__u32 magic;
	__u32 version;
	__u32 nr_stacks;
	__u32 load_id;		/* tells one load of the module from another; 0: unknown */
};

struct stackmap_bin_stack {
	__u32 stack_id;
	__u32 nr;		/* frames */
	__u32 ref_count;	/* events that carry the id; saturates at 2^31 - 1 */
	__u32 reserved;		/* 0 */
	__u64 ips[];		/* innermost frame first */
};

#endif /* _UAPI_STACKMAP_H */
