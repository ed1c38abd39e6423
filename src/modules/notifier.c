// SPDX-License-Identifier: GPL-2.0
/*
 * Reports added and removed text of other modules.
 */
#include <linux/module.h>
#include <linux/notifier.h>

#include "../shim/shim.h"

static unsigned int add(struct stackmap_text *text, unsigned int nr, const struct module *mod,
			enum mod_mem_type type)
{
	const struct module_memory *mem = &mod->mem[type];
	unsigned long start = (unsigned long)mem->base;

	if (!mem->size)
		return nr;
	text[nr] = (struct stackmap_text) { .start = start, .end = start + mem->size };
	return nr + 1;
}

static int notify(struct notifier_block *nb, unsigned long state, void *data)
{
	struct stackmap_text text[2];
	unsigned int nr = 0;

	/* A live module frees only its init text; a module whose init failed frees both. */
	if (state != MODULE_STATE_LIVE)
		nr = add(text, nr, data, MOD_TEXT);
	nr = add(text, nr, data, MOD_INIT_TEXT);
	if (nr)
		stackmap_text_changes(text, nr, state != MODULE_STATE_COMING);
	return NOTIFY_OK;
}

static struct notifier_block notifier = {
	.notifier_call = notify,
};

/**
 * stackmap_modules_watch - have stackmap_text_changes() called
 *
 * Context: process, may sleep.
 * Return: 0 or an errno.
 */
int stackmap_modules_watch(void)
{
	return register_module_notifier(&notifier);
}

void stackmap_modules_unwatch(void)
{
	unregister_module_notifier(&notifier);
}

/**
 * stackmap_symbol - get the symbol name of an address
 * @text: set to "name+0x48/0xc0 [module]", or to the address if nothing is known
 * @addr: the address
 *
 * Context: any.
 * Return: the length of the text.
 */
int stackmap_symbol(char text[STACKMAP_SYMBOL_LEN], unsigned long addr)
{
	BUILD_BUG_ON(STACKMAP_SYMBOL_LEN < KSYM_SYMBOL_LEN);
	return sprint_symbol(text, addr);
}
