/* Resolves the key `quant` of a description (quant.method, bits, group): the type of matrices, and
 * which matrices stay unquantised. Each configs/quant_formats/NAME.yaml defines this under
 * `storage`. */
#ifndef LLMC_FORMATS_QUANT_FORMAT_STORAGE_H
#define LLMC_FORMATS_QUANT_FORMAT_STORAGE_H

#include "base/arena.h"
#include "base/error.h"
#include "formats/dtype.h"

typedef struct QuantFormatStorage {
	Dtype dtype;
	int64_t group;  /* columns per scale; -1: the whole row; 0: a block of dtype */
	bool symmetric; /* zero point is the middle code */
	size_t n_keep;
	const char **keep; /* roles that stay unquantised */
} QuantFormatStorage;

/* Resolves the name of a quantisation format, or of a weight type, which then applies to all
 * matrices except routers. bits 0, group 0: the format's default. E_INPUT: there is no such format,
 * or it does not have these numbers; the message lists the valid ones. */
llmc_status quant_format_storage(Arena *a, const char *quant_format, int bits, int64_t group,
                                 QuantFormatStorage *out, llmc_error *err);

#endif
