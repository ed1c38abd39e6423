// SPDX-License-Identifier: GPL-2.0
/*
 * Tells when other modules' text comes and goes.
 */
#include <linux/module.h>
#include <linux/notifier.h>

#include "shim.h"

static void tell(const struct module *mod, enum mod_mem_type type, bool coming)
{
	const struct module_memory *mem = &mod->mem[type];
	unsigned long start = (unsigned long)mem->base;

	if (!mem->size)
		return;
	if (coming)
		stackmap_text_coming(start, start + mem->size);
	else
		stackmap_text_going(start, start + mem->size);
}

static int notify(struct notifier_block *nb, unsigned long state, void *data)
{
	const struct module *mod = data;

	switch (state) {
	case MODULE_STATE_COMING:
		tell(mod, MOD_TEXT, true);
		tell(mod, MOD_INIT_TEXT, true);
		break;
	case MODULE_STATE_LIVE:
		tell(mod, MOD_INIT_TEXT, false);
		break;
	case MODULE_STATE_GOING:
		tell(mod, MOD_TEXT, false);
		/* There is some left if the module's init has failed. */
		tell(mod, MOD_INIT_TEXT, false);
		break;
	}
	return NOTIFY_OK;
}

static struct notifier_block notifier = {
	.notifier_call = notify,
};

/**
 * stackmap_modules_watch - have stackmap_text_coming() and stackmap_text_going() called
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
 * stackmap_symbol - what is at an address
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
