// SPDX-License-Identifier: GPL-2.0
/*
 * tracefs from inside the kernel: its root, what the inodes of its files carry, and our own files.
 *
 * struct trace_array and the events of the core are reached through the inodes that tracefs keeps
 * for them, not through symbols: i_private of "tracing_on" is the trace array, that of an event's
 * "format" is its struct trace_event_file.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/namei.h>
#include <linux/rcupdate.h>
#include <linux/security.h>
#include <linux/slab.h>
#include <linux/sprintf.h>
#include <linux/string.h>
#include <linux/trace_events.h>
#include <linux/tracefs.h>

#include "../shim/shim.h"

/*
 * The owner of the file operations: its reference count is the number of their users, from before
 * open() on. It always grants a reference; the module itself refuses one while it is unloaded, and
 * the VFS warns then. So open() takes a reference to the module, and unload waits until no user is
 * left.
 */
struct module stackmap_gate = {
	.state	= MODULE_STATE_LIVE,
	.name	= KBUILD_MODNAME,
	.refcnt	= ATOMIC_INIT(1),
};

/* The default operations of a new inode: open() fails with ENXIO. */
static const struct file_operations *closed;

/**
 * stackmap_tracefs_allowed - whether kernel lockdown permits access to tracefs
 *
 * Lockdown can be enabled at any time. The kernel's own files check it when they are opened.
 *
 * Context: process.
 * Return: 0, or -EPERM; the kernel logs the latter.
 */
int stackmap_tracefs_allowed(void)
{
	return security_locked_down(LOCKDOWN_TRACEFS) ? -EPERM : 0;
}

/**
 * stackmap_tracefs_mount - get a reference to tracefs, mounted by userspace or not
 *
 * Uses the mount that tracefs keeps for itself: a new mount would reset the permissions of all
 * mounts to the default.
 *
 * Context: process. Symbols are resolved.
 * Return: for stackmap_tracefs_unmount(), -EPERM if tracefs is locked down, or -ENODEV if the
 * kernel has none.
 */
struct vfsmount *stackmap_tracefs_mount(void)
{
	int ret = stackmap_tracefs_allowed();

	if (ret)
		return ERR_PTR(ret);
	return mntget(*stackmap_symbols.tracefs_mount) ?: ERR_PTR(-ENODEV);
}

void stackmap_tracefs_unmount(struct vfsmount *root)
{
	mntput(root);
}

static int lookup(struct vfsmount *root, const char *name, struct path *path)
{
	return vfs_path_lookup(root->mnt_root, root, name, 0, path);
}

/**
 * stackmap_tracefs_exists - whether a file exists
 * @root: tracefs
 * @name: its path below that
 *
 * Context: process.
 * Return: 1, 0, or why it could not be looked up.
 */
int stackmap_tracefs_exists(struct vfsmount *root, const char *name)
{
	struct path path;
	int ret = lookup(root, name, &path);

	if (ret)
		return ret == -ENOENT ? 0 : ret;
	path_put(&path);
	return 1;
}

/* The i_private of a file; it is valid as long as the object that the file shows. */
static void *private_of(struct vfsmount *root, const char *dir, const char *name)
{
	char *file = kasprintf(GFP_KERNEL, "%s/%s", dir, name);
	struct path path;
	void *data;
	int ret;

	if (!file)
		return ERR_PTR(-ENOMEM);
	ret = lookup(root, file, &path);
	kfree(file);
	if (ret)
		return ERR_PTR(ret);
	data = d_inode(path.dentry)->i_private;
	path_put(&path);
	return data ?: ERR_PTR(-EINVAL);
}

/**
 * stackmap_tracefs_find - find a trace array, and what recording ids in it needs
 * @root: tracefs
 * @dir: its directory below that, "." for the top level
 * @found: set to what was found; all of it says that it is of the same trace array
 *
 * Context: process.
 * Return: 0, -EINVAL if a file is not what it is by its name, or why there is no such file.
 */
int stackmap_tracefs_find(struct vfsmount *root, const char *dir, struct stackmap_served *found)
{
	struct stackmap_served is = {
		.tr		= private_of(root, dir, "tracing_on"),
		.file		= private_of(root, dir, "events/ftrace/stack_id/format"),
		.user_files	= {
			private_of(root, dir, "events/ftrace/stack_id_user/format"),
			private_of(root, dir, "events/ftrace/user_stack_id/format"),
		},
	};
	struct ftrace_ops *ops = stackmap_symbols.global_ops;
	const void *all[] = { is.tr, is.file, is.user_files[0], is.user_files[1] };
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(all); i++)
		if (IS_ERR(all[i]))
			return PTR_ERR(all[i]);
	if (!stackmap_events_are(&is) || is.file->tr != is.tr ||
	    is.user_files[0]->tr != is.tr || is.user_files[1]->tr != is.tr)
		return -EINVAL;
	if (ops && ops->private == is.tr)
		is.ops = ops;
	*found = is;
	return 0;
}

