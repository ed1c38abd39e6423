// SPDX-License-Identifier: GPL-2.0
/*
 * Attaches a BPF program that calls bpf_trace_printk(), and leaves it attached:
 * bpf HOW WHERE PATH [TIMES]. Says the address, the name in symbols, and the number of a program
 * at a kprobe. bpf gone NUMBER waits until there is no such program.
 *
 * HOW is raw_tracepoint, tail_call, kprobe, fentry or fexit, WHERE the name of a tracepoint or
 * of a function. The program prints "tp hit", "tc hit", "kp hit", "fe hit" or "fx hit", as many
 * TIMES, has the name stackmap_test in symbols, and stays until PATH, in the BPF file system, is
 * removed. What a program at a tracepoint calls by a tail call is removed 0.1 s after it was added,
 * also while it runs. Made of system calls alone: nothing but the compiler is needed.
 */
#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/perf_event.h>
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Bytes after a type in BTF, but for those of each member; -1 if the kind is not known. */
static long type_size(__u32 kind, __u32 members)
{
	switch (kind) {
	case BTF_KIND_PTR:
	case BTF_KIND_FWD:
	case BTF_KIND_TYPEDEF:
	case BTF_KIND_VOLATILE:
	case BTF_KIND_CONST:
	case BTF_KIND_RESTRICT:
	case BTF_KIND_FUNC:
	case BTF_KIND_FLOAT:
	case BTF_KIND_TYPE_TAG:
		return 0;
	case BTF_KIND_INT:
	case BTF_KIND_VAR:
	case BTF_KIND_DECL_TAG:
		return sizeof(__u32);
	case BTF_KIND_ARRAY:
		return sizeof(struct btf_array);
	case BTF_KIND_ENUM:
		return members * sizeof(struct btf_enum);
	case BTF_KIND_FUNC_PROTO:
		return members * sizeof(struct btf_param);
	case BTF_KIND_STRUCT:
	case BTF_KIND_UNION:
	case BTF_KIND_DATASEC:
	case BTF_KIND_ENUM64:
		/* All have three words a member. */
		return members * sizeof(struct btf_member);
	default:
		return -1;
	}
}

/* The number of a function's type in the kernel's BTF; 0 if it has none. */
static __u32 function_type(const char *name)
{
	static char btf[32 << 20];
	const struct btf_header *header = (void *)btf;
	FILE *file = fopen("/sys/kernel/btf/vmlinux", "r");
	const char *at, *end, *strings;
	__u32 number = 1;

	if (!file)
		return 0;
	if (fread(btf, 1, sizeof(btf), file) < sizeof(*header) || header->magic != BTF_MAGIC)
		return 0;
	fclose(file);
	strings = btf + header->hdr_len + header->str_off;
	at = btf + header->hdr_len + header->type_off;
	end = at + header->type_len;
	while (at < end) {
		const struct btf_type *type = (void *)at;
		const __u32 kind = BTF_INFO_KIND(type->info);
		const long size = type_size(kind, BTF_INFO_VLEN(type->info));

		if (kind == BTF_KIND_FUNC && !strcmp(strings + type->name_off, name))
			return number;
		if (size < 0)
			return 0;
		at += sizeof(*type) + size;
		number++;
	}
	return 0;
}

/* WHERE is of programs that are part of a function, and the attach type that of these. */
static int load(enum bpf_prog_type type, const struct bpf_insn *program, __u32 len,
		const char *where, enum bpf_attach_type attach)
{
	static char log[1 << 20];
	union bpf_attr attr = {
		.prog_type = type,
		.insns = address(program),
		.insn_cnt = len,
		.license = address("GPL"),
		.log_buf = address(log),
		.log_size = sizeof(log),
		.log_level = 1,
		.prog_name = "stackmap_test",
		.expected_attach_type = attach,
		.attach_btf_id = where ? function_type(where) : 0,
	};
	const int ret = bpf(BPF_PROG_LOAD, &attr);

	if (ret < 0)
		fputs(log, stderr);
	return ret;
}

/* bpf_trace_printk(text, 8), several times: the text, of up to 7 bytes, on the program's stack. */
static int load_printk(enum bpf_prog_type type, const char *text, int times, const char *where,
		       enum bpf_attach_type attach)
{
	__u32 words[2] = { 0 };

	memcpy(words, text, strlen(text));
	const struct bpf_insn program[] = {
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_6, 0, 0, times),
		INSN(BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -8, words[0]),
		INSN(BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -4, words[1]),
		INSN(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_1, BPF_REG_10, 0, 0),
		INSN(BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_1, 0, 0, -8),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_2, 0, 0, 8),
		INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_trace_printk),
		INSN(BPF_ALU64 | BPF_SUB | BPF_K, BPF_REG_6, 0, 0, 1),
		INSN(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_6, 0, -8, 0),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0),
		INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};

	return load(type, program, ARRAY_SIZE(program), where, attach);
}

/*
 * A jump to the program of a file descriptor, through a map that holds it, twice, while this
 * process lives. Which of both is used is random: for a constant, the kernel would wait until
 * nobody runs the program before it lets go of it.
 */
