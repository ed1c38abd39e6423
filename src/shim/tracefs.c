// SPDX-License-Identifier: GPL-2.0
/*
 * tracefs from inside the kernel: its root, what the inodes of its files carry, and our own files.
 *
 * struct trace_array and the events of the core are reached through the inodes that tracefs keeps
 * for them, not through symbols: i_private of "tracing_on" is the trace array, that of an event's
 * "format" is its struct trace_event_file.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/namei.h>
#include <linux/printk.h>
#include <linux/security.h>
#include <linux/slab.h>
#include <linux/sprintf.h>
#include <linux/string.h>
#include <linux/trace_events.h>
#include <linux/tracefs.h>

#include "shim.h"

struct trace_array *stackmap_tr __ro_after_init;

static struct vfsmount *root;

/**
 * stackmap_tracefs_allowed - whether lockdown lets anybody see what tracefs has
 *
 * It can come at any time. The kernel's own files ask when they are opened.
 *
 * Context: process.
 * Return: 0 or -EPERM; that is in the kernel's log, too.
 */
int stackmap_tracefs_allowed(void)
{
	return security_locked_down(LOCKDOWN_TRACEFS) ? -EPERM : 0;
}

/**
 * stackmap_tracefs_mount - get hold of tracefs, wherever it is mounted, if it is
 *
 * Context: process.
 * Return: 0, -EPERM if tracefs is locked down, -ENODEV if the kernel has none, or what mounting
 * says.
 */
int stackmap_tracefs_mount(void)
{
	struct file_system_type *type;
	struct vfsmount *mnt;
	int ret = stackmap_tracefs_allowed();

	if (ret)
		return ret;
	type = get_fs_type("tracefs");
	if (!type)
		return -ENODEV;
	mnt = kern_mount(type);
	if (IS_ERR(mnt))
		return PTR_ERR(mnt);
	root = mnt;
	return 0;
}

void stackmap_tracefs_unmount(void)
{
	kern_unmount(root);
}

static int lookup(const char *name, struct path *path)
{
	return vfs_path_lookup(root->mnt_root, root, name, 0, path);
}

/**
 * stackmap_tracefs_exists - whether a file is there
 * @name: its path below tracefs' root
 *
 * Context: process.
 * Return: 1, 0, or why it could not be looked up.
 */
int stackmap_tracefs_exists(const char *name)
{
	struct path path;
	int ret = lookup(name, &path);

	if (ret)
		return ret == -ENOENT ? 0 : ret;
	path_put(&path);
	return 1;
}

/* The i_private of a file; it outlives the lookup as the thing that the file shows does. */
static void *private_of(const char *name)
{
	struct path path;
	void *data;
	int ret = lookup(name, &path);

	if (ret) {
		pr_err("tracefs has no %s (%d)\n", name, ret);
		return ERR_PTR(ret);
	}
	data = d_inode(path.dentry)->i_private;
	path_put(&path);
	return data ?: ERR_PTR(-EINVAL);
}

/**
 * stackmap_tracefs_trace_array - find the top-level trace array
 *
 * Context: process.
 * Return: 0 or an errno.
 */
int stackmap_tracefs_trace_array(void)
{
	void *tr = private_of("tracing_on");

	if (IS_ERR(tr))
		return PTR_ERR(tr);
	stackmap_tr = tr;
	return 0;
}

static char *instance_path(const char *name, const char *file)
{
	return kasprintf(GFP_KERNEL, "instances/%s/%s", name, file);
}

/**
 * stackmap_instance_get - find an instance and keep it from being removed
 * @name: its name, a single component
 * @tr: set to its trace array
 *
 * Whoever has a file of an instance open holds it.
 *
 * Context: process.
 * Return: for stackmap_instance_put(), or an error pointer: -ENOENT if there is none of this name.
 */
struct file *stackmap_instance_get(const char *name, struct trace_array **tr)
{
	char *path = instance_path(name, "tracing_on");
	struct file *file;