/**
 * stackmap_instance_get - find an instance and keep it from being removed
 * @root: tracefs
 * @dir: its directory below that
 * @found: set as by stackmap_tracefs_find()
 *
 * An instance cannot be removed while one of its files is open.
 *
 * Context: process.
 * Return: a file that the caller puts, or an error pointer: -ENOENT if there is none of this name.
 */
struct file *stackmap_instance_get(struct vfsmount *root, const char *dir,
				   struct stackmap_served *found)
{
	char *path = kasprintf(GFP_KERNEL, "%s/tracing_on", dir);
	struct file *file;
	int ret;

	if (!path)
		return ERR_PTR(-ENOMEM);
	file = file_open_root_mnt(root, path, O_RDONLY, 0);
	kfree(path);
	if (IS_ERR(file))
		return file;
	ret = stackmap_tracefs_find(root, dir, found);
	/* Another instance may have the name by now. */
	if (!ret && file_inode(file)->i_private != found->tr)
		ret = -ENOENT;
	if (ret) {
		fput(file);
		return ERR_PTR(ret);
	}
	return file;
}

/**
 * stackmap_tracing_is_on - whether a trace array records
 * @tr: the trace array
 *
 * Context: process.
 * Return: true or false.
 */
bool stackmap_tracing_is_on(struct trace_array *tr)
{
	return static_call(stackmap_tr_is_on)(tr);
}

static int find_closed(struct super_block *sb)
{
	struct inode *inode = new_inode(sb);

	if (!inode)
		return -ENOMEM;
	closed = inode->i_fop;
	iput(inode);
	return 0;
}

/**
 * stackmap_tracefs_create - create a file
 * @root: tracefs
 * @dir: the directory below that, "" for tracefs itself
 * @name: the file's name
 * @mode: its permissions
 * @fops: its operations
 * @dentry: set to the new file
 *
 * Context: process.
 * Return: 0, -EEXIST if there is one already, or another errno.
 */
int stackmap_tracefs_create(struct vfsmount *root, const char *dir, const char *name, umode_t mode,
			    const struct file_operations *fops, struct dentry **dentry)
{
	struct path path = { };
	int ret = lookup(root, *dir ? dir : ".", &path);

	if (ret)
		return ret;
	if (!closed)
		ret = find_closed(path.dentry->d_sb);
	if (!ret)
		*dentry = static_call(stackmap_tracefs_create_orig)(name, mode, path.dentry, NULL,
								    fops);
	path_put(&path);
	if (ret)
		return ret;
	/* tracefs does not return the reason; the caller has checked that the name is free. */
	return *dentry ? 0 : -ENOMEM;
}

/**
 * stackmap_tracefs_remove - remove a file
 * @dentry: the file
 *
 * A task that holds a path to the file can still open it, also after unload: open() fails with
 * ENXIO. A task that is already in an operation may stay there until stackmap_tracefs_drain()
 * returns.
 *
 * Context: process.
 */
void stackmap_tracefs_remove(struct dentry *dentry)
{
	WRITE_ONCE(d_inode(dentry)->i_fop, closed);
	static_call(stackmap_tracefs_remove_orig)(dentry);
}

/**
 * stackmap_tracefs_drain - wait until no task uses the operations of removed files
 *
 * A task that has loaded the operations from the inode takes a reference before it sleeps: RCU
 * tasks waits for it. References are held by tasks with an open file, which also hold the module,
 * and by tasks that are opening a file; the latter can take long if a fanotify listener has to
 * permit it.
 *
 * Context: process, may sleep.
 */
void stackmap_tracefs_drain(void)
{
	synchronize_rcu_tasks();
	while (module_refcount(&stackmap_gate))
		fsleep(10 * USEC_PER_MSEC);
	/* A task that has dropped its reference may still be returning. */
	synchronize_rcu_tasks();
}

/**
 * stackmap_tracefs_enter - keep the module while a file is open
 *
 * Context: process, in the open() of a file that stackmap_gate owns.
 * Return: whether stackmap_tracefs_leave() must follow; false if the module is going.
 */
bool stackmap_tracefs_enter(void)
{
	return try_module_get(THIS_MODULE);
}

void stackmap_tracefs_leave(void)
{
	module_put(THIS_MODULE);
}

/**
 * stackmap_tracefs_layout - read the layout of ftrace:kernel_stack
 * @root: tracefs
 *
 * Offsets follow from sizes and alignments as in the core's own event_define_fields().
 *
 * Context: process, once.
 * Return: the layout, -EINVAL if another event is there, or why there is no such event.
 */
const struct stackmap_layout *stackmap_tracefs_layout(struct vfsmount *root)
{
	struct stackmap_layout *layout = &stackmap_facts.layout;
	struct trace_event_file *file = private_of(root, ".", "events/ftrace/kernel_stack/format");
	const struct trace_event_fields *field;
	unsigned int offset = sizeof(struct trace_entry);

	if (IS_ERR(file))
		return ERR_CAST(file);
	if (file->tr != private_of(root, ".", "tracing_on") ||
	    strcmp(trace_event_name(file->event_call), "kernel_stack"))
		return ERR_PTR(-EINVAL);

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
	return layout;
}