static int load_tail_call(enum bpf_prog_type type, int to)
{
	union bpf_attr create = {
		.map_type = BPF_MAP_TYPE_PROG_ARRAY,
		.key_size = sizeof(__u32),
		.value_size = sizeof(__u32),
		.max_entries = 2,
	};
	const int map = bpf(BPF_MAP_CREATE, &create);
	__u32 key;
	union bpf_attr update = {
		.map_fd = map,
		.key = address(&key),
		.value = address(&to),
	};
	const struct bpf_insn program[] = {
		INSN(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_6, BPF_REG_1, 0, 0),
		INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_get_prandom_u32),
		INSN(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_1, BPF_REG_6, 0, 0),
		INSN(BPF_LD | BPF_DW | BPF_IMM, BPF_REG_2, BPF_PSEUDO_MAP_FD, 0, map),
		INSN(0, 0, 0, 0, 0),
		INSN(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_3, BPF_REG_0, 0, 0),
		INSN(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_3, 0, 0, 1),
		INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_tail_call),
		INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0),
		INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};

	for (key = 0; key < create.max_entries; key++)
		if (bpf(BPF_MAP_UPDATE_ELEM, &update))
			return -1;
	return load(type, program, ARRAY_SIZE(program), NULL, 0);
}

static int attach_tracepoint(const char *name, int program)
{
	union bpf_attr attr = { 0 };

	attr.raw_tracepoint.name = address(name);
	attr.raw_tracepoint.prog_fd = program;
	return bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
}

static int attach_kprobe(const char *name, int program)
{
	struct perf_event_attr probe = { .size = sizeof(probe), .kprobe_func = address(name) };
	FILE *type = fopen("/sys/bus/event_source/devices/kprobe/type", "r");
	union bpf_attr attr = { 0 };

	if (!type || fscanf(type, "%u", &probe.type) != 1)
		return -1;
	fclose(type);
	attr.link_create.prog_fd = program;
	attr.link_create.target_fd = syscall(SYS_perf_event_open, &probe, -1, 0, -1,
					     PERF_FLAG_FD_CLOEXEC);
	attr.link_create.attach_type = BPF_PERF_EVENT;
	return bpf(BPF_LINK_CREATE, &attr);
}

/* As in /proc/kallsyms, which takes seconds to read. */
static int tell(int prog)
{
	__u64 start = 0;
	struct bpf_prog_info info = { .nr_jited_ksyms = 1, .jited_ksyms = address(&start) };
	union bpf_attr attr = {
		.info.bpf_fd = prog, .info.info_len = sizeof(info), .info.info = address(&info),
	};
	unsigned int i;

	if (bpf(BPF_OBJ_GET_INFO_BY_FD, &attr))
		return -1;
	printf("%016llx bpf_prog_", start);
	for (i = 0; i < sizeof(info.tag); i++)
		printf("%02x", info.tag[i]);
	printf("_%s %u\n", info.name, info.id);
	return 0;
}

static int wait_for_end(unsigned int id)
{
	union bpf_attr attr = { .prog_id = id };
	int tries, fd;

	for (tries = 0; tries < 200; tries++) {
		fd = bpf(BPF_PROG_GET_FD_BY_ID, &attr);
		if (fd < 0)
			return 0;
		close(fd);
		usleep(10000);
	}
	return 1;
}

int main(int argc, char **argv)
{
	const enum bpf_prog_type raw = BPF_PROG_TYPE_RAW_TRACEPOINT;
	const char *how = argv[1], *where = argv[2];
	union bpf_attr attr = { 0 };
	const enum bpf_prog_type tracing = BPF_PROG_TYPE_TRACING;
	int link, times, prog;

	if (argc == 3 && !strcmp(how, "gone"))
		return wait_for_end(atoi(where));
	if (argc != 4 && argc != 5)
		return 2;
	times = argc == 5 ? atoi(argv[4]) : 1;
	if (!strcmp(how, "kprobe")) {
		prog = load_printk(BPF_PROG_TYPE_KPROBE, "kp hit", times, NULL, 0);
		link = attach_kprobe(where, prog);
	} else if (!strcmp(how, "fentry")) {
		prog = load_printk(tracing, "fe hit", times, where, BPF_TRACE_FENTRY);
		link = attach_tracepoint(NULL, prog);
	} else if (!strcmp(how, "fexit")) {
		prog = load_printk(tracing, "fx hit", times, where, BPF_TRACE_FEXIT);
		link = attach_tracepoint(NULL, prog);
	} else if (!strcmp(how, "tail_call")) {
		prog = load_tail_call(raw, load_printk(raw, "tc hit", times, NULL, 0));
		link = attach_tracepoint(where, prog);
	} else {
		prog = load_printk(raw, "tp hit", times, NULL, 0);
		link = attach_tracepoint(where, prog);
	}
	attr.pathname = address(argv[3]);
	attr.bpf_fd = link;
	if (link < 0 || bpf(BPF_OBJ_PIN, &attr) || (!strcmp(how, "kprobe") && tell(prog))) {
		perror(argv[3]);
		return 1;
	}
	if (!strcmp(how, "tail_call"))
		usleep(100000);
	return 0;
}
