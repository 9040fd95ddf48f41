/* What a description means by `quant: {scheme: gptq, bits: 4, group: 128}`: the type of matrices
 * and which stay as they are. Each configs/schemes/<scheme>.yaml says it under `storage`. */
#ifndef LLMC_FORMATS_SCHEME_STORAGE_H
#define LLMC_FORMATS_SCHEME_STORAGE_H

#include "base/arena.h"
#include "base/error.h"
#include "formats/dtype.h"

typedef struct SchemeStorage {
	Dtype dtype;
	int64_t group;  /* columns of a scale; -1: the whole row; 0: a block of dtype */
	bool symmetric; /* zero points are the middle code */
	size_t n_keep;
	const char **keep; /* roles that the scheme leaves alone */
} SchemeStorage;

/* A scheme, or the text of a weight type: all matrices but the routers' are of it then. bits 0,
 * group 0: what the scheme usually has. E_INPUT: no such scheme, or none with these numbers; the
 * sentence names what there is. */
llmc_status scheme_storage(Arena *a, const char *scheme, int bits, int64_t group,
                           SchemeStorage *out, llmc_error *err);

#endif
