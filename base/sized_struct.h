/* Structs of llmc.h that begin with their size, as the program knew it when it was built: both
 * sides read and write what they share. A size of 0 stands for ours: within the library nobody sets
 * it. */
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

/* The caller's struct over ours, which holds the defaults; NULL: they stay. */
#define SIZED_TAKE(own, theirs) sized_take(&(own), sizeof(own), (theirs))
/* Ours into the caller's, whose size stays. */
#define SIZED_GIVE(theirs, own) sized_give((theirs), &(own), sizeof(own))

#endif
