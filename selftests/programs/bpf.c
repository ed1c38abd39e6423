// SPDX-License-Identifier: GPL-2.0
/*
 * Attaches a BPF program that calls bpf_trace_printk(), and leaves it attached: bpf HOW WHERE PATH.
 *
 * HOW is raw_tracepoint or kprobe, WHERE the name of a tracepoint or of a function. The program
 * prints "tp hit" or "kp hit", has the name stackmap_test in symbols, and stays until PATH, in the
 * BPF file system, is removed. Made of system calls alone: nothing but the compiler is needed.
 */
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <linux/types.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define INSN(op, to, from, offset, value) ((struct bpf_insn) {		\
	.code = (op), .dst_reg = (to), .src_reg = (from), .off = (offset), .imm = (value) })

static __u64 address(const void *of)
{
	return (unsigned long)of;
}

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

/* bpf_trace_printk(text, 8), the text, of up to 7 bytes, put on the program's stack. */
static int load(enum bpf_prog_type type, const char *text)
{
	static char log[1 << 14];
	__u32 words[2] = { 0 };
	int ret;

	memcpy(words, text, strlen(text));
	const struct bpf_insn program[] = {
		INSN(BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -8, words[0]),
		INSN(BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -4, words[1]),
		INSN(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_1, BPF_REG_10, 0, 0),
		INSN(BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_1, 0, 0, -8),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_2, 0, 0, 8),
		INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_trace_printk),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0),
		INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};
	union bpf_attr attr = {
		.prog_type = type,
		.insns = address(program),
		.insn_cnt = ARRAY_SIZE(program),
		.license = address("GPL"),
		.log_buf = address(log),
		.log_size = sizeof(log),
		.log_level = 1,
		.prog_name = "stackmap_test",
	};

	ret = bpf(BPF_PROG_LOAD, &attr);
	if (ret < 0)
		fputs(log, stderr);
	return ret;
}

static int attach_tracepoint(const char *name)
{
	union bpf_attr attr = { 0 };

	attr.raw_tracepoint.name = address(name);
	attr.raw_tracepoint.prog_fd = load(BPF_PROG_TYPE_RAW_TRACEPOINT, "tp hit");
	return bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
}

static int attach_kprobe(const char *name)
{
	struct perf_event_attr probe = { .size = sizeof(probe), .kprobe_func = address(name) };
	FILE *type = fopen("/sys/bus/event_source/devices/kprobe/type", "r");
	union bpf_attr attr = { 0 };

	if (!type || fscanf(type, "%u", &probe.type) != 1)
		return -1;
	fclose(type);
	attr.link_create.prog_fd = load(BPF_PROG_TYPE_KPROBE, "kp hit");
	attr.link_create.target_fd = syscall(SYS_perf_event_open, &probe, -1, 0, -1,
					     PERF_FLAG_FD_CLOEXEC);
	attr.link_create.attach_type = BPF_PERF_EVENT;
	return bpf(BPF_LINK_CREATE, &attr);
}

int main(int argc, char **argv)
{
	union bpf_attr attr = { 0 };
	int link;

	if (argc != 4)
		return 2;
	if (!strcmp(argv[1], "kprobe"))
		link = attach_kprobe(argv[2]);
	else
		link = attach_tracepoint(argv[2]);
	attr.pathname = address(argv[3]);
	attr.bpf_fd = link;
	if (link < 0 || bpf(BPF_OBJ_PIN, &attr)) {
		perror(argv[3]);
		return 1;
	}
	return 0;
}
