// SPDX-License-Identifier: GPL-2.0
/*
 * Makes tracefs another one than it is, as long as it is loaded: the field "size" of
 * ftrace:kernel_stack has another name; or, with file=PATH like=PATH, the one file is of what the
 * other one is of.
 */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/trace_events.h>

static char *file = "/sys/kernel/tracing/events/ftrace/kernel_stack/format";
module_param(file, charp, 0400);
static char *like;
module_param(like, charp, 0400);

static struct path path;
static void *private;
static struct trace_event_fields *field;
static const char *name;

static int __init stackformat_init(void)
{
	const struct trace_event_file *event;
	struct path other;
	int ret = kern_path(file, 0, &path);

	if (ret)
		return ret;
	private = d_inode(path.dentry)->i_private;
	if (!like) {
		event = private;
		field = event->event_call->class->fields_array;
		name = field->name;
		field->name = "length";
		return 0;
	}
	ret = kern_path(like, 0, &other);
	if (ret) {
		path_put(&path);
		return ret;
	}
	d_inode(path.dentry)->i_private = d_inode(other.dentry)->i_private;
	path_put(&other);
	return 0;
}
module_init(stackformat_init);

static void __exit stackformat_exit(void)
{
	if (field)
		field->name = name;
	d_inode(path.dentry)->i_private = private;
	path_put(&path);
}
module_exit(stackformat_exit);

MODULE_DESCRIPTION("stackmap selftests: another tracefs");
MODULE_LICENSE("GPL");
