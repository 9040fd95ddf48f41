/* Structs of llmc.h begin with their size in the caller's build, so that library and caller read
 * and write only the fields that both have. Size 0 means this library's own size; code inside the
 * library leaves it unset. */
#ifndef LLMC_BASE_SIZED_STRUCT_H
#define LLMC_BASE_SIZED_STRUCT_H

#include <stddef.h>
#include <string.h>

static inline void
sized_take(void *own, size_t cap, const void *theirs)
{
	size_t n;

	if (!theirs)
		return;
	memcpy(&n, theirs, sizeof n);
	memcpy(own, theirs, n && n < cap ? n : cap);
	memcpy(own, &cap, sizeof cap);
}

static inline void
sized_give(void *theirs, const void *own, size_t cap)
{
	size_t n;

	memcpy(&n, theirs, sizeof n);
	n = n ? n : cap;
	memcpy(theirs, own, n < cap ? n : cap);
	memcpy(theirs, &n, sizeof n);
}

/* Copy the caller's struct over `own`, which holds the defaults. theirs NULL: keep the defaults. */
#define SIZED_TAKE(own, theirs) sized_take(&(own), sizeof(own), (theirs))
/* Copy `own` into the caller's struct and preserve its size field. */
#define SIZED_GIVE(theirs, own) sized_give((theirs), &(own), sizeof(own))

/* Return element i of the caller's array, whose elements have the size of the first, or `own`. */
static inline const void *
sized_at(const void *array, size_t own, size_t i)
{
	size_t n;

	memcpy(&n, array, sizeof n);
	return (const char *)array + i * (n ? n : own);
}

/* Copy element i of the caller's array over `own`, which holds the defaults. */
#define SIZED_TAKE_AT(own, array, i) SIZED_TAKE(own, sized_at((array), sizeof(own), (i)))

#endif
