/* Choice between absorbed and expanded latent attention per sequence: one rule for all steps, all
 * targets and the reference. */
#ifndef LLMC_MLA_H
#define LLMC_MLA_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define LLMC_MLA_FN static __device__ __forceinline__
#else
#define LLMC_MLA_FN static inline __attribute__((unused))
#endif

/* value of `expand` with which all rows use the expanded form, single rows too */
enum { MLA_EXPAND_ALWAYS = 1 };

/* Returns whether the rows of one sequence in this step use the expanded form. The first row is at
 * position `before`. expand and chosen are attributes of the op; expand 0: never.
 *
 * Expansion computes a key and a value per position and head. For one position this costs as much
 * as the absorbed form costs extra for `expand` pairs of a row and a position. The step's own
 * positions are free, because the absorbed form multiplies by the same matrices for each of its
 * rows. The expanded form is therefore cheaper if the number of pairs, rows * (before + rows / 2),
 * exceeds expand * before. A single row is a decode row, which uses the absorbed form unless the
 * description requests the expanded one. If an indexer selects positions for any of the rows, all
 * rows use the absorbed form. */
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

/* Granularity of the slots for expanded keys and values on GPUs. A sequence has as many slots as
 * positions, rounded up to a multiple of MLA_TILE, or none. The slots of all sequences are
 * contiguous; a round processes a fixed number of slots. */
enum { MLA_TILE = 128 };

LLMC_MLA_FN int
mla_places(int rows, int before, int expand)
{
	return mla_expanded(rows, before, expand, 0)
	           ? (before + rows + MLA_TILE - 1) / MLA_TILE * MLA_TILE
	           : 0;
}

#endif