	if (!path)
		return ERR_PTR(-ENOMEM);
	file = file_open_root_mnt(root, path, O_RDONLY, 0);
	kfree(path);
	if (!IS_ERR(file))
		*tr = file_inode(file)->i_private;
	return file;
}

/**
 * stackmap_instance_has - whether an instance has a file
 * @name: the instance
 * @file: the file, below its directory
 *
 * Context: process.
 * Return: 1, 0, or why it could not be looked up.
 */
int stackmap_instance_has(const char *name, const char *file)
{
	char *path = instance_path(name, file);
	int ret = path ? stackmap_tracefs_exists(path) : -ENOMEM;

	kfree(path);
	return ret;
}

/**
 * stackmap_instance_announce - stackmap_event_announce() for the buffer of an instance
 * @name: the instance
 *
 * Context: process.
 * Return: the event in that instance, or an error pointer.
 */
struct trace_event_file *stackmap_instance_announce(const char *name)
{
	char *path = instance_path(name, "events/ftrace/stack_id/format");
	struct trace_event_file *file = path ? stackmap_event_announce(path) : ERR_PTR(-ENOMEM);

	kfree(path);
	return file;
}

void stackmap_instance_put(struct file *file)
{
	fput(file);
}

/**
 * stackmap_tracing_is_on - whether a trace array records
 * @tr: the trace array, NULL for that of the top level
 *
 * Context: process.
 * Return: true or false.
 */
bool stackmap_tracing_is_on(struct trace_array *tr)
{
	return static_call(stackmap_tr_is_on)(tr ?: stackmap_tr);
}

/**
 * stackmap_tracefs_create - create a file
 * @dir: the directory below tracefs' root, "" for the root
 * @name: the file's name
 * @mode: its permissions
 * @fops: its operations
 * @dentry: set to the new file
 *
 * Context: process.
 * Return: 0, -EEXIST if there is one already, or another errno.
 */
int stackmap_tracefs_create(const char *dir, const char *name, umode_t mode,
			    const struct file_operations *fops, struct dentry **dentry)
{
	struct path path = { };
	int ret = lookup(*dir ? dir : ".", &path);

	if (ret)
		return ret;
	*dentry = tracefs_create_file(name, mode, path.dentry, NULL, fops);
	path_put(&path);
	/* tracefs keeps the reason to itself; the caller has looked whether the name is taken. */
	return *dentry ? 0 : -ENOMEM;
}

void stackmap_tracefs_remove(struct dentry *dentry)
{
	static_call(stackmap_tracefs_remove_orig)(dentry);
}

/**
 * stackmap_tracefs_event_file - find an event of a trace array
 * @path: its format file
 *
 * Context: process.
 * Return: the event's file, or an error pointer.
 */
struct trace_event_file *stackmap_tracefs_event_file(const char *path)
{
	return private_of(path);
}

/**
 * stackmap_tracefs_layout - read the layout of ftrace:kernel_stack
 * @layout: set to it
 *
 * Offsets follow from sizes and alignments as in the core's own event_define_fields().
 *
 * Context: process.
 * Return: 0 or an errno.
 */
int stackmap_tracefs_layout(struct stackmap_layout *layout)
{
	struct trace_event_file *file =
		stackmap_tracefs_event_file("events/ftrace/kernel_stack/format");
	const struct trace_event_fields *field;
	unsigned int offset = sizeof(struct trace_entry);

	if (IS_ERR(file))
		return PTR_ERR(file);

	*layout = (struct stackmap_layout) { .type = file->event_call->event.type };
	for (field = file->event_call->class->fields_array; field->type; field++) {
		offset = ALIGN(offset, field->align);
		if (!strcmp(field->type, "int") && !strcmp(field->name, "size")) {
			layout->size_offset = offset;
			layout->size_len = field->size;
		} else if (strstarts(field->type, "unsigned long[") &&
			   !strcmp(field->name, "caller")) {
			layout->caller_offset = offset;
			layout->caller_len = field->size;
		}
		offset += field->size;
		layout->nr_fields++;
	}
	return 0;
}
