/* Choice between absorbed and expanded latent attention per sequence: one rule for all steps, all
 * targets and the reference. */
#ifndef LLMC_MLA_H
#define LLMC_MLA_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define LLMC_MLA_FN static __device__ __forceinline__
#else
#define LLMC_MLA_FN static inline __attribute__((unused))
#endif

/* value of `expand` if the description requests the expanded form: also for single rows */
enum { MLA_EXPAND_ALWAYS = 1 };

/* Returns whether the rows of one sequence in this step, at positions from `before` on, use the
 * expanded form. expand and chosen are attributes of the op; expand 0: never.
 *
 * Expansion computes a key and a value per position and head. Its cost equals the extra cost of
 * `expand` (row, position) pairs in absorbed form. The step's own positions are free, because the
 * absorbed form multiplies by the same matrices for each of its rows. Expanded is therefore cheaper
 * if the number of pairs, rows * (before + rows / 2), exceeds expand * before. A single row is a
 * decode row; it is absorbed unless the other form is requested. If any row selects among its
 * positions, all rows are absorbed. */
LLMC_MLA_FN int
mla_expanded(int rows, int before, int expand, int chosen)
{
	if (chosen > 0 && before + rows > chosen)
		return 0;
	if (expand == MLA_EXPAND_ALWAYS)
		return 1;
	return expand > 0 && rows > 1 &&
	       (long long)rows * (2LL * before + rows) > 2LL * expand * before;
}

/* Number of slots, on GPUs, for the expanded keys and values of a sequence: its positions rounded
 * up to tiles, or 0. The slots of all sequences are contiguous; a round processes a fixed number of
 * slots. */
enum { MLA_TILE = 128 };

LLMC_MLA_FN int
mla_places(int rows, int before, int expand)
{
	return mla_expanded(rows, before, expand, 0)
	           ? (before + rows + MLA_TILE - 1) / MLA_TILE * MLA_TILE
	           : 0;
}

#endif
