#include "formats/name_table.h"

#include <stdlib.h>
#include <string.h>

static int
by_name(const void *x, const void *y)
{
	const NameEntry *a = x, *b = y;
	int order = strcmp(a->name, b->name);

	if (order)
		return order;
	return a->at < b->at ? -1 : a->at > b->at;
}

const NameEntry *
names_sort(NameEntry *e, size_t n)
{
	if (n > 1)
		qsort(e, n, sizeof *e, by_name);
	for (size_t i = 1; i < n; i++)
		if (strcmp(e[i - 1].name, e[i].name) == 0)
			return &e[i];
	return NULL;
}

const NameEntry *
names_find(const NameEntry *e, size_t n, const char *name)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int order = strcmp(e[mid].name, name);
		if (order == 0)
			return &e[mid];
		if (order < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

NameText
name_text(const char *s, size_t n)
{
	NameText t = { { 0 } };
	size_t len = n > 76 ? 76 : n;

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)s[i];
		t.s[i] = (char)(c < 32 || c == 127 ? '?' : c);
	}
	if (n > len)
		memcpy(t.s + len, "...", 4);
	return t;
}
