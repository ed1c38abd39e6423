// SPDX-License-Identifier: GPL-2.0
/*
 * Allocates memory and keeps some of it: a number of objects of kmalloc() and of a cache, of which
 * it frees others; pages in one piece, and pages that are split and of which half are freed one by
 * one. Prints nothing: what is kept follows from the parameters. All is freed when it is unloaded.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>

#define MOST		64
#define SPLIT_ORDER	3

static unsigned int kept = 7;
module_param(kept, uint, 0444);
MODULE_PARM_DESC(kept, "Number of objects that are kept of each kind");

static unsigned int freed = 50;
module_param(freed, uint, 0444);
MODULE_PARM_DESC(freed, "Number of objects that are freed again");

static struct kmem_cache *cache;
static void *objects[MOST], *of_cache[MOST];
static unsigned long whole, half;

static noinline void keep_objects(void)
{
	unsigned int i;

	for (i = 0; i < kept; i++) {
		objects[i] = kmalloc(300, GFP_KERNEL);
		of_cache[i] = kmem_cache_alloc(cache, GFP_KERNEL);
	}
}

static noinline void free_objects(void)
{
	unsigned int i;

	for (i = 0; i < freed; i++) {
		void *object = kmalloc(300, GFP_KERNEL);
		void *other = kmem_cache_alloc(cache, GFP_KERNEL);

		kfree(object);
		if (other)
			kmem_cache_free(cache, other);
	}
}

static noinline void keep_pages(void)
{
	whole = __get_free_pages(GFP_KERNEL, 2);
}

static noinline void keep_half(void)
{
	unsigned int i;

	half = __get_free_pages(GFP_KERNEL, SPLIT_ORDER);
	if (!half)
		return;
	split_page(virt_to_page((void *)half), SPLIT_ORDER);
	for (i = 0; i < 1 << SPLIT_ORDER; i += 2)
		free_page(half + i * PAGE_SIZE);
}

static void free_all(void)
{
	unsigned int i;

	for (i = 0; i < kept; i++) {
		kfree(objects[i]);
		if (of_cache[i])
			kmem_cache_free(cache, of_cache[i]);
	}
	free_pages(whole, 2);
	for (i = 1; half && i < 1 << SPLIT_ORDER; i += 2)
		free_page(half + i * PAGE_SIZE);
	kmem_cache_destroy(cache);
}

static int __init keeps_init(void)
{
	if (kept > MOST)
		return -EINVAL;
	cache = kmem_cache_create("stackmap_keeps", 200, 0, SLAB_NO_MERGE, NULL);
	if (!cache)
		return -ENOMEM;
	keep_objects();
	free_objects();
	keep_pages();
	keep_half();
	return 0;
}
module_init(keeps_init);
module_exit(free_all);

MODULE_DESCRIPTION("Keeps memory, to be found");
MODULE_LICENSE("GPL");
