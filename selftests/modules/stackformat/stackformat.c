// SPDX-License-Identifier: GPL-2.0
/*
 * Makes ftrace:kernel_stack look as if its field "size" had another name, as long as it is loaded.
 */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/namei.h>
#include <linux/trace_events.h>

static struct trace_event_fields *field;
static const char *name;

static int __init stackformat_init(void)
{
	struct file_system_type *type = get_fs_type("tracefs");
	struct trace_event_file *file;
	struct vfsmount *mnt;
	struct path path;
	int ret;

	if (!type)
		return -ENODEV;
	mnt = kern_mount(type);
	if (IS_ERR(mnt))
		return PTR_ERR(mnt);
	ret = vfs_path_lookup(mnt->mnt_root, mnt, "events/ftrace/kernel_stack/format", 0, &path);
	if (!ret) {
		file = d_inode(path.dentry)->i_private;
		field = file->event_call->class->fields_array;
		name = field->name;
		field->name = "length";
		path_put(&path);
	}
	kern_unmount(mnt);
	return ret;
}
module_init(stackformat_init);

static void __exit stackformat_exit(void)
{
	field->name = name;
}
module_exit(stackformat_exit);

MODULE_DESCRIPTION("stackmap selftests: another format of kernel_stack");
MODULE_LICENSE("GPL");
