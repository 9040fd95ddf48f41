/* Resolves the key `quant` of a description (quant.method, bits, group): the type of matrices, and
 * which matrices stay unquantised. Each configs/schemes/NAME.yaml defines this under `storage`. */
#ifndef LLMC_FORMATS_SCHEME_STORAGE_H
#define LLMC_FORMATS_SCHEME_STORAGE_H

#include "base/arena.h"
#include "base/error.h"
#include "formats/dtype.h"

typedef struct SchemeStorage {
	Dtype dtype;
	int64_t group;  /* columns per scale; -1: the whole row; 0: a block of dtype */
	bool symmetric; /* zero point is the middle code */
	size_t n_keep;
	const char **keep; /* roles that stay unquantised */
} SchemeStorage;

/* Resolves the name of a quantisation format, or of a weight type, which then applies to all
 * matrices except routers. bits 0, group 0: the default of the format. E_INPUT: no such format, or
 * none with these numbers; the message lists the valid ones. */
llmc_status scheme_storage(Arena *a, const char *scheme, int bits, int64_t group,
                           SchemeStorage *out, llmc_error *err);

#endif
