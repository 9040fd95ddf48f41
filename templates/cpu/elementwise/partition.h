/* Division of work in elementwise kernels: by rows, or by 64-element segments. */
#ifndef LLMC_CPU_ELEMENTWISE_PARTITION_H
#define LLMC_CPU_ELEMENTWISE_PARTITION_H

#include "cpu/math/vector.h"
#include "common/llmc_step.h"

typedef struct {
	int64_t from, to;
} Share;

LLMC_INLINE Share
share_rows(int64_t n, int part, int n_parts)
{
	return (Share){ n * part / n_parts, n * (part + 1) / n_parts };
}

LLMC_INLINE Share
share_elems(int64_t n, int part, int n_parts)
{
	Share s = share_rows((n + 63) / 64, part, n_parts);

	s.from *= 64;
	s.to = s.to * 64 < n ? s.to * 64 : n;
	return s;
}

/* Evaluates EXPR for each vector of elements [s.from, s.to). i: first element of the vector; n: its
 * number of elements. The last vector may be partial. An element's value must not depend on its
 * lane. */
#define SHARE_EACH(s, i, n)                                                                        \
	for (int64_t i = (s).from, n = VL; n = (s).to - i < VL ? (s).to - i : VL, n > 0; i += VL)

/* Loads the first n lanes of a vector, or all of them if n >= VL. */
LLMC_INLINE vf
share_get(const float *p, int64_t n)
{
	return n >= VL ? vf_load(p) : vf_load_n(p, (int)n);
}

LLMC_INLINE void
share_put(float *p, vf v, int64_t n)
{
	if (n >= VL)
		vf_store(p, v);
	else
		vf_store_n(p, v, (int)n);
}

#endif
