/* A copy that ends at a page boundary, so that a read beyond the end crashes. Valid until the next
 * one. */
#ifndef TESTS_UNIT_TIGHT_H
#define TESTS_UNIT_TIGHT_H

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/strbuf.h"

static inline const unsigned char *
tight_copy(const Strbuf *b)
{
	static unsigned char *page;
	static size_t size;

	if (page)
		munmap(page, size);
	size_t p = (size_t)sysconf(_SC_PAGESIZE), body = (b->len + p - 1) / p * p;
	size = body + p;
	page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(page != MAP_FAILED);
	mprotect(page + body, p, PROT_NONE);
	if (b->len)
		memcpy(page + body - b->len, b->data, b->len);
	return page + body - b->len;
}

#endif
